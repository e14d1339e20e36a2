"""Compares two load tests: each figure, the difference, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from loadtests.replay.columns import Mask
from loadtests.replay.request import Outcome
from loadtests.report.bootstrap import (
    MIN_BLOCKS,
    Blocks,
    Range,
    Values,
    blocks_for,
    latency,
    quantiles,
    ranged,
    shares,
)
from loadtests.report.judged import ERRORS
from loadtests.report.tested import Tested
from loadtests.report.trust import apart
from loadtests.report.words import share, time

LATENCIES = (("ttft", 0.5), ("ttft", 0.95), ("ttft", 0.99), ("tpot", 0.5), ("tpot", 0.99), ("e2e", 0.5), ("e2e", 0.99))
SAME = 0.02
"""Largest difference without a note: of two loads, relative, or of two shares of cached tokens."""
GOODPUT = "goodput"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both tests. `change` is a difference for shares, and B / A for latencies."""

    name: str
    a: Range | None
    b: Range | None
    change: Range | None
    is_ratio: bool
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `even` if the interval contains no change; empty without an interval."""
        if self.change is None or np.isnan(self.change.low):
            return ""
        none = 1.0 if self.is_ratio else 0.0
        if self.change.low <= none <= self.change.high:
            return "even"
        return "better" if (self.change.value > none) == self.more_is_better else "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two load tests."""

    a: Tested
    b: Tested
    paired: bool
    """Whether both were sent the same requests at the same times."""
    rows: list[Row]
    notes: list[str]
    withheld: str
    """Why there is no verdict; empty where there is one."""

    @property
    def trusted(self) -> bool:
        """Whether the generator kept up in both."""
        return all(one.report["trusted"] for one in (self.a, self.b))


def compare(a: Tested, b: Tested) -> Comparison:
    """Compare test B with test A."""
    paired = _paired(a, b)
    blocks = blocks_for(min(a.report["seconds"], b.report["seconds"]), a.judged, b.judged)
    draws = [blocks.draws(1), blocks.draws(1 if paired else 2)]
    rows = _rows(a, b, blocks, [draw.astype(np.float64) for draw in draws])
    wrong, differ = _not_comparable(a, b), _held_apart(a, b)
    if wrong or differ:
        rows = [replace(row, change=None) if wrong or row.name.startswith(GOODPUT) else row for row in rows]
    return Comparison(a, b, paired, rows, _notes(a, b, paired), wrong or differ or _too_short(blocks))


def _not_comparable(a: Tested, b: Tested) -> str:
    """Problems of one test that affect all its figures."""
    late = [one.name for one in (a, b) if not one.report["trusted"]]
    if late:
        return f"the generator fell behind in {' and '.join(late)}, so that no figure of it can be trusted"
    if a.report["about"]["mode"] != b.report["about"]["mode"]:
        return "one is a closed loop, whose latencies leave out the waiting"
    return ""


def _held_apart(a: Tested, b: Tested) -> str:
    """Why different objectives forbid a verdict; empty if both tests have the same."""
    if a.held is b.held:
        return ""
    ours, theirs = a.slos(), b.slos()
    differ = [tier for tier in sorted({*ours, *theirs}) if ours.get(tier) != theirs.get(tier)]
    if not differ:
        return ""
    return (
        f"they were held against different objectives (of tier {', '.join(differ)}), so that good is not the same in "
        "both. Give --policy to hold them against the same"
    )


def _too_short(blocks: Blocks) -> str:
    if not blocks.too_few:
        return ""
    return (
        f"too short to judge. With answers of this length, an interval needs {MIN_BLOCKS} stretches of "
        f"{time(blocks.least_s)}, {time(MIN_BLOCKS * blocks.least_s)} in all"
    )


def _paired(a: Tested, b: Tested) -> bool:
    ours, theirs = a.judged.rows, b.judged.rows
    if len(ours) != len(theirs):
        return False
    known = {tier: number for number, tier in enumerate(b.run.tiers)}
    tiers = np.array([known.get(tier, -1) for tier in a.run.tiers])
    return bool(np.array_equal(tiers[ours["tier"]], theirs["tier"])) and all(
        bool(np.array_equal(ours[name], theirs[name])) for name in ("due_s", "prompt_tokens", "output_wanted")
    )


