"""The measures: each is a few rounds in which every target gets the same load, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.bench import relays
from loadtests.bench.arithmetic import rotated
from loadtests.bench.closedloop import Closed
from loadtests.bench.decisions import Decisions
from loadtests.bench.fleet import Fleet
from loadtests.bench.openloop import Open
from loadtests.bench.outside import Outside
from loadtests.bench.rig import load, rig, serving
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
from loadtests.bench.streams import Hold, Streams
from loadtests.bench.targets import Running
from loadtests.peers.install import Skipped, wrk

FLEETS = {
    f"decisions-{replicas}{'-warm' if warm else ''}": Decisions(replicas, warm=warm)
    for warm in (False, True)
    for replicas in (16, 1000)
}
CHANGED = {"replicas-100": 100, "replicas-1000": 1000}
OPEN = {"few": 0.04, "many": 1.0, "most": 4.0}
"""Streams open at a time, as a multiple of `Effort.held_streams`."""
EVENTS_PER_INTERVAL = 2.5
"""Events of all streams per `held_interval_s`, as a multiple of `Effort.held_streams`."""


def requests(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per non-streamed request over 32 connections that never pause."""

    def once(target: Running, _: int) -> Raw:
        return load(Closed(target.port, target.pid, seconds=bench.effort.seconds), bench.cores.load)

    with rig(targets, STREAM_INTERVAL_S, bench.cores, bench.tell) as built:
        section = Section("requests", "CPU us per request", skipped=built.skipped)
        return in_rounds(bench, built.targets, section, once, cpu_us("requests"))


