"""Measures of `--workers 2`: a decider and two relays beside one process, nothing pinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from loadtests.bench.arithmetic import rotated
from loadtests.bench.closedloop import Closed
from loadtests.bench.openloop import Open
from loadtests.bench.rig import Rig, load, rig
from loadtests.bench.rounds import (
    DUE,
    STREAM_INTERVAL_S,
    UNPINNED,
    Bench,
    Measure,
    cpu_us,
    held_faults,
    in_rounds,
    open_files,
)
from loadtests.bench.section import Raw, Section, errors_of, number
from loadtests.bench.streams import Hold
from loadtests.bench.targets import Running

ONE, TWO = "tailgate", "tailgate-2"
"""The gateway in one process, and with two relays."""
HOP_RATE = 1000.0
"""Requests per second at which the hop to the decider is measured."""
CONNECTIONS = {f"relays-{count}": count for count in (8, 32, 1000)}
OPEN = {f"{target}:{count}": (target, count) for target in (ONE, TWO) for count in (100, 500, 2000, 5000)}
"""Target and open streams."""
CHUNKS = {ONE: (ONE, 200), TWO: (TWO, 200), f"{TWO}:400": (TWO, 400)}
"""Target and open streams. Two processes wake twice as often for the same chunks; with 400, each wakes for as many."""
OPEN_INTERVAL_S = 2.0
"""Seconds between two chunks of each of these streams."""


def chunks_open(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per chunk of streams that neither begin nor end."""

    def once(of: tuple[str, int], _: int) -> Raw:
        target = built.targets[of[0]]
        spec = Hold(target.port, target.pid, STREAM_INTERVAL_S, of[1], chunks=10, seconds=bench.effort.seconds)
        return _held(spec)

    names = list(dict.fromkeys(CHUNKS[name][0] for name in targets))
    with rig(names, STREAM_INTERVAL_S, UNPINNED, bench.tell) as built:
        skipped = {name: built.skipped[CHUNKS[name][0]] for name in targets if CHUNKS[name][0] in built.skipped}
        section = Section("chunks-open", "CPU us per chunk of open streams", skipped=skipped)
        running = {name: CHUNKS[name] for name in targets if name not in skipped}
        return in_rounds(bench, running, section, once, cpu_us("events"))


def busiest(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per request of the busiest process: it alone bounds the rate where there are cores for all."""

    def once(target: Running, _: int) -> Raw:
        return load(Closed(target.port, target.pid, seconds=bench.effort.seconds), None)

    with rig(targets, STREAM_INTERVAL_S, UNPINNED, bench.tell) as built:
        section = Section("busiest", "CPU us per request of the busiest process", skipped=built.skipped)
        return in_rounds(
            bench, built.targets, section, once, lambda raw: 1e6 * max(_cpu_s(raw)) / number(raw, "requests")
        )


def balance(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU of the busiest relay over the mean of relays, for some numbers of connections."""

    def once(name: str, _: int) -> Raw:
        target = built.targets[TWO]
        spec = Closed(target.port, target.pid, CONNECTIONS[name], warmup_s=1.0, seconds=bench.effort.seconds)
        return load(spec, None)

    def value(raw: Raw) -> float:
        relays = _cpu_s(raw, "gateway.workers.relay")
        return max(relays) * len(relays) / sum(relays)

    with rig([TWO], STREAM_INTERVAL_S, UNPINNED, bench.tell) as built:
        section = Section("balance", "busiest relay / mean of relays, by CPU", skipped=_skipped(built, targets))
        return in_rounds(bench, {} if section.skipped else {name: name for name in targets}, section, once, value)


def hop(bench: Bench, targets: Sequence[str]) -> Section:
    """The time that the way to the decider and back adds to the p99, at a fixed rate."""

    def once(_: str, turn: int) -> Raw:
        ways = {
            name: load(Open(built.targets[name].port, HOP_RATE, bench.effort.seconds, seed=turn), None)
            for name in rotated([ONE, TWO], turn)
        }
        errors = [f"{name}: {error}" for name, raw in ways.items() for error in errors_of(raw)]
        return {"errors": errors, **ways}

    def value(raw: Raw) -> float:
        one, two = (number(cast(Raw, raw[name]), "p99_s") for name in (ONE, TWO))
        return 1e3 * (two - one)

    with rig([ONE, TWO], STREAM_INTERVAL_S, UNPINNED, bench.tell) as built:
        section = Section("hop", f"ms added to the p99 at {HOP_RATE:.0f} requests/s", skipped=_skipped(built, targets))
        return in_rounds(bench, {} if section.skipped else {name: name for name in targets}, section, once, value)


def ttft(bench: Bench, targets: Sequence[str]) -> Section:
    """TTFT of short answers while many streams are open, each with a chunk every two seconds."""
    section = Section("ttft", f"ms TTFT p50, while as many streams are open, a chunk every {OPEN_INTERVAL_S:g} s")
    chosen = {}
    for name in targets:
        _, too_few = open_files(OPEN[name][1])
        if too_few:
            section.skipped[name] = too_few
        else:
            chosen[name] = OPEN[name]

    def once(of: tuple[str, int], _: int) -> Raw:
        target = built.targets[of[0]]
        seconds = (DUE + 0.2) * OPEN_INTERVAL_S
        return _held(Hold(target.port, target.pid, OPEN_INTERVAL_S, of[1], DUE, seconds, probes=200))

    names = list(dict.fromkeys(target for target, _ in chosen.values()))
    with rig(names, OPEN_INTERVAL_S, UNPINNED, bench.tell) as built:
        section.skipped |= {name: built.skipped[of[0]] for name, of in chosen.items() if of[0] in built.skipped}
        running = {name: of for name, of in chosen.items() if of[0] in built.targets}
        return in_rounds(bench, running, section, once, lambda raw: 1e3 * number(raw, "ttft_p50_s"))


def _held(spec: Hold) -> Raw:
    raw = load(spec, None)
    if not errors_of(raw):
        raw["errors"] = held_faults(raw, spec.streams, spec.chunks)
    return raw


def _cpu_s(raw: Raw, named: str = "") -> list[float]:
    """CPU seconds of the processes whose command line has this text."""
    return [cpu_s for command, cpu_s in cast("list[tuple[str, float]]", raw["processes"]) if named in command]


def _skipped(built: Rig, targets: Sequence[str]) -> dict[str, str]:
    """Nothing of these is measured unless every target of the rig runs."""
    reason = next(iter(built.skipped.values()), None)
    return {} if reason is None else dict.fromkeys(targets, reason)


MEASURES: dict[str, Measure] = {
    "chunks-open": Measure(chunks_open, tuple(CHUNKS)),
    "busiest": Measure(busiest, (ONE, TWO), max_rounds=3),
    "balance": Measure(balance, tuple(CONNECTIONS), max_rounds=3),
    "hop": Measure(hop, (TWO,)),
    "ttft": Measure(ttft, tuple(OPEN), max_rounds=3),
}
