"""Sends comments in silent streams, so that proxies on the way do not close them."""

from __future__ import annotations

import math
from typing import Final, Protocol

from gateway.core.results import Callback
from gateway.core.snapshot import QueuePosition
from gateway.proxy.time_limits import Deadline

COMMENT: Final = b": keep-alive\n\n"
CHECKS: Final = 4.0
"""A stream is checked this many times per allowed time of silence."""


def waiting_comment(found: QueuePosition) -> bytes:
    """A comment for a stream that waits: its place, and its expected wait in whole seconds."""
    where = b"on hold" if found.on_hold else b"queued"
    about = b"" if found.wait_s is None else b", about %d s" % max(1, math.ceil(found.wait_s))
    return b": %b, position %d%b\n\n" % (where, found.position, about)


def is_due(said_at: float, silence_s: float, now: float) -> bool:
    """Whether a stream would be silent for longer than `silence_s` by the next check.

    A comment is sent as late as possible, because the HTTP status cannot change after it.
    """
    return now - said_at > silence_s - silence_s / CHECKS


class Stream(Protocol):
    """A stream that may be silent for a long time."""

    def keep_alive(self, now: float) -> None:
        """Check the stream, and send a comment if it is due."""

    def broke(self, callback: Callback, error: Exception) -> None:
        """A callback of the gateway raised an exception while it handled this stream."""


def _broke(stream: Stream, error: Exception) -> None:
    stream.broke(Callback.TIMER, error)


class KeepAlives:
    """The streams that get comments. Each call of `start` schedules one check of its stream."""

    def __init__(self) -> None:
        self._by_silence: dict[float, Deadline[Stream]] = {}
        self._now = 0.0

    def start(self, stream: Stream, silence_s: float, now: float) -> None:
        """Schedule the next check in `silence_s` / `CHECKS` seconds."""
        deadline = self._by_silence.get(silence_s)
        if deadline is None:
            deadline = self._by_silence[silence_s] = Deadline(silence_s / CHECKS, self._check, _broke)
        deadline.start(stream, now)

    def stop(self, stream: Stream, silence_s: float) -> None:
        """Forget a stream."""
        deadline = self._by_silence.get(silence_s)
        if deadline is not None:
            deadline.stop(stream)

    def sweep(self, now: float) -> None:
        """Check all streams that are due."""
        self._now = now
        for deadline in self._by_silence.values():
            while deadline.sweep(now):
                pass  # all are handled in this turn of the loop, because a check is quick

    def _check(self, stream: Stream) -> None:
        stream.keep_alive(self._now)
