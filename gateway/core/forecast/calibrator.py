"""Calibration of the breach probability of one pool, from the labels of earlier requests."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.calibration import Features, Logistic, Scores, logistic, logit
from gateway.core.forecast.trust import PageHinkley, TrustMonitor
from gateway.core.stats import Pace

PROBIT: Final = 1.702
"""The normal distribution function is about logistic(1.702 z)."""
LABELS_PER_S: Final = 50.0
"""Labels learned per second at most: more would teach nothing, at the same cost each."""
MAX_SKIPPED: Final = 20
KEEP: Final = 0.995
PRIOR_VARIANCE: Final = 0.09
MIN_SPREAD: Final = 0.03
PRIOR_SLOPE: Final = 4.0
"""Prior weight of the first feature, which is logit / 4: the raw probability stands until labels change it."""
HIGHER_SHARE: Final = 3
"""Index of the share of higher tiers among the features."""
DIRECT: Final = 3
QUEUED: Final = 4
KINDS: Final = QUEUED + 12


def tpot_kind(output_tokens: float) -> int:
    """Kind of a TPOT, by the expected length of the answer: short answers scatter more."""
    return 0 if output_tokens < 32.0 else 1 if output_tokens < 128.0 else 2


def queued_kind(requests_ahead: int) -> int:
    """Kind of a TTFT behind `requests_ahead` others, by powers of two."""
    return min(QUEUED + requests_ahead.bit_length(), KINDS - 1)


class Spread:
    """Spread of latencies around their forecasts: standard deviations of the logarithm, by kind."""

    __slots__ = ("_squares", "_weights", "of")

    def __init__(self) -> None:
        self._squares = [10.0 * PRIOR_VARIANCE] * KINDS
        self._weights = [10.0] * KINDS
        self.of = [math.sqrt(PRIOR_VARIANCE)] * KINDS

    def add(self, kind: int, error: float) -> None:
        """A latency was exp(error) times its forecast."""
        error = max(-2.0, min(2.0, error))
        squares = self._squares[kind] = self._squares[kind] * KEEP + error * error
        weight = self._weights[kind] = self._weights[kind] * KEEP + 1.0
        self.of[kind] = math.sqrt(squares / weight) + MIN_SPREAD


def over(expected_s: float, bound_s: float, spread: float) -> float:
    """P(a latency is over `bound_s`), log-normal around `expected_s`."""
    if bound_s <= 0.0:
        return 1.0
    return logistic(PROBIT * math.log(max(expected_s, 1e-6) / bound_s) / spread)


class Calibrator:
    """Calibration of one pool, its reliability, and whether it may be trusted.

    Each tier has a calibration of its own. Forecasts of the most urgent tier come true most often. Requests of the
    least urgent tier are overtaken by later arrivals, so the same raw probability means more there.
    """

    __slots__ = ("_pace", "_skipped", "_tiers", "drift", "gate", "raw_scores", "scores", "spread")

    def __init__(self) -> None:
        self.spread = Spread()
        self._tiers: dict[str, Logistic] = {}
        self._pace = Pace(LABELS_PER_S)
        self._skipped = 0
        self.scores = Scores()
        self.raw_scores = Scores()
        """Scores of the probabilities before calibration."""
        self.drift = PageHinkley()
        self.gate = TrustMonitor()

    def features(self, raw: float, queued: bool, requests_ahead: int, higher_share: float) -> Features:
        """Features of the logistic regression, all scaled to about one."""
        x = logit(raw) / PRIOR_SLOPE
        if queued:
            return x, max(0.0, x), math.log1p(requests_ahead) / 4.0, higher_share
        return x, max(0.0, x), 0.0, 0.0

    def breach(self, features: Features, tier: str) -> float:
        """The calibrated probability."""
        learned = self._tiers.get(tier)
        return logistic(PRIOR_SLOPE * features[0] if learned is None else learned.score(features))

    def weigh(self, now: float) -> float:
        """Number of requests that the label of one admitted now stands for; 0 if it is not learned from.

        The choice is made at admission and not when the label comes: the misses of a burst come all at once.
        """
        if not self._pace.due(now):
            self._skipped += 1
            return 0.0
        weight, self._skipped = 1.0 + min(MAX_SKIPPED, self._skipped), 0
        return weight

    def learn(self, features: Features, tier: str, breached: bool, weight: float) -> None:
        """Learn the label of a request with these features."""
        learned = self._tiers.get(tier)
        if learned is None:
            learned = self._tiers[tier] = Logistic((0.0, PRIOR_SLOPE, 0.0, 0.0, 0.0))
        learned.add(features, logistic(learned.score(features)), breached, weight)
