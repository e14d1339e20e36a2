"""Computes the result of a run: goodput, attainment, latencies, and the work of the replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.policy import Value
from gateway.core.results import Outcome
from gateway.sim.run.meter import MeterReading
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import LENGTHS, WINDOW_S, Tally, TallyCell, TierTally

PERCENTS = (0.50, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles (nearest rank) of a latency over `n` finished requests, in seconds; None if there are none."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """Numbers of `counted`, `finished` and `good` requests. `attainment` is good / counted."""

    counted: int
    finished: int
    good: int
    attainment: float | None


@dataclass(frozen=True, slots=True)
class QueueResult:
    """Requests that waited: their number, and how many were refused."""

    waited: int
    in_vain: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Number of counted tries, and the share (0-1) of them that was sent to a replica."""

    tries: int
    share: float | None


@dataclass(frozen=True, slots=True)
class Floor:
    """A tier's share (0-1) of the dispatched tokens. Also its smallest share in 10 s windows in which its requests
    waited all the time.

    A share is 0 if only other tiers got tokens, and None if no tier got tokens.
    """

    windows: int
    """Number of whole windows in the run after the warm-up."""
    backlogged: int
    """Number of windows in which at least one request of the tier waited at every moment."""
    short: int
    """Number of backlogged windows, and of windows in which a request of the tier was refused or waited too long."""
    share: float | None
    """The tier's share of all tokens dispatched in whole windows."""
    least: float | None
    """The smallest share in a backlogged window; None without such a window."""
    least_short: float | None
    """The smallest share in the windows of `short`; None without such a window."""
    shares: tuple[float | None, ...]
    """The tier's share of tokens in each window."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Numbers of requests by the second of their arrival, from the start of the run. The warm-up is included."""

    offered: tuple[int, ...]
    dispatched: tuple[int, ...]
    good: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TierResult:
    """Results of one tier in one run. All requests count except 400s, quota refusals and requests whose client left."""

    weight: float
    value: Value
    """Unit in which the tier's good requests are valued."""
    offered: int
    counted: int
    finished: int
    good: int
    attainment: float | None
    """good / counted. Refusals count as misses."""
    attainment_served: float | None
    """good / finished."""
    lengths: dict[str, Share]
    """Requests by prompt length."""
    queue: Latency
    ttft: Latency
    tpot: Latency
    e2e: Latency
    outcomes: dict[str, int]
    misses: dict[str, int]
    """Number of requests that were refused, timed out or failed, by reason."""
    tokens: int
    finished_tokens: int
    good_tokens: int
    floor: Floor
    waits: QueueResult
    newcomers: Admitted
    comebacks: Admitted
    """Retries of clients."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run, with one policy and one seed."""

    policy: str
    """Name of the policy in a comparison."""
    seed: int
    seconds: float
    """Virtual time in which counted requests arrived."""
    arrived: int
    """Number of all requests of the run, including the warm-up."""
    offered: int
    counted: int
    finished: int
    good: int
    unfinished: int
    goodput: float
    """good / counted."""
    weighted: float
    """Weighted goodput: each request counts with its tier's weight. If the tier values tokens, the weight is multiplied
    by tokens / mean tokens of the tier.
    """
    token_weighted: float
    """Tokens (prompt and answer) of good requests / tokens of all counted requests."""
    good_per_s: float
    output_tokens: float
    """Mean tokens of an answer, over all counted requests. A refused request counts with the tokens of the answer that
    it would have got.
    """
    tiers: dict[str, TierResult]
    busy: float
    """Share (0-1) of the time in which a replica had a step under way, mean over replicas."""
    slots: float
    """Mean share (0-1) of slots in use."""
    kv: float
    """Mean share (0-1) of the KV cache in use."""
    kv_max: float
    cached: float
    """Share (0-1) of the prompt tokens that replicas found in their prefix caches."""
    preemptions: int
    timeline: Timeline
    in_system: float
    """Mean number of requests in the system."""
    little: float
    """`in_system` by Little's law: arrivals per second x mean time in the system."""
    events: int
    cpu_s: float
    """CPU seconds that this process used for the run."""
    requests_per_cpu_s: float
    events_per_cpu_s: float


def latency(values: Sequence[float]) -> Latency:
    """Percentiles of a latency, by nearest rank."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[max(0, math.ceil(p * len(ordered)) - 1)] if ordered else None for p in PERCENTS)
    return Latency(len(ordered), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class Window:
    """The counted part of a run: the meter's readings at the end of the warm-up and at the last arrival."""

    opened: MeterReading
    closed: MeterReading


