"""The logistic function."""

from __future__ import annotations

import math


def logistic(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x)) if x < 40.0 else 1.0
    e = math.exp(x) if x > -40.0 else 0.0
    return e / (1.0 + e)
