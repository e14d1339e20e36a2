"""Requests that finished live against those in the simulator, and the number of live runs that this takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from statistics import fmean, stdev

from loadtests.quantiles import PERCENTILES, interval, off, rank

MIN = 30
"""Requests of a tier that finished, live or simulated, for percentiles of them to be compared."""
OFF_AT_MOST = 0.15
"""The allowed error of p50, p95 and goodput, as a share."""
KNOWN = 0.4 * OFF_AT_MOST
"""The standard error that the mean of the live runs should have, as a share."""
POOLS = 200
TtftS = Mapping[str, list[float]]
"""TTFT (s) of what finished in one run, by tier, in order."""


@dataclass(frozen=True)
class Pair:
    """TTFT (s) of what finished in one test, of all tiers or of one, in order: in each live, each simulated run.

    Compared are the means of each run's p50 and p95. A p99 needs more requests than one run may have, so it is that of
    all live runs together, against those of as many seeds together.
    """

    name: str
    live: list[list[float]]
    runs: list[list[float]]

    def off(self, figure: str) -> float:
        """How far the simulator is off, as a share of what came."""
        return off(*self.values(figure))

    def values(self, figure: str) -> tuple[float, float]:
        """Live and simulated."""
        live = [self._together] if figure == "p99" else self.live
        return fmean(_at(run, figure) for run in live), fmean(self._said(figure))

    def over_seeds(self, figure: str) -> tuple[float, float]:
        """Between what nine seeds in ten say, of the p99 nine in ten sets of seeds; of ten the least and the most."""
        said = sorted(self._said(figure))
        return rank(said, 0.05), rank(said, 0.95)

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the 95% interval of the live p99 meets what nine in ten sets of seeds say; None: too few finished.

        An interval of the mean of all seeds would shrink with their number, until no live run lies in it, and that from
        the lowest to the highest would grow.
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
        """Seeds in the place of the live runs, and of the seeds, each drawn anew: a simulator that is right."""
        return Pair(self.name, draw.choices(self.runs, k=len(self.live)), draw.choices(self.runs, k=len(self.runs)))

    def _said(self, figure: str) -> list[float]:
        return self._p99_of_sets if figure == "p99" else [_at(run, figure) for run in self.runs]

    @cached_property
    def _together(self) -> list[float]:
        """All live runs."""
        return sorted(chain(*self.live))

    @cached_property
    def _p99_of_sets(self) -> list[float]:
        """Of sets of as many seeds as there are live runs; where that is one, of each."""
        draw, of = Random(1), len(self.live)
        sets = [draw.choices(self.runs, k=of) for _ in range(POOLS)] if of > 1 else [[run] for run in self.runs]
        return [_at(sorted(chain(*runs)), "p99") for runs in sets]


def _at(run: list[float], figure: str) -> float:
    """A percentile (s); inf where nothing finished."""
    return rank(run, PERCENTILES[figure]) if run else math.inf


def whole(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Pair:
    """All tiers together."""
    return Pair(title, *([sorted(chain(*run.values())) for run in of] for of in (live, told)))


def by_tier(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Iterator[Pair]:
    """Each tier of which enough finished; none where there is but one tier."""
    for tier in told[0] if len(told[0]) > 1 else ():
        runs = [[run.get(tier, []) for run in of] for of in (live, told)]
        if max(map(len, chain(*runs))) >= MIN:
            yield Pair(f"{title}: {tier}", *runs)


def varies(told: Sequence[TtftS]) -> float:
    """The standard deviation of p50 or p95 of all tiers from seed to seed, whichever is larger, as a share.

    Of the seeds in which something finished; 0 where these are fewer than two.
    """
    runs = [run for run in whole("", [], told).runs if run]
    of_each = [[_at(run, figure) for run in runs] for figure in ("p50", "p95")]
    return max(stdev(values) / fmean(values) for values in of_each) if len(runs) > 1 else 0.0


def runs_needed(varies: float) -> int:
    """Live runs (>= 1) until the standard error of their mean is KNOWN, if they vary as the seeds do."""
    return max(1, math.ceil((varies / KNOWN) ** 2))