def result(run: Simulation, window: Window, seed: int, cpu_s: float) -> Result:
    """The result of a run that is over."""
    tally, opened, closed = run.tally, window.opened, window.closed
    seconds = closed.at - opened.at
    tiers = {name: _tier(tier, tally, window) for name, tier in tally.tiers.items()}
    rows = tiers.values()
    offered, counted, good = (sum(getattr(row, name) for row in rows) for name in ("offered", "counted", "good"))
    return Result(
        policy="policy",
        seed=seed,
        seconds=seconds,
        arrived=closed.arrived,
        offered=offered,
        counted=counted,
        finished=sum(row.finished for row in rows),
        good=good,
        unfinished=tally.unfinished,
        goodput=_ratio(good, counted),
        weighted=_ratio(sum(r.weight * _worth(r) for r in rows), sum(r.weight * r.counted for r in rows)),
        token_weighted=_ratio(sum(r.good_tokens for r in rows), sum(r.tokens for r in rows)),
        good_per_s=_ratio(good, seconds),
        output_tokens=_ratio(sum(tier.output_tokens for tier in tally.tiers.values()), counted),
        tiers=tiers,
        busy=_ratio(closed.busy_s - opened.busy_s, seconds * len(run.hosts)),
        slots=_ratio(sum(tally.slots), len(tally.slots)),
        kv=_ratio(sum(tally.kv), len(tally.kv)),
        kv_max=max(tally.kv, default=0.0),
        cached=_ratio(closed.hit_tokens - opened.hit_tokens, closed.queried_tokens - opened.queried_tokens),
        preemptions=closed.preemptions - opened.preemptions,
        timeline=Timeline(*(tuple(second[i] for second in tally.seconds) for i in range(3))),
        in_system=_ratio(closed.in_system_s - opened.in_system_s, seconds),
        little=_ratio(tally.sojourn_s, seconds),
        events=run.events,
        cpu_s=cpu_s,
        requests_per_cpu_s=_ratio(closed.arrived, cpu_s),
        events_per_cpu_s=_ratio(run.events, cpu_s),
    )


def _tier(tier: TierTally, tally: Tally, window: Window) -> TierResult:
    counted = sum(cell.counted for cell in tier.cells)
    finished = sum(cell.finished for cell in tier.cells)
    good = sum(cell.good for cell in tier.cells)
    return TierResult(
        weight=tier.tier.weight,
        value=tier.tier.value,
        offered=tier.offered,
        counted=counted,
        finished=finished,
        good=good,
        attainment=good / counted if counted else None,
        attainment_served=good / finished if finished else None,
        lengths={name: _share(cell) for name, cell in zip(LENGTHS, tier.cells, strict=True) if cell.counted},
        queue=latency(tier.queue_s),
        ttft=latency(tier.ttft_s),
        tpot=latency(tier.tpot_s),
        e2e=latency(tier.e2e_s),
        outcomes={outcome.value: tier.outcomes[outcome] for outcome in Outcome if tier.outcomes[outcome]},
        misses=dict(sorted(tier.whys.items())),
        tokens=tier.tokens,
        finished_tokens=tier.finished_tokens,
        good_tokens=tier.good_tokens,
        floor=_floor(tier, tally, window),
        waits=QueueResult(tier.waited, tier.in_vain),
        newcomers=_admitted(*tier.admissions[:2]),
        comebacks=_admitted(*tier.admissions[2:]),
    )


def _admitted(refused: int, admitted: int) -> Admitted:
    tries = refused + admitted
    return Admitted(tries, admitted / tries if tries else None)


def _worth(tier: TierResult) -> float:
    """Value of a tier's good requests, in units of its mean request."""
    return tier.counted * _ratio(tier.good_tokens, tier.tokens) if tier.value is Value.TOKENS else tier.good


def _share(cell: TallyCell) -> Share:
    return Share(cell.counted, cell.finished, cell.good, cell.good / cell.counted if cell.counted else None)


def _floor(tier: TierTally, tally: Tally, window: Window) -> Floor:
    """The tier's shares in the windows between the warm-up and the last arrival."""
    windows = range(math.ceil(window.opened.at / WINDOW_S), math.floor(window.closed.at / WINDOW_S))
    spans = [*tier.spans, *([(tier.waiting_since, math.inf)] if tier.waiting else [])]
    own = totals = 0
    shares: list[float | None] = []
    backlogged: list[float | None] = []
    short: list[float | None] = []
    for number in windows:
        total = sum(other.dispatched[number] for other in tally.tiers.values())
        totals += total
        begin, end = number * WINDOW_S, (number + 1) * WINDOW_S
        own += tier.dispatched[number]
        share = tier.dispatched[number] / total if total else None
        shares.append(share)
        waited = any(since <= begin and until >= end for since, until in spans)
        if waited:
            backlogged.append(share)
        if waited or number in tier.short:
            short.append(share)
    return Floor(
        windows=len(windows),
        backlogged=len(backlogged),
        short=len(short),
        share=own / totals if totals else None,
        least=_least(backlogged),
        least_short=_least(short),
        shares=tuple(shares),
    )


def _least(shares: Sequence[float | None]) -> float | None:
    return min((share for share in shares if share is not None), default=None)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
