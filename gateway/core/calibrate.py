"""Probabilities that mean what they say: an online logistic regression, and how reliable it has been."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

FORGET = 0.9995
"""Weight that a label keeps when the next one comes: about the last 2,000 count."""
PRIOR_VARIANCE = 0.25
MAX_VARIANCE = 25.0
"""Forgetting stops here: what nobody tests must not become arbitrary (covariance wind-up)."""
WINDOW = 3000
"""Labels that reliability is read from."""
BINS = 15


def logistic(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x)) if x < 40.0 else 1.0
    e = math.exp(x) if x > -40.0 else 0.0
    return e / (1.0 + e)


class Logistic:
    """P(label) = logistic(weights x features), by one Newton step per label (recursive IRLS) with forgetting.

    `mean` is what the weights are before any label.
    """

    __slots__ = ("_covariance", "labels", "size", "weights")

    def __init__(self, mean: Sequence[float]) -> None:
        self.size = len(mean)
        self.weights = list(mean)
        n = self.size
        self._covariance = [[PRIOR_VARIANCE if i == j else 0.0 for j in range(n)] for i in range(n)]
        self.labels = 0

    def read(self, features: Sequence[float]) -> float:
        """The probability, 0-1."""
        total = 0.0
        for i, weight in enumerate(self.weights):
            total += weight * features[i]
        return logistic(total)

    def add(self, features: Sequence[float], label: bool, weight: float = 1.0) -> None:
        """Learn one label; `weight` is one over the chance it had of being seen."""
        self.labels += 1
        p = self.read(features)
        covariance, n = self._covariance, self.size
        gain = [0.0] * n
        spread = 0.0
        for i, row in enumerate(covariance):
            total = 0.0
            for j in range(n):
                total += row[j] * features[j]
            gain[i] = total
            spread += features[i] * total
        curvature = max(weight * p * (1.0 - p), 1e-4)
        scale = curvature / (FORGET + curvature * spread)
        error = weight * ((1.0 if label else 0.0) - p) / (FORGET + curvature * spread)
        grow = 1.0 / FORGET if max(covariance[i][i] for i in range(n)) < MAX_VARIANCE else 1.0
        weights = self.weights
        for i, row in enumerate(covariance):
            weights[i] += gain[i] * error
            cut = gain[i] * scale
            for j in range(n):
                row[j] = (row[j] - cut * gain[j]) * grow


@dataclass(frozen=True, slots=True)
class Reliability:
    """How good the probabilities of the last labels were. `bins`: (labels, mean probability, share that came true)."""

    labels: int
    base_rate: float
    ece: float
    """Mean |probability - share| over bins of equal mass."""
    brier: float
    skill: float
    """1 - Brier score / Brier score of always saying the base rate; 0 where that is 0."""
    bins: tuple[tuple[int, float, float], ...]


def reliability(pairs: Sequence[tuple[float, bool]], bins: int = BINS) -> Reliability:
    """Of (probability, label) pairs, in bins of equal mass."""
    n = len(pairs)
    if not n:
        return Reliability(0, 0.0, 0.0, 0.0, 0.0, ())
    ordered = sorted(pairs)
    rows = []
    ece = 0.0
    for b in range(bins):
        chunk = ordered[b * n // bins : (b + 1) * n // bins]
        if chunk:
            mean = sum(p for p, _ in chunk) / len(chunk)
            share = sum(y for _, y in chunk) / len(chunk)
            ece += abs(mean - share) * len(chunk) / n
            rows.append((len(chunk), mean, share))
    base = sum(y for _, y in pairs) / n
    brier = sum((p - y) ** 2 for p, y in pairs) / n
    reference = base * (1.0 - base)
    return Reliability(n, base, ece, brier, 1.0 - brier / reference if reference else 0.0, tuple(rows))


class Scores:
    """The last labels with the probability that was given for each."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: deque[tuple[float, bool]] = deque(maxlen=WINDOW)

    def add(self, probability: float, label: bool) -> None:
        """What was said, and what came."""
        self._pairs.append((probability, label))

    def read(self) -> Reliability:
        """Over the window. Sorts it: for people, not for requests."""
        return reliability(list(self._pairs))
