"""The work before a request, and the request's forecast."""

from __future__ import annotations

from typing import Final

from gateway.core.forecast.calibrator import DIRECT

NO_CHECKS: Final[list[float]] = []
NO_FEATURES = (0.0, 0.0, 0.0, 0.0)  # Final, mypyc takes it for one that was never set


class Ahead:
    """Requests ahead of one that would have to wait.

    `requests`: those of its own tier and above; `own`: those of its own tier alone. `higher_share`: arrivals per second
    of higher tiers over the drain rate of the pool (0-1). `floor`: share (0-1) of service guaranteed to its tier.
    """

    __slots__ = ("floor", "higher_share", "own", "requests")

    def __init__(
        self,
        requests: int = 0,
        own: int = 0,
        higher_share: float = 0.0,
        floor: float = 0.0,
    ) -> None:
        self.requests = requests
        self.own = own
        self.higher_share = higher_share
        self.floor = floor


NOTHING_AHEAD: Final = Ahead()


class Forecast:
    """Predicted latencies of one request if it were admitted now. Seconds, none infinite."""

    __slots__ = (
        "at",
        "breach",
        "e2e_s",
        "features",
        "in_vain",
        "judged",
        "kind",
        "late",
        "load",
        "pool",
        "raw",
        "tpot_kind",
        "tpot_s",
        "ttft_s",
        "vain_features",
        "wait_s",
        "weight",
    )

    def __init__(self, pool: str, at: float, wait_s: float, ttft_s: float, tpot_s: float, e2e_s: float) -> None:
        self.pool = pool
        self.at = at
        """When it was made."""
        self.wait_s = wait_s
        """Wait in the gateway, counted from `at`."""
        self.ttft_s = ttft_s
        """Counted from body complete, so elapsed time is included."""
        self.tpot_s = tpot_s
        self.e2e_s = e2e_s
        self.breach = 0.0
        """P(not good | admitted), 0-1."""
        self.raw = 0.0
        """The same before calibration."""
        self.features = NO_FEATURES
        """Input of its calibration."""
        self.in_vain = 0.0
        """P(refused after waiting | queued), 0-1; 0 if it does not wait."""
        self.vain_features = NO_FEATURES
        """Input of its calibration."""
        self.kind = DIRECT
        """Kind of its TTFT (calibrator.py)."""
        self.tpot_kind = 0
        self.late = NO_CHECKS
        """P(late) for each TTFT objective of its tier that was checked, in their order."""
        self.load = 0.0
        self.weight = 0.0
        """Number of requests that its label represents; 0: calibration does not learn from it."""
        self.judged = False
        """Whether it has its label, or will never get one."""

    def engine_s(self, body_at: float) -> float:
        """Seconds from slot to first token, for a request with body complete at `body_at`."""
        return self.ttft_s - self.wait_s - (self.at - body_at)
