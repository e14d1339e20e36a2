"""Two records. `Ahead`: the queued requests that are served before a given one. `Forecast`: its predicted latencies."""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.logistic import Features
from gateway.core.estimators.spread import DIRECT

NO_CHECKS: Final[list[float]] = []
NO_FEATURES: Features = (0.0, 0.0, 0.0, 0.0)  # not Final: mypyc would take it for a constant that was never set


class Ahead:
    """The queued requests that will be served before a given request.

    `requests`: their number, in the tier of the given request and in higher tiers. `own`: their number in its own tier
    only. `higher_share`: arrival rate of higher tiers, divided by the drain rate of the pool (0-1). `floor`: guaranteed
    share (0-1) of service of its own tier. `own_per_s`: requests per second that its own tier has lately sent while
    some waited; None if unknown.
    """

    __slots__ = ("floor", "higher_share", "own", "own_per_s", "requests")

    def __init__(
        self,
        requests: int = 0,
        own: int = 0,
        higher_share: float = 0.0,
        floor: float = 0.0,
        own_per_s: float | None = None,
    ) -> None:
        self.requests = requests
        self.own = own
        self.higher_share = higher_share
        self.floor = floor
        self.own_per_s = own_per_s


NOTHING_AHEAD: Final = Ahead()


class Forecast:
    """Predicted latencies of one request if it were admitted now, in finite seconds."""

    __slots__ = (
        "at",
        "breach",
        "e2e_s",
        "features",
        "is_untried",
        "judged",
        "keeps_step",
        "kind",
        "pool",
        "tpot_kind",
        "tpot_s",
        "ttft_s",
        "wait_s",
    )

    def __init__(self, pool: str, at: float, wait_s: float, ttft_s: float, tpot_s: float, e2e_s: float = 0.0) -> None:
        self.pool = pool
        self.at = at
        """Time at which the forecast was made."""
        self.wait_s = wait_s
        """Wait in the gateway, counted from `at`."""
        self.ttft_s = ttft_s
        """TTFT, counted from body complete: the time that has passed is included."""
        self.tpot_s = tpot_s
        self.e2e_s = e2e_s
        self.breach = 0.0
        """P(an objective is missed | admitted), 0-1, calibrated."""
        self.features = NO_FEATURES
        """Features from which it is calibrated."""
        self.is_untried = False
        """Whether it would wait in a queue from which its tier has sent too few requests to know how long."""
        self.keeps_step = False
        """Whether the step budget of the replica keeps the request's TPOT bound."""
        self.kind = DIRECT
        """Kind of the TTFT: an index into the error distributions that `Spread` has learned."""
        self.tpot_kind = 0
        self.judged = False
        """Whether the forecast has its label, or will never get one."""

    def engine_s(self, body_at: float) -> float:
        """Predicted seconds from getting a slot to the first token. `body_at`: time of body complete."""
        return self.ttft_s - self.wait_s - (self.at - body_at)
