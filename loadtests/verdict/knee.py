"""The knee: the rate at which the share of misses is what a promise allows, by all steps of a search together.

One step near the knee has a handful of misses, so it tells little. The shares of all steps follow a logistic curve over
the logarithm of the rate; the knee is where the curve of any promise crosses its allowed share. The interval is a block
bootstrap over stretches of time, because requests of one moment miss together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtests.verdict.step import Step

MIN_SLOPE, MAX_SLOPE = 1.0, 200.0
"""The odds of a miss grow by at least 1% for each percent of the rate; beyond 200% a curve is a wall."""
NEAR = 2.0
"""The curve need not hold for rates beyond this factor of the knee: tests of much higher rates end at once."""
DRAWN = 100
INTERVAL = 0.95
HALVINGS = 24

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knee:
    """A rate (requests/s) with its interval. inf: no rate that was asked comes near it."""

    rate_per_s: float
    low_per_s: float
    high_per_s: float


def knee_of(steps: Sequence[Step], about_per_s: float) -> Knee:
    """The knee by these steps, which have the same promises. `about_per_s`: a first guess; the result is near it."""
    near = [step for step in steps if about_per_s / NEAR <= step.rate_per_s <= about_per_s * NEAR] or steps
    rates = np.array([step.rate_per_s for step in near])
    draw = np.random.default_rng(len(steps))
    counts = np.stack([_drawn(step, draw) for step in near], axis=-1)
    lowest = np.full(DRAWN + 1, math.inf)
    for number, judged in enumerate(near[0].judgements):
        requests, misses = counts[number]
        lowest = np.minimum(lowest, crossings(rates, requests, misses, 1.0 - judged.promise.share))
    edge = round((1.0 - INTERVAL) / 2 * DRAWN)
    drawn = np.sort(lowest[1:])
    rate = min(max(float(lowest[0]), about_per_s / NEAR), about_per_s * NEAR)
    return Knee(rate, float(drawn[edge]), float(drawn[-1 - edge]))


def _drawn(step: Step, draw: np.random.Generator) -> Numbers:
    """Requests and misses of a step: as they were, and `DRAWN` times in as many stretches, drawn with replacement.

    Shape: promises, 2, 1 + `DRAWN`.
    """
    found = []
    for one in step.judgements:
        stretches = np.array(one.stretches or [(one.requests, one.misses)], dtype=float)
        chosen = draw.integers(len(stretches), size=(DRAWN, len(stretches)))
        found.append(np.vstack([stretches.sum(axis=0), stretches[chosen].sum(axis=1)]).T)
    return np.array(found)


def crossings(rates: Numbers, requests: Numbers, misses: Numbers, allowed: float) -> Numbers:
    """The rates at which fitted shares of misses are `allowed` (0-1); inf where nothing was missed.

    `rates`: shape steps. `requests`, `misses`: shape curves, steps; there is one result for each curve.
    """
    x = np.log(rates)
    x = x - x.mean()
    low, high = np.full(len(requests), math.log(MIN_SLOPE)), np.full(len(requests), math.log(MAX_SLOPE))
    for _ in range(HALVINGS):  # the likelihood is concave, so its best slope is found by thirds
        third = (high - low) / 3.0
        first, second = low + third, high - third
        is_first = _likelihood(x, requests, misses, first) >= _likelihood(x, requests, misses, second)
        low, high = np.where(is_first, low, first), np.where(is_first, second, high)
    slope = np.exp((low + high) / 2.0)
    level = _level(x, requests, misses, slope)
    wanted = math.log(allowed / (1.0 - allowed))
    with np.errstate(over="ignore"):
        found: Numbers = np.exp(np.log(rates).mean() + (wanted - level) / slope)
    found[~misses.any(axis=1)] = math.inf
    return found


def _likelihood(x: Numbers, requests: Numbers, misses: Numbers, log_slope: Numbers) -> Numbers:
    """The logarithm of the likelihood of each curve with this slope and its best level."""
    slope = np.exp(log_slope)
    odds = _level(x, requests, misses, slope)[:, None] + slope[:, None] * x
    found: Numbers = (misses * odds - requests * np.logaddexp(0.0, odds)).sum(axis=1)
    return found


def _level(x: Numbers, requests: Numbers, misses: Numbers, slope: Numbers) -> Numbers:
    """The level of each curve at which it expects as many misses as there were."""
    most = 30.0 + slope * np.abs(x).max()
    low, high = -most, most
    total = misses.sum(axis=1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        odds = np.clip(middle[:, None] + slope[:, None] * x, -60.0, 60.0)
        is_below = (requests / (1.0 + np.exp(-odds))).sum(axis=1) < total
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    found: Numbers = (low + high) / 2.0
    return found
