"""Rounds: in each, every target gets the same load, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from loadtests.bench.arithmetic import rotated
from loadtests.bench.section import Raw, Section, number
from loadtests.processes import Cores, raise_file_limit

STREAM_INTERVAL_S = 0.02
UNPINNED = Cores(None, None)
DUE = 2
"""Chunks that each open stream must get while it is watched."""
Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. More rounds make the medians steadier, not the load heavier."""

    rounds: int = 7
    seconds: float = 3.0
    chunks: int = 200
    decisions: int = 20_000
    held_streams: int = 5000
    held_interval_s: float = 5.0


QUICK = Effort(rounds=3, seconds=0.8, chunks=80, decisions=3000, held_streams=500, held_interval_s=1.0)


@dataclass(frozen=True, slots=True)
class Bench:
    """The setup that every measure needs. `tell` gets the current step in words, `step` is called after each load."""

    effort: Effort
    cores: Cores
    tell: Callable[[str], None]
    step: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure, its targets, and the most rounds that it needs."""

    run: Callable[[Bench, Sequence[str]], Section]
    targets: tuple[str, ...]
    max_rounds: int = 100

    def steps(self, effort: Effort, targets: Sequence[str]) -> int:
        """Steps of the progress bar."""
        return len(targets) * min(self.max_rounds, effort.rounds)

    def measured(self, bench: Bench, targets: Sequence[str]) -> Section:
        """Measure these targets."""
        rounds = min(self.max_rounds, bench.effort.rounds)
        return self.run(replace(bench, effort=replace(bench.effort, rounds=rounds)), targets)


def in_rounds(
    bench: Bench,
    targets: Mapping[str, Target],
    section: Section,
    once: Callable[[Target, int], Raw],
    value: Callable[[Raw], float],
) -> Section:
    """Every target once per round, each round in another order. `once`: loads a target, in a round of this number."""
    bench.step(len(section.skipped) * bench.effort.rounds)
    for turn in range(bench.effort.rounds if targets else 0):
        section.begin_round()
        for name in rotated(list(targets), turn):
            bench.tell(f"{section.name}, round {turn + 1}: {name}")
            if name not in section.errors:
                section.take(name, once(targets[name], turn), value)
            bench.step(1)
    return section


def cpu_us(count: str) -> Callable[[Raw], float]:
    """CPU microseconds per unit, counted by a load under `count`."""
    return lambda raw: 1e6 * number(raw, "cpu_s") / number(raw, count)


def open_files(streams: int) -> tuple[int, str]:
    """Open files that processes may have from now on, and why these are too few for so many streams; empty if not."""
    wanted = 2 * streams + 1000  # two descriptors per stream in the proxy, and some to spare
    allowed = raise_file_limit(wanted)
    too_few = f"{streams} streams take {wanted} open files, but only {allowed} are allowed"
    return allowed, too_few if allowed < wanted else ""


def held_faults(raw: Raw, streams: int, events: int) -> list[str]:
    """Faults of streams that were held: all must live, and each must have got its chunks."""
    faults = []
    if raw["alive"] != streams:
        faults.append(f"{raw['alive']} of {streams} streams were alive at the end")
    if number(raw, "fewest_events") < events:
        faults.append(f"a stream got {raw['fewest_events']} chunks where {events} were due")
    return faults