def records(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per request as in `requests`: without records, with them, and with what reads them."""
    section = requests(bench, targets)
    section.name = "records"
    return section


def chunks(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per streamed chunk: 200 streams of one chunk per 20 ms, with their beginnings and ends."""

    def once(target: Running, _: int) -> Raw:
        spec = Streams(target.port, target.pid, STREAM_INTERVAL_S, chunks=bench.effort.chunks)
        return load(spec, bench.cores.load)

    with rig(targets, STREAM_INTERVAL_S, bench.cores, bench.tell) as built:
        section = Section("chunks", "CPU us per chunk", skipped=built.skipped)
        return in_rounds(bench, built.targets, section, once, cpu_us("chunks"))


def requests_unpinned(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per non-streamed request of a foreign client with 32 connections; no process is pinned to a core."""
    section = Section("requests-unpinned", "CPU us per request, sent by wrk, nothing pinned")
    try:
        command = wrk()
    except Skipped as reason:
        section.skipped = dict.fromkeys(targets, str(reason))
        return in_rounds(bench, {}, section, lambda target, turn: {}, cpu_us("requests"))

    def once(target: Running, _: int) -> Raw:
        seconds = max(1, round(bench.effort.seconds))
        return load(Outside(target.port, target.pid, command, seconds=seconds), None)

    with rig(targets, STREAM_INTERVAL_S, UNPINNED, bench.tell) as built:
        section.skipped = built.skipped
        return in_rounds(bench, built.targets, section, once, cpu_us("requests"))


def chunks_unpinned(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU per streamed chunk as in `chunks`; no process is pinned to a core."""
    section = chunks(replace(bench, cores=UNPINNED), targets)
    section.name, section.unit = "chunks-unpinned", "CPU us per chunk, nothing pinned"
    return section


def latency(bench: Bench, targets: Sequence[str]) -> Section:
    """The time that a target adds to the p99 at half the rate at which it saturates; direct and proxied in turn."""

    def once(target: Running, turn: int) -> Raw:
        # The search is repeated in each round: half load is half of the machine's present capacity.
        saturated = load(Closed(target.port, target.pid, seconds=bench.effort.seconds / 2), bench.cores.load)
        if errors_of(saturated):
            return saturated
        rate = number(saturated, "requests") / number(saturated, "seconds") / 2
        ports = {"direct": built.upstream.ports[0], "proxied": target.port}
        ways = {
            way: load(Open(ports[way], rate, bench.effort.seconds, seed=turn), bench.cores.load)
            for way in rotated(list(ports), turn)
        }
        errors = [f"{way}: {error}" for way, raw in ways.items() for error in errors_of(raw)]
        added_s = 0.0 if errors else number(ways["proxied"], "p99_s") - number(ways["direct"], "p99_s")
        return {"rate": rate, "added_ms": 1e3 * added_s, "errors": errors, "saturated": saturated, **ways}

    with rig(targets, STREAM_INTERVAL_S, bench.cores, bench.tell) as built:
        section = Section("latency", "ms added to the p99 at half load", skipped=built.skipped)
        return in_rounds(bench, built.targets, section, once, lambda raw: number(raw, "added_ms"))


def decisions(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU of the decisions of one request, at few and at many replicas, beside a whole request of a peer."""
    alone = [name for name in targets if name in FLEETS]

    def once(target: Running | str, _: int) -> Raw:
        if isinstance(target, str):
            return load(replace(FLEETS[target], requests=bench.effort.decisions), bench.cores.proxy)
        return load(Closed(target.port, target.pid, seconds=bench.effort.seconds), bench.cores.load)

    with rig([name for name in targets if name not in alone], STREAM_INTERVAL_S, bench.cores, bench.tell) as built:
        section = Section("decisions", "CPU us per request", skipped=built.skipped)
        chosen: dict[str, Running | str] = {**{name: name for name in alone}, **built.targets}
        return in_rounds(bench, chosen, section, once, cpu_us("requests"))


def fleet(bench: Bench, targets: Sequence[str]) -> Section:
    """Lag of the gateway's loop while a tenth of the replicas is replaced at once."""
    cores, section = bench.cores, Section("fleet", "ms of lag of the loop at p99, a tenth of the replicas changed")

    def once(replicas: int, _: int) -> Raw:
        changed = replicas // 10
        with serving(STREAM_INTERVAL_S, cores, replicas + changed) as upstream:
            return load(Fleet(upstream.ports, changed, load_cores=tuple(cores.load or ())), cores.proxy)

    chosen = {name: CHANGED[name] for name in targets}
    return in_rounds(bench, chosen, section, once, lambda raw: 1e3 * number(raw, "lag_p99_s"))


def memory(bench: Bench, targets: Sequence[str]) -> Section:
    """Resident memory per open stream, and whether every stream lives and gets its chunks."""
    effort = bench.effort
    section = Section("memory", f"KiB per stream, {effort.held_streams} open")
    section.begin_round()
    for name in targets:
        interval_s = effort.held_interval_s
        _hold(bench, section, name, name, Held(effort.held_streams, interval_s, (DUE + 0.2) * interval_s))
    return section


def scale(bench: Bench, targets: Sequence[str]) -> Section:
    """CPU of tailgate per event, with few and with many open streams at the same number of events per second.

    Rounds with few and with many streams alternate. One round tells little: on a busy machine, the process wakes once
    for many events.
    """
    effort = bench.effort
    counts = {name: round(OPEN[name] * effort.held_streams) for name in targets}
    events_per_s = EVENTS_PER_INTERVAL * effort.held_streams / effort.held_interval_s
    seconds = (DUE + 0.2) * max(counts.values()) / events_per_s
    section = Section("scale", f"CPU us per event, {', '.join(map(str, counts.values()))} streams open")
    for _ in range(effort.rounds):
        section.begin_round()
        for name, streams in counts.items():
            _hold(bench, section, name, "tailgate", Held(streams, streams / events_per_s, seconds))
    return section


@dataclass(frozen=True, slots=True)
class Held:
    """Streams that are open, the seconds between two chunks of each, and the time for which they are watched."""

    streams: int
    interval_s: float
    seconds: float


def _hold(bench: Bench, section: Section, name: str, target_name: str, held: Held) -> None:
    """Measure a target with held streams, and keep the value as `name`."""
    streams, interval_s = held.streams, held.interval_s
    allowed, too_few = open_files(streams)
    if too_few:
        section.skipped[name] = too_few
        bench.step(1)
        return
    # Each gets a fresh process: memory left by an earlier load would hide the growth.
    with rig([target_name], interval_s, bench.cores, bench.tell) as built:
        if target_name in built.skipped:
            section.skipped[name] = built.skipped[target_name]
        for target in built.targets.values():
            bench.tell(f"{section.name}: {name}")
            spec = Hold(target.port, target.pid, interval_s, streams, DUE, held.seconds)
            raw = load(spec, bench.cores.load) | {"files_allowed": allowed}
            if not errors_of(raw):
                raw["errors"] = held_faults(raw, streams, DUE)
            value = cpu_us("events") if section.name == "scale" else lambda raw: held_kib(raw, streams)
            section.take(name, raw, value)
    bench.step(1)


def held_kib(raw: Raw, streams: int) -> float:
    """Growth of resident memory in KiB per stream."""
    return (number(raw, "rss_after") - number(raw, "rss_before")) / 1024 / streams


MEASURES: dict[str, Measure] = {
    "requests": Measure(
        requests, ("tailgate", "tailgate+journal", "vllm-router", "nginx", "python-floor", "fastapi+httpx")
    ),
    "records": Measure(
        records, ("tailgate-records", "tailgate", "tailgate+usage", "tailgate+traces-1%", "tailgate+traces")
    ),
    "latency": Measure(latency, ("tailgate", "vllm-router", "nginx")),
    "chunks": Measure(chunks, ("tailgate", "tailgate+tls", "vllm-router", "nginx", "python-floor")),
    "requests-unpinned": Measure(requests_unpinned, ("tailgate", "tailgate-2", "vllm-router")),
    "chunks-unpinned": Measure(chunks_unpinned, ("tailgate", "tailgate-2", "vllm-router")),
    "decisions": Measure(decisions, (*FLEETS, "vllm-router")),
    "fleet": Measure(fleet, tuple(CHANGED), max_rounds=3),
    "memory": Measure(memory, ("tailgate", "vllm-router"), max_rounds=1),
    "scale": Measure(scale, tuple(OPEN)),
    **relays.MEASURES,
}
