"""The logistic function, and a logistic regression that calibrates probabilities by their outcomes."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering

MAX_LOGIT: Final = 8.0
"""Probabilities stay 3e-4 from 0 and 1: the labels that count are too few to show that one is nearer."""
SCALE: Final = MAX_LOGIT / 2.0
"""Logits and logarithms are divided by this, so that all features are of the order of 1."""
PRIOR_VARIANCE: Final = 0.2
"""Variance of each weight before any label. One label then changes a probability of .5 by .03 at most."""
DRIFT: Final = 1e-6
"""Variance that each label adds to each weight, since the truth may have changed. So about the last 2,000 count."""
Features = tuple[float, float, float, float]


def logistic(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x)) if x < 40.0 else 1.0
    e = math.exp(x) if x > -40.0 else 0.0
    return e / (1.0 + e)


def logit(p: float) -> float:
    """The inverse of `logistic`, clamped to +-MAX_LOGIT."""
    if p <= 0.0:
        return -MAX_LOGIT
    if p >= 1.0:
        return MAX_LOGIT
    return max(-MAX_LOGIT, min(MAX_LOGIT, math.log(p / (1.0 - p))))


class Calibration(Remembering):
    """P(label) = logistic(w . x), by Newton's method for one label y after another, where p is what was said of it:

        k = C x     g = 1 + p (1 - p) x . k     w += k (y - p) / g     C += DRIFT - p (1 - p) k k' / g

    C is the covariance of the weights w. It begins at `PRIOR_VARIANCE`, and no variance grows above that. Without
    labels, the calibrated probability equals the raw one.
    """

    __slots__ = ("_covariance", "weights")

    def __init__(self) -> None:
        self.weights = [0.0, SCALE, 0.0, 0.0]
        self._covariance = [[PRIOR_VARIANCE if i == j else 0.0 for j in range(4)] for i in range(4)]

    def remembered(self) -> tuple[str, ...]:
        return "weights", "_covariance"

    def of(self, x: Features) -> float:
        """The calibrated probability."""
        w = self.weights
        return logistic(w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3])

    def learn(self, x: Features, label: bool) -> None:
        """Learn the label of a request with these features."""
        p = self.of(x)
        spread = p * (1.0 - p)
        off = (1.0 if label else 0.0) - p
        gain = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] + row[3] * x[3] for row in self._covariance]
        g = 1.0 + spread * (gain[0] * x[0] + gain[1] * x[1] + gain[2] * x[2] + gain[3] * x[3])
        for i, row in enumerate(self._covariance):
            self.weights[i] += gain[i] * off / g
            share = spread * gain[i] / g
            for j in range(4):
                row[j] -= share * gain[j]
            if row[i] < PRIOR_VARIANCE:
                row[i] += DRIFT


def features(p: float, requests_ahead: int, higher_share: float) -> Features:
    """Features of a request: its raw probability (0-1), the requests ahead of it, and the share (0-1) of the drain rate
    that higher tiers take. They will overtake it.
    """
    return 1.0, logit(p) / SCALE, math.log1p(requests_ahead) / SCALE, higher_share
