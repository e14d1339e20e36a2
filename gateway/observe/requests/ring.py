"""Keeps the records of the latest requests in memory, those that operators ask for longer than ordinary ones."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.core.history import EarlyRefusal
from gateway.core.results import Record
from gateway.observe.requests.row import RequestRow

NOTABLE_SHARE: Final = 0.5
"""Share (0-1) of the room that is for refused, late, hedged, failed and slow requests."""
EARLY_SHARE: Final = 0.1
"""Share of the room for requests that were refused unread: anybody can send many of those."""
MAX_FOUND: Final = 20
_SENT_AS: Final = re.compile(r"([a-z]+-)?(.+)-[0-9a-f]{6}\.\d+(?:-.*)?")
"""The id that a replica gets (`Exchange`), and what engines make of it: vLLM puts `chatcmpl-` before it."""

Found = RequestRow | EarlyRefusal


class RequestRing:
    """The records of the latest `size` requests. A record is appended in constant time, and found by a search."""

    def __init__(self, size: int) -> None:
        notable, early = int(size * NOTABLE_SHARE), int(size * EARLY_SHARE)
        self._ordinary: deque[RequestRow] = deque(maxlen=size - notable - early)
        self._notable: deque[RequestRow] = deque(maxlen=notable)
        self._early: deque[EarlyRefusal] = deque(maxlen=early)
        self.readers: list[Callable[[Found], None]] = []
        """Called with each new record, on the thread of the event loop."""

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._notable) + len(self._early)

    def ended(self, record: Record, engine: float | None = None) -> None:
        """Keep the record of a request that is over. `engine`: see `RequestRow.engine`."""
        row = RequestRow(record, engine)
        if row.is_notable:
            self._notable.append(row)
        else:
            self._ordinary.append(row)
        for read in self.readers:
            read(row)

    def refused_early(self, refusal: EarlyRefusal) -> None:
        """Keep a request that was refused before it became a `Request`."""
        self._early.append(refusal)
        for read in self.readers:
            read(refusal)

    @property
    def oldest(self) -> float | None:
        """When the oldest ordinary request that is kept ended, by the monotonic clock; None if there is none."""
        return self._ordinary[0].ended_at if self._ordinary else None

    def complete(self) -> list[RequestRow]:
        """The records since the time from which ordinary and notable ones are all kept: a fair sample."""
        full = [kept[0].ended_at for kept in (self._ordinary, self._notable) if kept and len(kept) == kept.maxlen]
        since = max(full, default=-math.inf)
        return [row for row in (*self._ordinary, *self._notable) if row.ended_at >= since]

    def find(self, given: str) -> list[Found]:
        """The records of a request id, the latest first. Clients may use an id several times.

        `given` may also be an id that a replica knows: that of an attempt, or of an answer.
        """
        found = self.latest(lambda one: one.request_id == given or _answered(one, given), MAX_FOUND)
        for name in sent_for(given):
            found = found or self.latest(partial(_is_named, name), MAX_FOUND)
        return found

    def latest(self, wanted: Callable[[Found], bool], count: int) -> list[Found]:
        """The latest `count` records that are wanted, the latest first."""
        every: list[Found] = [*self._ordinary, *self._notable, *self._early]
        return sorted(filter(wanted, every), key=ended_at, reverse=True)[:count]


def sent_for(given: str) -> tuple[str, ...]:
    """Ids of the client's request, the likelier first, if `given` may be the id of an attempt in a replica's log."""
    sent = _SENT_AS.fullmatch(given)
    return () if sent is None else (f"{sent[1] or ''}{sent[2]}", sent[2])


def ended_at(one: Found) -> float:
    """When the request ended, by the monotonic clock."""
    return one.ended_at if isinstance(one, RequestRow) else one.at


def _is_named(name: str, one: Found) -> bool:
    return one.request_id == name


def _answered(one: Found, answer_id: str) -> bool:
    """Whether an engine gave this id to an answer to the request."""
    return isinstance(one, RequestRow) and any(each.answer_id == answer_id for each in one.history.attempts)
