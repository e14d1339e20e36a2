"""What finished live against what finished in the simulator, and how many live runs that takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from statistics import fmean, stdev

from loadtests.quantiles import PERCENTILES, interval, off, rank

LEAST = 30
"""Requests of a tier that finished, live or simulated, for percentiles of them to be compared."""
KNOWN = 0.06
"""The standard error that the mean of the live runs should have, as a share: two fifths of what p50 and p95 may be off
by. A simulator that is right is that far off by chance one time in eighty."""
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
        return fmean(rank(run, PERCENTILES[figure]) for run in live), fmean(self._said(figure))

    def over_seeds(self, figure: str) -> tuple[float, float]:
        """Between what 19 seeds in 20 say, of the p99 19 in 20 sets of seeds."""
        return _most_of(self._said(figure))

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the 95% interval of the live p99 meets that of the seeds; None: too few finished.

        An interval of the mean of all seeds would shrink with their number, until no live run lies in it, and that from
        the lowest to the highest would grow. Requests of one run wait in the same queues, so those of several runs say
        less than as many that know nothing of each other: theirs is the interval of sets of runs, as that of the seeds
        is, unless it is the narrower one.
        """
        low, high = interval(self._together, PERCENTILES["p99"])
        if math.isinf(high):
            return None
        bottom, top = _most_of(_p99_of_sets(self.live, len(self.live)))
        least, most = self.over_seeds("p99")
        return min(low, bottom) <= most and least <= max(high, top)

    def _said(self, figure: str) -> list[float]:
        return self._p99_of_seeds if figure == "p99" else [rank(run, PERCENTILES[figure]) for run in self.runs]

    @cached_property
    def _together(self) -> list[float]:
        """All live runs."""
        return sorted(chain(*self.live))

    @cached_property
    def _p99_of_seeds(self) -> list[float]:
        return _p99_of_sets(self.runs, len(self.live))


def _p99_of_sets(runs: list[list[float]], size: int) -> list[float]:
    """Of sets of so many of the runs, each drawn anew from all of them; where that is one, of each run."""
    draw = Random(1)
    sets = [draw.choices(runs, k=size) for _ in range(POOLS)] if size > 1 else [[run] for run in runs]
    return [rank(sorted(chain(*of)), PERCENTILES["p99"]) for of in sets]


def _most_of(values: list[float]) -> tuple[float, float]:
    """What 19 in 20 of them lie between; of few the least and the most."""
    ordered = sorted(values)
    return rank(ordered, 0.025), rank(ordered, 0.975)


def whole(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Pair:
    """All tiers together."""
    return Pair(title, *([sorted(chain(*run.values())) for run in of] for of in (live, told)))


def by_tier(title: str, live: Sequence[TtftS], told: Sequence[TtftS]) -> Iterator[Pair]:
    """Each tier of which enough finished; none where there is but one tier."""
    for tier in told[0] if len(told[0]) > 1 else ():
        runs = [[run.get(tier, []) for run in of] for of in (live, told)]
        if max(map(len, chain(*runs))) >= LEAST:
            never = [math.inf]  # where nothing of it finished
            yield Pair(f"{title}: {tier}", *([run or never for run in of] for of in runs))


def varies(told: Sequence[TtftS]) -> float:
    """The standard deviation of p50 or p95 of all tiers from seed to seed, whichever is larger, as a share."""
    runs = whole("", [], told).runs
    of_each = [[rank(run, PERCENTILES[figure]) for run in runs] for figure in ("p50", "p95")]
    return max(stdev(values) / fmean(values) for values in of_each)


def runs_needed(varies: float) -> int:
    """Live runs (>= 1) until the standard error of their mean is KNOWN, if they vary as the seeds do."""
    return max(1, math.ceil((varies / KNOWN) ** 2))
