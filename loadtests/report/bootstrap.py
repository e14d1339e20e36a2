"""Confidence intervals for the figures of a load test.

Requests of one moment are good or bad together, so stretches of time are drawn instead of single requests. This is a
block bootstrap (Künsch, "The jackknife and the bootstrap for general stationary observations", 1989). It needs
stretches that are much longer than the effects of an event. Here an effect lasts as long as an answer, since an answer
shares the queue and the batch with others. Two tests of the same traffic have the same bursts at the same time, so
their stretches are drawn together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.replay.columns import Mask, Rows, percentiles
from loadtests.replay.gaps import BUCKETS, LOW_S, RATIO
from loadtests.report.judged import Judged

DRAWS = 2000
LEVEL = 0.95
BLOCKS = 40
"""Largest number of stretches."""
MIN_BLOCKS = 10
"""With fewer stretches there is no interval: they say too little about the spread."""
FEWER = 3
"""Number of stretches that a draw leaves out. If a draw had as many as the test, intervals of short tests would be too
narrow. Of n stretches, (n - 1) (1.96 / t)^2, about n - 3, give the spread of Student's t at 95%.
"""
MIN_BLOCK_S = 1.0
MEDIANS = 4
"""A stretch is at least this many median answers long, and as long as the p99 of answers."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Range:
    """A figure, and the middle 95% of its values in other draws; NaN without draws."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts by stretch of time, the source of every figure of every draw."""

    count: int
    least_s: float
    """Shortest allowed stretch, in seconds."""

    @property
    def too_few(self) -> bool:
        """Whether the test is too short for intervals."""
        return self.count < MIN_BLOCKS

    def of(self, rows: Rows, from_s: float, until_s: float) -> npt.NDArray[np.int64]:
        """The stretch in which each row was due."""
        share = (rows["due_s"] - from_s) / max(until_s - from_s, 1e-9)
        found: npt.NDArray[np.int64] = np.clip((share * self.count).astype(np.int64), 0, self.count - 1)
        return found

    def draws(self, seed: int) -> npt.NDArray[np.int64]:
        """Number of copies of each stretch in each draw. The first draw is the real test; with too few stretches it is
        the only one.
        """
        if self.too_few:
            return np.ones((1, self.count), dtype=np.int64)
        drawn = np.random.default_rng(seed).multinomial(self.count - FEWER, [1 / self.count] * self.count, size=DRAWS)
        whole: npt.NDArray[np.int64] = np.vstack([np.ones((1, self.count), dtype=np.int64), drawn])
        return whole


def blocks_for(seconds: float, *tests: Judged) -> Blocks:
    """The stretches of a test. Their length follows from the slowest of the tests."""
    least_s = MIN_BLOCK_S
    for judged in tests:
        p50, p99 = percentiles(latency(judged, "e2e"), (0.5, 0.99))
        least_s = max(least_s, MEDIANS * (p50 or 0.0), p99 or 0.0)
    return Blocks(max(1, min(BLOCKS, int(seconds / least_s))), least_s)


def shares(blocks: Blocks, block_of: npt.NDArray[np.int64], part: Mask, whole: Mask, draws: Values) -> Values:
    """The share of `part` in `whole` for each draw; NaN if `whole` is 0."""
    parts = np.bincount(block_of[part], minlength=blocks.count)
    wholes = np.bincount(block_of[whole], minlength=blocks.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = (draws @ parts) / (draws @ wholes)
    return found


def quantiles(blocks: Blocks, block_of: npt.NDArray[np.int64], values: Values, q: float, draws: Values) -> Values:
    """A quantile for each draw, exact to 1%. NaN is left out; values below LOW_S count as LOW_S."""
    known = ~np.isnan(values)
    bucket = np.clip(np.log(np.maximum(values[known], LOW_S) / LOW_S) / np.log(RATIO), 0, BUCKETS - 1).astype(np.int64)
    counts = np.zeros((blocks.count, BUCKETS))
    np.add.at(counts, (block_of[known], bucket), 1.0)
    reached = np.cumsum(draws @ counts, axis=1)
    total = reached[:, -1:]
    first = np.argmax(reached >= np.ceil(q * total) - 1e-9, axis=1)
    found: Values = np.where(total[:, 0] > 0, LOW_S * RATIO ** (first + 0.5), np.nan)
    return found


def ranged(of_draws: Values) -> Range | None:
    """The first draw with the interval of the others; None if the figure does not exist."""
    value, drawn = float(of_draws[0]), of_draws[1:]
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(value):
        return None
    if not len(drawn):
        return Range(value, np.nan, np.nan)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Range(value, float(low), float(high))


def latency(judged: Judged, metric: str) -> Values:
    """Values of answered requests; NaN for others."""
    found: Values = np.where(judged.finished, judged.rows[f"{metric}_s"].astype(np.float64), np.nan)
    return found
