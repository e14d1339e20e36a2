"""Circuit breaker of one replica: after consecutive failures, it gets no requests for a while.

                  success     failure     failures full   check passes   open_s are over
    closed (up)   closed      closed      open            closed         closed
    open (down)   open        open        open            half-open      half-open
    half-open     closed      open        open            half-open      half-open

A success resets the count of failures, and so does a check that passes while the breaker is closed. A half-open breaker
allows one request at a time. A check that began before the latest failure is ignored, because the replica may have died
after the check. A check without an answer is no failure while tokens arrive (fleet.py). A 4xx is never a replica's
fault. A 429 or 503 comes from the engine's own admission and leads to a backoff instead (redundancy/retries.py). Slow
or silent replicas are ejected instead (outliers.py).
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

from gateway.core.policy import Health
from gateway.core.request import AttemptOutcome
from gateway.core.snapshot import ReplicaState


class BreakerEvent(Enum):
    """Input of the transition table."""

    SUCCESS = auto()
    FAILURE = auto()
    LIMIT = auto()
    """A failure that brings the count of failures to its limit."""
    HEALTHY = auto()
    """An active check passed."""
    COOLED = auto()
    """The breaker has been open for `open_s`."""


_UP: Final = ReplicaState.UP
_DOWN: Final = ReplicaState.DOWN
_PROBING: Final = ReplicaState.PROBING

# All transitions. A passing check alone does not close the breaker: engines answer /health with 200 while they shut
# down, so one real request has to succeed.
TRANSITIONS: Final[dict[tuple[ReplicaState, BreakerEvent], ReplicaState]] = {
    (_UP, BreakerEvent.LIMIT): _DOWN,
    (_DOWN, BreakerEvent.HEALTHY): _PROBING,
    (_DOWN, BreakerEvent.COOLED): _PROBING,
    (_PROBING, BreakerEvent.SUCCESS): _UP,
    (_PROBING, BreakerEvent.FAILURE): _DOWN,
    (_PROBING, BreakerEvent.LIMIT): _DOWN,
}

# None means neutral: 4xx, the engine's own 429 and 503, our cancellations, and complete answers that we cannot read. If
# these were failures, three odd requests of one client would take the replica away from all clients.
VERDICTS: Final[dict[AttemptOutcome, bool | None]] = {
    AttemptOutcome.COMPLETE: True,
    AttemptOutcome.REJECTED: None,
    AttemptOutcome.BUSY: None,
    AttemptOutcome.CLOSING: False,
    AttemptOutcome.FAILED: False,
    AttemptOutcome.UNREACHABLE: False,
    AttemptOutcome.CONNECT_TIMEOUT: False,
    AttemptOutcome.GATEWAY_LATE: None,
    AttemptOutcome.IDLE_CLOSED: None,
    AttemptOutcome.RESET: False,
    AttemptOutcome.TRUNCATED: False,
    AttemptOutcome.UNREADABLE: None,
    AttemptOutcome.CANCELLED: None,
}


class Breaker:
    """Breaker of one replica. Failures of requests and of active checks count alike."""

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
        """An active check passed or failed. `asked_at`: the time when the check began; None stands for now."""
        if not healthy:
            self._failed(health, now)
        elif asked_at is None or asked_at >= self._failed_at:
            if self.state is _UP:
                self.failures = 0
            else:
                self._step(BreakerEvent.HEALTHY, now)

    def cooled(self, health: Health, now: float) -> None:
        """Make the breaker half-open if it has been open for `open_s`."""
        if self.state is _DOWN and now >= self._opened_at + health.open_s:
            self._step(BreakerEvent.COOLED, now)

    def cools_in_s(self, health: Health, now: float) -> float:
        """Seconds until an open breaker becomes half-open; 0 if it is not open."""
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
