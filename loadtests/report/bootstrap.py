"""Intervals around the figures of a load test: what chance could have made of it.

Requests of one moment share their fate, so single requests must not be drawn anew: what is drawn is stretches of time
(a block bootstrap; Künsch, "The jackknife and the bootstrap for general stationary observations", 1989). Two tests of
the same traffic had the same bursts at the same time, so their stretches are drawn together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.replay.columns import Mask, Rows
from loadtests.replay.gaps import BUCKETS, LOW_S, RATIO
from loadtests.report.judged import Judged

DRAWS = 2000
LEVEL = 0.95
BLOCKS = 40
LEAST_BLOCK_S = 1.0
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and the middle 95% of what other draws would have made of it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts by stretch of time, from which every figure of every draw is made."""

    count: int

    def of(self, rows: Rows, from_s: float, until_s: float) -> npt.NDArray[np.int64]:
        """The stretch that each row was due in."""
        share = (rows["due_s"] - from_s) / max(until_s - from_s, 1e-9)
        found: npt.NDArray[np.int64] = np.clip((share * self.count).astype(np.int64), 0, self.count - 1)
        return found

    def draws(self, seed: int) -> npt.NDArray[np.int64]:
        """How often each stretch stands in each draw; the first draw is what happened."""
        drawn = np.random.default_rng(seed).multinomial(self.count, [1 / self.count] * self.count, size=DRAWS)
        whole: npt.NDArray[np.int64] = np.vstack([np.ones((1, self.count), dtype=np.int64), drawn])
        return whole


def blocks_for(seconds: float) -> Blocks:
    """As many as there are, of at least a second each."""
    return Blocks(max(2, min(BLOCKS, int(seconds / LEAST_BLOCK_S))))


def shares(blocks: Blocks, block_of: npt.NDArray[np.int64], part: Mask, whole: Mask, draws: Values) -> Values:
    """Of each draw: `part` over `whole`; not a number where there is none."""
    parts = np.bincount(block_of[part], minlength=blocks.count)
    wholes = np.bincount(block_of[whole], minlength=blocks.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = (draws @ parts) / (draws @ wholes)
    return found


def quantiles(blocks: Blocks, block_of: npt.NDArray[np.int64], values: Values, q: float, draws: Values) -> Values:
    """Of each draw: a quantile of what is a number, within 1%."""
    known = ~np.isnan(values) & (values > 0)
    bucket = np.clip(np.log(values[known] / LOW_S) / np.log(RATIO), 0, BUCKETS - 1).astype(np.int64)
    counts = np.zeros((blocks.count, BUCKETS))
    np.add.at(counts, (block_of[known], bucket), 1.0)
    reached = np.cumsum(draws @ counts, axis=1)
    total = reached[:, -1:]
    first = np.argmax(reached >= np.ceil(q * total) - 1e-9, axis=1)
    found: Values = np.where(total[:, 0] > 0, LOW_S * RATIO ** (first + 0.5), np.nan)
    return found


def ranged(of_draws: Values) -> Range | None:
    """The first draw with the interval of the others; None where the figure does not exist."""
    value, drawn = float(of_draws[0]), of_draws[1:]
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(value) or not len(drawn):
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Range(value, float(low), float(high))


def latency(judged: Judged, metric: str) -> Values:
    """Of what was answered; the rest is not a number."""
    found: Values = np.where(judged.finished, judged.rows[f"{metric}_s"].astype(np.float64), np.nan)
    return found
