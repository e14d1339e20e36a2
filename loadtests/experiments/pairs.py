"""Compares finished requests, live and simulated, and finds the number of live runs that this needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from statistics import fmean, stdev

from gateway.sim.analysis.report import Interval
from loadtests.quantiles import PERCENTILES, interval, off, rank

MIN = 30
"""The percentiles of a tier are compared if it has at least this many finished requests, live and simulated."""
OFF_AT_MOST = 0.15
"""The allowed error of p50, p95 and goodput, as a share."""
KNOWN = 0.4 * OFF_AT_MOST
"""The standard error that the mean of the live runs should have, as a share."""
POOLS = 200
TtftS = Mapping[str, list[float]]
"""TTFT (s) of the finished requests of one run, by tier, sorted."""


@dataclass(frozen=True)
class Pair:
    """TTFT (s) of the finished requests of one test, for all tiers or one, sorted, by live run and by simulated run.

    The means over runs of p50 and p95 are compared. One run may have too few requests for a p99. So the p99 of all live
    runs together is compared with the p99 of equally many seeds together.
    """

    name: str
    live: list[list[float]]
    runs: list[list[float]]

    def off(self, figure: str) -> float:
        """Error of the simulator, relative to the live figure."""
        return off(*self.values(figure))

    def off_interval(self, figure: str) -> Interval:
        """The error with a 95% interval, if the live runs vary as the seeds do; none if that is not known."""
        error, said = self.off(figure), [value for value in self._said(figure) if math.isfinite(value)]
        if len(said) < 2:
            return Interval(error, None, None, 1)
        around = 1.96 * stdev(said) / fmean(said) / math.sqrt(len(self.live))
        return Interval(error, max(0.0, error - around), error + around, 1)

    def values(self, figure: str) -> tuple[float, float]:
        """The figure, live and simulated."""
        live = [self._together] if figure == "p99" else self.live
        return fmean(_at(run, figure) for run in live), fmean(self._said(figure))

    def over_seeds(self, figure: str) -> tuple[float, float]:
        """The range of the figure in nine of ten seeds; for the p99, in nine of ten sets of seeds. With ten seeds, it
        goes from their minimum to their maximum.
        """
        said = sorted(self._said(figure))
        return rank(said, 0.05), rank(said, 0.95)

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the 95% interval of the live p99 overlaps the range of nine in ten sets of seeds; None: too few
        finished requests.

        The interval of the mean of all seeds would shrink with their number, until no live run lies in it. The range
        from the lowest to the highest seed would grow.
        """
        if not self._together:
            return None
        low, high = interval(self._together, PERCENTILES["p99"])
        least, most = self.over_seeds("p99")
        return None if math.isinf(high) else low <= most and least <= high

    @property
    def missed(self) -> bool:
        """Whether p50, p95 or p99 is too far off."""
        return max(self.off("p50"), self.off("p95")) > OFF_AT_MOST or self.p99_overlaps is False

    def by_chance(self, draw: Random) -> Pair:
        """The same comparison for a correct simulator: seeds, drawn anew, stand for the live runs and for the seeds."""
        return Pair(self.name, draw.choices(self.runs, k=len(self.live)), draw.choices(self.runs, k=len(self.runs)))

    def _said(self, figure: str) -> list[float]:
        return self._p99_of_sets if figure == "p99" else [_at(run, figure) for run in self.runs]

    @cached_property
    def _together(self) -> list[float]:
        """TTFT of all live runs together, sorted."""
        return sorted(chain(*self.live))

    @cached_property
    def _p99_of_sets(self) -> list[float]:
        """The p99 of sets of seeds, each with as many seeds as there are live runs; of single seeds if there is one
        run."""
        draw, of = Random(1), len(self.live)
        sets = [draw.choices(self.runs, k=of) for _ in range(POOLS)] if of > 1 else [[run] for run in self.runs]
        return [_at(sorted(chain(*runs)), "p99") for runs in sets]


def _at(run: list[float], figure: str) -> float:
    """A percentile (s); inf if nothing finished."""
    return rank(run, PERCENTILES[figure]) if run else math.inf


def whole(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Pair:
    """All tiers together."""
    return Pair(title, *([sorted(chain(*run.values())) for run in of] for of in (live, told)))


def by_tier(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Iterator[Pair]:
    """Each tier with enough finished requests; none if there is only one tier."""
    for tier in told[0] if len(told[0]) > 1 else ():
        runs = [[run.get(tier, []) for run in of] for of in (live, told)]
        if max(map(len, chain(*runs))) >= MIN:
            yield Pair(f"{title}: {tier}", *runs)


def varies(told: Sequence[TtftS]) -> float:
    """The relative standard deviation between seeds of the p50 or p95 of all tiers, whichever is larger.

    Seeds without finished requests are left out; 0 if fewer than two are left.
    """
    runs = [run for run in whole("", [], told).runs if run]
    of_each = [[_at(run, figure) for run in runs] for figure in ("p50", "p95")]
    return max(stdev(values) / fmean(values) for values in of_each) if len(runs) > 1 else 0.0


def runs_needed(varies: float) -> int:
    """Live runs (>= 1) that bring the standard error of their mean to KNOWN, if they vary as the seeds do."""
    return max(1, math.ceil((varies / KNOWN) ** 2))
