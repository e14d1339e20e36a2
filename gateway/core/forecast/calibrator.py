"""Calibration of the breach probability of one pool, from the labels of earlier requests."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.logistic import Features, Logistic, Weights, logistic, logit
from gateway.core.forecast.reliability import Scores
from gateway.core.forecast.trust import PageHinkley, TrustMonitor
from gateway.core.stats import Pace

PROBIT: Final = 1.702
"""Scale of the logistic approximation of the normal distribution function: Phi(z) is about logistic(1.702 z)."""
LABELS_PER_S: Final = 50.0
"""At most this many labels are learned per second. More labels would cost time and add no information."""
MAX_SKIPPED: Final = 20
PRIOR_DEVIATION: Final = 0.3
QUEUED_DEVIATION: Final = 0.2
"""Prior deviation of log(latency / forecast) for queued requests. It is smaller than for others, because the sum of
many waits varies less than one wait. A wide prior refuses too many requests near the knee: .2 gives .7 points more
goodput than .3 in the first 40 s.
"""
QUANTILE_STEP: Final = 0.05
BEYOND: Final = 0.32
"""Share of a normal distribution that is more than one deviation from the median."""
MIN_SPREAD: Final = 0.03
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
NEAR_BOUND: Final = 0.6
"""TPOTs above this share of their bound are a kind of their own: they come from full replicas. At a lower TPOT the load
may still grow.
"""
LENGTHS: Final = 3
DIRECT: Final = 2 * LENGTHS
QUEUED: Final = DIRECT + 1
KINDS: Final = QUEUED + 12


def tpot_kind(output_tokens: float, tpot_s: float, bound_s: float) -> int:
    """Kind of a TPOT, an index into `Spread`. It depends on the expected length of the answer, because short answers
    vary more, and on whether the TPOT is near its bound.
    """
    length = 0 if output_tokens < 32.0 else 1 if output_tokens < 128.0 else 2
    return length + LENGTHS if tpot_s > NEAR_BOUND * bound_s else length


def queued_kind(requests_ahead: int) -> int:
    """Kind of a queued request's TTFT, an index into `Spread`: one kind for each power of two of the requests ahead."""
    return min(QUEUED + requests_ahead.bit_length(), KINDS - 1)


class Spread:
    """Distribution of log(latency / forecast) for each kind of latency: the median, and the deviation on each side of
    it. A kind is a group of latencies whose forecasts have similar errors.

    Median and deviations are running estimates of quantiles (Robbins and Monro, 1951). The size of a step does not
    depend on how wrong a forecast was. So the first forecasts of a cold pool, which are far off, have no more weight
    than others. The two sides are separate, because the lower one may be much wider: a short answer may end before any
    prompt slows its steps.
    """

    __slots__ = ("_deviations", "_medians")

    def __init__(self) -> None:
        self._medians = [0.0] * KINDS
        one_side = [PRIOR_DEVIATION] * QUEUED + [QUEUED_DEVIATION] * (KINDS - QUEUED)
        self._deviations = one_side + one_side
        """First the deviation below the median for each kind, then the deviation above it."""

    def add(self, kind: int, error: float) -> None:
        """Learn that a latency was exp(error) times its forecast."""
        off = error - self._medians[kind]
        side = KINDS + kind if off > 0.0 else kind
        deviation = self._deviations[side]
        step = QUANTILE_STEP * 0.5 * (self._deviations[kind] + self._deviations[KINDS + kind])
        self._medians[kind] += step if off > 0.0 else -step
        self._deviations[side] = deviation * math.exp(QUANTILE_STEP * ((abs(off) > deviation) - BEYOND))

    def over(self, kind: int, expected_s: float, bound_s: float) -> float:
        """P(a latency of this kind exceeds `bound_s`), given its forecast `expected_s`, by a two-piece log-normal
        distribution.
        """
        if bound_s <= 0.0:
            return 1.0
        off = math.log(bound_s / max(expected_s, 1e-6)) - self._medians[kind]
        side = KINDS + kind if off > 0.0 else kind
        return logistic(-PROBIT * off / (self._deviations[side] + MIN_SPREAD))


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


UNTAUGHT: Final = Calibrator()
"""A calibrator without any learned error or label, for forecasts from costs alone. Nothing may be added to it."""
