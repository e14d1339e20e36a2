"""An online logistic regression that calibrates probabilities."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.regression import solve

FORGET: Final = 0.9998
"""Each new label multiplies the weight of all earlier labels by this, so about the last 5,000 count."""
BATCH: Final = 32
"""Number of labels for each Newton step."""
PRIOR_INFORMATION: Final = 20.0
"""Permanent weight of the prior, in units of p(1 - p) x feature^2. The prior weighs as much as about 200 labels."""
MAX_LOGIT: Final = 8.0
SIZE: Final = 5
Weights = tuple[float, float, float, float, float]
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


class Logistic:
    """P(label) = logistic(w0 + w1 a + w2 b + w3 c + w4 d), by an online Newton method that forgets labels but never its
    prior.

    A batch of labels y with features x (the first is 1) updates the information matrix L and the weights w:

        L' = f L + (1 - f) R + sum p (1 - p) x x'
        w' = w + L'^-1 [(1 - f) R (w0 - w) + sum (y - p) x]        f: FORGET to the number of labels

    So a weight without new labels returns to the prior w0 instead of drifting (stabilised forgetting, Kulhavy).
    """

    __slots__ = ("_batch", "_information", "_prior", "labels", "weights")

    def __init__(self, prior: Weights) -> None:
        self._prior = prior
        self._information = [[PRIOR_INFORMATION if i == j else 0.0 for j in range(SIZE)] for i in range(SIZE)]
        self._batch: list[tuple[Features, float, float]] = []
        self.weights = prior
        self.labels = 0

    def score(self, features: Features) -> float:
        """The logit of the probability."""
        w0, w1, w2, w3, w4 = self.weights
        a, b, c, d = features
        return w0 + w1 * a + w2 * b + w3 * c + w4 * d

    def add(self, features: Features, p: float, label: bool, weight: float = 1.0) -> None:
        """Learn a label that was forecast with probability `p`. `weight`: 1 / P(the label was sampled)."""
        self.labels += 1
        self._batch.append((features, weight * ((1.0 if label else 0.0) - p), weight * max(p * (1.0 - p), 1e-4)))
        if len(self._batch) == BATCH:
            self._step()

    def _step(self) -> None:
        keep = FORGET**BATCH
        renewed = (1.0 - keep) * PRIOR_INFORMATION
        information = self._information
        gradient, curvature = self._sum_up()
        at = iter(curvature)
        for i in range(SIZE):
            row = information[i]
            for j in range(i, SIZE):
                row[j] = information[j][i] = keep * row[j] + next(at)
            row[i] += renewed
            gradient[i] += renewed * (self._prior[i] - self.weights[i])
        step = solve(information, gradient, list(range(SIZE)))
        w0, w1, w2, w3, w4 = (weight + change for weight, change in zip(self.weights, step, strict=True))
        self.weights = (w0, w1, w2, w3, w4)
        self._batch = []

    def _sum_up(self) -> tuple[list[float], list[float]]:
        """Gradient of the batch, and the upper triangle of its information matrix by rows. The loops are written out
        for speed.
        """
        g1 = ga = gb = gc = gd = 0.0
        h11 = h1a = h1b = h1c = h1d = haa = hab = hac = had = hbb = hbc = hbd = hcc = hcd = hdd = 0.0
        for (a, b, c, d), error, h in self._batch:
            g1 += error
            ga += error * a
            gb += error * b
            ha, hb = h * a, h * b
            h11 += h
            h1a += ha
            h1b += hb
            haa += ha * a
            hab += ha * b
            hbb += hb * b
            if c != 0.0 or d != 0.0:
                gc += error * c
                gd += error * d
                hc, hd = h * c, h * d
                h1c += hc
                h1d += hd
                hac += ha * c
                had += ha * d
                hbc += hb * c
                hbd += hb * d
                hcc += hc * c
                hcd += hc * d
                hdd += hd * d
        return [g1, ga, gb, gc, gd], [h11, h1a, h1b, h1c, h1d, haa, hab, hac, had, hbb, hbc, hbd, hcc, hcd, hdd]
