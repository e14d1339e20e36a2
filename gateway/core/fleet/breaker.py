"""Whether a replica gets requests: a plain breaker per replica.

                  success     failure     failures full   check passes   open_s are over
    closed (up)   closed      closed      open            closed         closed
    open (down)   open        open        open            half-open      half-open
    half-open     closed      open        open            half-open      half-open

A success, or a check that passes while closed, starts the count of failures anew; half-open is one request at a time.
A check that was begun before the latest failure says nothing against it: the replica may have died since it answered.
A check that is late while tokens come is no failure (fleet.py).
4xx says nothing of a replica. 429 and 503 are its own valve: no failure, but it is passed over for a while (retry.py).
What is slow, or silent, is no failure either: eject.py.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

from gateway.core.policy import Health
from gateway.core.request import AttemptOutcome
from gateway.core.snapshot import ReplicaState


class BreakerEvent(Enum):
    """What a breaker hears of."""

    SUCCESS = auto()
    FAILURE = auto()
    LIMIT = auto()
    """The failure that makes the count full."""
    HEALTHY = auto()
    """An active check passed."""
    COOLED = auto()
    """The breaker has been open for `open_s`."""


_UP: Final = ReplicaState.UP
_DOWN: Final = ReplicaState.DOWN
_PROBING: Final = ReplicaState.PROBING

# The whole breaker. A passing check alone does not close it: engines answer /health with 200 while they shut down,
# so one real request has to succeed.
TRANSITIONS: Final[dict[tuple[ReplicaState, BreakerEvent], ReplicaState]] = {
    (_UP, BreakerEvent.LIMIT): _DOWN,
    (_DOWN, BreakerEvent.HEALTHY): _PROBING,
    (_DOWN, BreakerEvent.COOLED): _PROBING,
    (_PROBING, BreakerEvent.SUCCESS): _UP,
    (_PROBING, BreakerEvent.FAILURE): _DOWN,
    (_PROBING, BreakerEvent.LIMIT): _DOWN,
}

# 4xx, and 429/503 from the engine's own valve, say nothing of the replica's health; nor does our own cancelling, nor an
# answer that is whole and that we cannot read: three odd requests of one client would take a replica from all others.
VERDICTS: Final[dict[AttemptOutcome, bool | None]] = {
    AttemptOutcome.COMPLETE: True,
    AttemptOutcome.REJECTED: None,
    AttemptOutcome.BUSY: None,
    AttemptOutcome.CLOSING: False,
    AttemptOutcome.FAILED: False,
    AttemptOutcome.UNREACHABLE: False,
    AttemptOutcome.CONNECT_TIMEOUT: False,
    AttemptOutcome.RESET: False,
    AttemptOutcome.TRUNCATED: False,
    AttemptOutcome.UNREADABLE: None,
    AttemptOutcome.CANCELLED: None,
}


class Breaker:
    """Counts consecutive failures of one replica, from requests and from active checks alike."""

    __slots__ = ("_failed_at", "_opened_at", "failures", "state")

    def __init__(self) -> None:
        self.state = ReplicaState.UP
        self.failures = 0
        self._failed_at = -math.inf
        self._opened_at = 0.0

    def ended(self, end: AttemptOutcome, health: Health, now: float) -> None:
        """An attempt at this replica ended."""
        match VERDICTS[end]:
            case True:
                self.failures = 0
                if self.state is not _UP:
                    self._step(BreakerEvent.SUCCESS, now)
            case False:
                self._failed(health, now)
            case None:
                pass

    def checked(self, healthy: bool, health: Health, now: float, asked_at: float | None = None) -> None:
        """An active check was answered, or not. It was begun at `asked_at`; None: just now."""
        if not healthy:
            self._failed(health, now)
        elif asked_at is None or asked_at >= self._failed_at:
            if self.state is _UP:
                self.failures = 0
            else:
                self._step(BreakerEvent.HEALTHY, now)

    def cooled(self, health: Health, now: float) -> None:
        """Let an open breaker try again once it has been open long enough."""
        if self.state is _DOWN and now >= self._opened_at + health.open_s:
            self._step(BreakerEvent.COOLED, now)

    def cools_in_s(self, health: Health, now: float) -> float:
        """Seconds until an open breaker tries again; 0 if it is not open."""
        return max(0.0, self._opened_at + health.open_s - now) if self.state is _DOWN else 0.0

    def _failed(self, health: Health, now: float) -> None:
        self.failures += 1
        self._failed_at = now
        self._step(BreakerEvent.LIMIT if self.failures >= health.failures else BreakerEvent.FAILURE, now)

    def _step(self, event: BreakerEvent, now: float) -> None:
        new = TRANSITIONS.get((self.state, event), self.state)
        if new is _DOWN and self.state is not _DOWN:
            self._opened_at = now
        self.state = new