def _rows(a: Tested, b: Tested, blocks: Blocks, draws: list[Values]) -> list[Row]:
    both = list(zip((a, b), draws, strict=True))
    of = [blocks.of(one.judged.rows, one.run.about.warmup_s, one.run.played.sending_s) for one in (a, b)]
    found = []

    def share(name: str, masks: Callable[[Tested], tuple[Mask, Mask]], more_is_better: bool) -> None:
        values = []
        for (one, drawn), block_of in zip(both, of, strict=True):
            part, whole = masks(one)
            values.append(shares(blocks, block_of, part, whole, drawn))
        found.append(_row(name, values, False, more_is_better))

    share(GOODPUT, lambda one: (one.judged.good & one.judged.counted, one.judged.counted), True)
    names = [name for name in a.report["tiers"] if name in b.report["tiers"]]
    for tier in names if len(names) > 1 else ():
        share(f"{GOODPUT} of {tier}", partial(_of_tier, tier=tier), True)
    share("answered", lambda one: (one.judged.finished, one.judged.counted), True)
    share("shed", lambda one: (_outcomes(one, (Outcome.SHED,)), one.judged.counted), False)
    share("failed", lambda one: (_outcomes(one, tuple(ERRORS)), one.judged.counted), False)
    for metric, q in LATENCIES:
        values = [
            quantiles(blocks, of[n], latency(one.judged, metric), q, drawn) for n, (one, drawn) in enumerate(both)
        ]
        label = metric if metric == "e2e" else metric.upper()
        found.append(_row(f"{label} p{100 * q:g}", values, True, False))
    return [row for row in found if row.a is not None or row.b is not None]


def _row(name: str, values: list[Values], is_ratio: bool, more_is_better: bool) -> Row:
    ours, theirs = values
    with np.errstate(invalid="ignore", divide="ignore"):
        change = theirs / ours if is_ratio else theirs - ours
    return Row(name, ranged(ours), ranged(theirs), ranged(change), is_ratio, more_is_better)


def _of_tier(one: Tested, tier: str) -> tuple[Mask, Mask]:
    own = one.judged.rows["tier"] == one.run.tiers.index(tier)
    return one.judged.good & own & one.judged.counted, one.judged.counted & own


def _outcomes(one: Tested, outcomes: tuple[Outcome, ...]) -> Any:
    return np.isin(one.judged.rows["outcome"], outcomes)


def _notes(a: Tested, b: Tested, paired: bool) -> list[str]:
    """Notes on facts that weaken the comparison."""
    found = []
    ours, theirs = a.report["totals"]["offered_per_s"], b.report["totals"]["offered_per_s"]
    if None not in (ours, theirs) and abs(theirs / ours - 1.0) > SAME:
        found.append(f"Not the same load: {ours:.4g} and {theirs:.4g} requests/s were offered.")
    elif not paired:
        found.append("Not the same requests (another seed, or other traffic), so intervals are wider.")
    for name, what in (("retries", "retries of clients"), ("length", "--length")):
        said = [one.report["about"][name] for one in (a, b)]
        if said[0] != said[1]:
            found.append(f"Different requests: {what} {said[0]} and {said[1]}, which makes a difference by itself.")
    cached = [one.report["totals"]["cached"] for one in (a, b)]
    if a.run.about.seed == b.run.about.seed and None not in cached and abs(cached[1] - cached[0]) > SAME:
        found.append(
            f"Prefix caches held {share(cached[0])} and {share(cached[1])} of the prompt tokens. Equal seeds send "
            "equal prompts: if the replicas were not restarted before each test, caches made part of the difference."
        )
    for one in (a, b):
        if not one.report["complete"]:
            found.append(f"{one.name} was stopped before its end.")
        if left_out := apart(one.report):
            found.append(f"{one.name}: {left_out}")
    found.append("Latencies are those of answered requests: a target that refuses more has fewer late answers.")
    return found


def headline(found: Comparison) -> str:
    """The verdict on goodput, in one sentence."""
    if found.withheld:
        return f"No verdict: {found.withheld}."
    goodput = next((row for row in found.rows if row.name == GOODPUT), None)
    if goodput is None or goodput.change is None:
        return "Nothing to judge: one of them has no counted request."
    points = (
        f"{100 * goodput.change.value:+.1f} points of goodput "
        f"({100 * goodput.change.low:+.1f} to {100 * goodput.change.high:+.1f})"
    )
    match goodput.verdict:
        case "better":
            return f"{found.b.name} is better than {found.a.name}: {points}."
        case "worse":
            return f"{found.b.name} is worse than {found.a.name}: {points}."
        case _:
            return f"No difference in goodput beyond chance: {points}."
