"""Calibration of the breach probability of one pool, from the labels of earlier requests."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.drift import PageHinkley
from gateway.core.estimators.histograms import Pace
from gateway.core.estimators.logistic import Features, Logistic, Weights, logistic, logit
from gateway.core.estimators.spread import Spread
from gateway.core.forecast.reliability import Scores
from gateway.core.forecast.trust import TrustMonitor

LABELS_PER_S: Final = 50.0
"""At most this many labels are learned per second. More labels would cost time and add no information."""
MAX_SKIPPED: Final = 20
PRIOR_SLOPE: Final = 4.0
"""Prior weight of the first feature, logit / 4. With it, the calibrated probability equals the raw one until labels
change it.
"""
# not Final: mypyc would take it for a constant that was never set
VAIN_PRIOR = (-2.0, PRIOR_SLOPE / 2.0, 0.0, 0.0, 0.0)
"""Prior weights for P(refused after waiting). They lower the raw probability, because few admitted requests wait in
vain. Measured on four engines: with the raw probability as prior, the error is twice as large.
"""
HIGHER_SHARE: Final = 3
"""Index of `higher_share` among the features."""


class Calibration:
    """Calibrates either P(breach) or P(in vain) in one pool, and scores how well the result agreed with labels.

    Each tier has its own regression. Later arrivals overtake requests of less urgent tiers, so for these the same raw
    probability means a higher risk.
    """

    __slots__ = ("_prior", "_tiers", "scores")

    def __init__(self, prior: Weights) -> None:
        self._prior = Logistic(prior)
        self._tiers: dict[str, Logistic] = {}
        self.scores = Scores()

    def of(self, features: Features, tier: str) -> float:
        """The calibrated probability."""
        return logistic((self._tiers.get(tier) or self._prior).score(features))

    def learn(self, features: Features, tier: str, label: bool, weight: float) -> None:
        """Learn the label of a request with these features."""
        learned = self._tiers.get(tier)
        if learned is None:
            learned = self._tiers[tier] = Logistic(self._prior.weights)
        learned.add(features, logistic(learned.score(features)), label, weight)


class Calibrator:
    """Calibrates the forecast probabilities of one pool, and monitors whether P(breach) may be trusted."""

    __slots__ = ("_pace", "_skipped", "breach", "drift", "gate", "in_vain", "spread")

    def __init__(self) -> None:
        self.spread = Spread()
        self._pace = Pace(LABELS_PER_S)
        self._skipped = 0
        self.breach = Calibration((0.0, PRIOR_SLOPE, 0.0, 0.0, 0.0))
        self.in_vain = Calibration(VAIN_PRIOR)
        """P(refused after waiting)."""
        self.drift = PageHinkley()
        self.gate = TrustMonitor()

    def features(self, raw: float, queued: bool, requests_ahead: int, higher_share: float) -> Features:
        """Features of the logistic regression, all scaled to the order of 1. `raw`: probability before calibration,
        0-1.
        """
        x = logit(raw) / PRIOR_SLOPE
        if queued:
            return x, max(0.0, x), math.log1p(requests_ahead) / 4.0, higher_share
        return x, max(0.0, x), 0.0, 0.0

    def weigh(self, now: float) -> float:
        """Weight of the label of a request admitted now: the number of requests that it represents. 0 means that the
        label will not be learned.

        Admission decides whether a label will be learned. Labels of misses come in bursts, so a rate limit on their
        arrival would drop more misses than successes.
        """
        if not self._pace.due(now):
            self._skipped += 1
            return 0.0
        weight, self._skipped = 1.0 + min(MAX_SKIPPED, self._skipped), 0
        return weight
