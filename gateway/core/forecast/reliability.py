"""Reliability of forecast probabilities: how well they agreed with the outcomes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.core.snapshot import Reliability

WINDOW: Final = 3000
"""Reliability is computed from this many of the latest labels."""
BINS: Final = 15


def reliability(pairs: Sequence[tuple[float, bool]], bins: int = BINS) -> Reliability:
    """Reliability of (probability, label) pairs, in bins of equal size."""
    n = len(pairs)
    if not n:
        return Reliability(0, 0.0, 0.0, 0.0, 0.0, ())
    ordered = sorted(pairs, key=lambda pair: pair[0])
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
    """The last labels with their probabilities."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: deque[tuple[float, bool]] = deque(maxlen=WINDOW)

    def add(self, probability: float, label: bool) -> None:
        """Count a label and the probability that was forecast for it."""
        self._pairs.append((probability, label))

    def read(self) -> Reliability:
        """Reliability over the window. This sorts all labels, so it is too slow for the request path."""
        return reliability(list(self._pairs))
