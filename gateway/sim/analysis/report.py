"""Summarises several runs: means over seeds with intervals, and paired differences between policies.

Intervals are percentile bootstraps over seeds. The seeds are resampled with replacement `RESAMPLES` times. The interval
is the middle 95% of the means. Runs of two policies with the same seed have the same arrivals, so both runs are drawn
together. So the noise of the arrivals does not enter a difference. The bootstrap itself has a fixed seed. With one seed
there is no interval, and with fewer than ten it is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.core.results import Outcome
from gateway.sim.run.results import Latency, Result, TierResult

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` seeds, with its interval from `low` to `high`. Both are None with fewer than two seeds."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one policy over all seeds. They are stored by name, latencies as e.g. `ttft_p99_s`; None if no seed
    has a value.
    """

    policy: str
    seeds: tuple[int, ...]
    figures: dict[str, Interval]
    tiers: dict[str, dict[str, Interval | None]]
    lengths: dict[str, dict[str, Interval | None]]
    """Attainment by tier and prompt length."""
    misses: dict[str, dict[str, float]]
    """Mean number of requests per run that were not good, by tier and reason. Outcomes that do not count are in
    parentheses.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences `policy` - `against`, paired by seed, and the ratio of their means."""

    policy: str
    against: str
    figure: str
    difference: Interval
    ratio: Interval | None


FIGURES: dict[str, Callable[[Result], float]] = {
    "goodput": lambda r: r.goodput,
    "weighted": lambda r: r.weighted,
    "token_weighted": lambda r: r.token_weighted,
    "good_per_s": lambda r: r.good_per_s,
    "busy": lambda r: r.busy,
    "slots": lambda r: r.slots,
    "kv": lambda r: r.kv,
    "kv_max": lambda r: r.kv_max,
    "cached": lambda r: r.cached,
    "preemptions": lambda r: r.preemptions,
    "in_system": lambda r: r.in_system,
    "little": lambda r: r.little,
    "requests_per_cpu_s": lambda r: r.requests_per_cpu_s,
    "events_per_cpu_s": lambda r: r.events_per_cpu_s,
}
APART = {outcome.value for outcome in Outcome if not outcome.counts}
COMPARED = ("goodput", "weighted", "token_weighted")

_LATENCIES: dict[str, Callable[[TierResult], Latency]] = {
    "queue": lambda t: t.queue,
    "ttft": lambda t: t.ttft,
    "tpot": lambda t: t.tpot,
    "e2e": lambda t: t.e2e,
}


def bootstrap(statistic: Callable[[Sequence[int]], float], n: int) -> Interval:
    """The bootstrap interval of a statistic over `n` seeds. `statistic`: computes it from the indexes of the drawn
    seeds. Raises ValueError without seeds.
    """
    if n < 1:
        raise ValueError("an interval needs at least one value")
    value = statistic(range(n))
    if n < 2:
        return Interval(value, None, None, n)
    draw = Random(1)
    drawn = sorted(statistic(draw.choices(range(n), k=n)) for _ in range(RESAMPLES))
    tail = (1.0 - LEVEL) / 2.0
    return Interval(value, drawn[int(tail * RESAMPLES)], drawn[math.ceil((1.0 - tail) * RESAMPLES) - 1], n)


def mean(values: Sequence[float]) -> Interval:
    """The mean over the seeds, with its interval. Raises ValueError without values."""
    n = len(values)
    return bootstrap(lambda drawn: math.fsum(map(values.__getitem__, drawn)) / n, n)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The mean of `ours` - `theirs`, paired by seed, with its interval."""
    return mean([a - b for a, b in zip(ours, theirs, strict=True)])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """mean(`ours`) / mean(`theirs`), with seeds drawn together; None if mean(`theirs`) may be 0."""
    if len(ours) != len(theirs) or min(theirs) <= 0.0:
        return None
    return bootstrap(lambda drawn: sum(ours[i] for i in drawn) / sum(theirs[i] for i in drawn), len(theirs))


def summary(results: Sequence[Result]) -> Summary:
    """The summary of all runs of one policy."""
    tiers = results[0].tiers
    return Summary(
        policy=results[0].policy,
        seeds=tuple(r.seed for r in results),
        figures={name: mean([read(r) for r in results]) for name, read in FIGURES.items()},
        tiers={name: _tier([r.tiers[name] for r in results]) for name in tiers},
        lengths={name: _lengths([r.tiers[name] for r in results]) for name in tiers},
        misses={name: _misses([r.tiers[name] for r in results]) for name in tiers},
    )


def differences(results: Sequence[Result], against: Sequence[Result]) -> list[Difference]:
    """Differences between the runs of two policies with the same seeds."""
    theirs = {r.seed: r for r in against}
    pairs = [(r, theirs[r.seed]) for r in results]
    found = []
    for name in COMPARED:
        read = FIGURES[name]
        a, b = [read(ours) for ours, _ in pairs], [read(other) for _, other in pairs]
        found.append(Difference(results[0].policy, against[0].policy, name, difference(a, b), ratio(a, b)))
    return found


def _tier(rows: Sequence[TierResult]) -> dict[str, Interval | None]:
    figures = {
        "offered": _known(float(row.offered) for row in rows),
        "attainment": _known(row.attainment for row in rows),
        "attainment_served": _known(row.attainment_served for row in rows),
        "token_share": _known(row.floor.share for row in rows),
        "token_share_least": _known(row.floor.least for row in rows),
        "token_share_short": _known(row.floor.least_short for row in rows),
        "waited": _known(float(row.waits.waited) for row in rows),
        "in_vain": _known(row.waits.in_vain / row.waits.waited for row in rows if row.waits.waited),
        "newcomers_admitted": _known(row.newcomers.share for row in rows),
        "comebacks": _known(float(row.comebacks.tries) for row in rows),
        "comebacks_admitted": _known(row.comebacks.share for row in rows),
    }
    for name, read in _LATENCIES.items():
        for percent in ("p50", "p95", "p99"):
            figures[f"{name}_{percent}_s"] = _known(getattr(read(row), percent) for row in rows)
    return figures


def _lengths(rows: Sequence[TierResult]) -> dict[str, Interval | None]:
    names = dict.fromkeys(name for row in rows for name in row.lengths)
    return {name: _known(row.lengths[name].attainment for row in rows if name in row.lengths) for name in names}


def _misses(rows: Sequence[TierResult]) -> dict[str, float]:
    each = [
        {**row.misses, **{f"({name})": count for name, count in row.outcomes.items() if name in APART}} for row in rows
    ]
    names = sorted({name for counts in each for name in counts})
    return {name: sum(counts.get(name, 0) for counts in each) / len(rows) for name in names}


def _known(values: Iterable[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
