"""Spread of latencies around their forecasts, by kind of latency."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.logistic import logistic
from gateway.core.estimators.memory import Remembering

PROBIT: Final = 1.702
"""Scale of the logistic approximation of the normal distribution function: Phi(z) is about logistic(1.702 z)."""
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


class Spread(Remembering):
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

    def remembered(self) -> tuple[str, ...]:
        return "_medians", "_deviations"

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
