"""Figures over the cells of an experiment: their mean, the worst with its interval, and the number that falls short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gateway.sim.analysis.report import Interval, mean
from loadtests.experiments.findings import bare
from loadtests.experiments.targets import Side, Target

MEAN, WORST, SHORT = "mean_", "worst_", "short_"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The value of one cell, and what is wanted of it."""

    found: Interval
    wanted: Target

    @property
    def margin(self) -> float:
        """The value's distance to the limit; below 0 if it is missed."""
        over = self.found.value - self.wanted.limit
        return over if self.wanted.side is Side.AT_LEAST else -over

    @property
    def short(self) -> bool:
        """Whether the limit is missed by more than chance explains: the whole interval is on the wrong side of it."""
        found = self.found
        near = found.high if self.wanted.side is Side.AT_LEAST else found.low
        return not self.wanted.met(found if near is None else bare(near, found.n))


def over_cells(name: str, cells: Sequence[Judgement]) -> dict[str, Interval]:
    """The three figures of this name, of which SHORT counts cells; none without cells. A ratio to nothing is left out:
    its value is infinite."""
    cells = [cell for cell in cells if math.isfinite(cell.found.value)]
    if not cells:
        return {}
    return {
        MEAN + name: bare(fmean(cell.found.value for cell in cells), len(cells)),
        WORST + name: min(cells, key=lambda cell: cell.margin).found,
        SHORT + name: bare(sum(cell.short for cell in cells), len(cells)),
    }


def mean_of_cells(cells: Sequence[Sequence[float]]) -> Interval:
    """The mean over cells, each given by seed. Its interval is over the seeds, which are drawn for all cells alike."""
    return mean([fmean(of_seed) for of_seed in zip(*cells, strict=True)])
