"""Time of requests outside of emulated engines: HTTP, the contender in front, and the timers of the emulator."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from statistics import fmean

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim.engine.profiles import Profile
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest
from gateway.sim.workload.arrivals import Arrival
from loadtests.children import Children
from loadtests.live.start import Broken
from loadtests.quantiles import PERCENTILES, rank
from loadtests.replay.play import Kept, Plan, play
from loadtests.replay.request import Request
from loadtests.replay.target import Length, Target
from loadtests.scenarios.contender import key_of, start
from loadtests.scenarios.file import MODEL, ContenderSection, ScenarioFile
from loadtests.scenarios.run import MAX_LATE_S, SEED
from loadtests.scenarios.simulated import engine_of

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 2
LOAD = 0.9
"""Multiple of the scenario's rate: enough streams to measure HTTP beside them, with hardly a queue."""
OTHER_SEED = SEED + 1
"""Seed of the measured traffic. It differs from the seed of the tests, because the simulator must predict the tests."""
TTFT = "vllm:time_to_first_token_seconds"


@dataclass(frozen=True, slots=True)
class Told:
    """Sums from the metrics of engines since their start."""

    ttft_s: float
    """The sum of all TTFT, in seconds of the engines."""
    begun: int
    """Number of requests with a TTFT."""


async def ways_s(scenario: ScenarioFile, contender: ContenderSection, requests: int, part: float) -> list[float]:
    """Times of requests on their way (s, in order, none below 0), from two measurements. Raises Broken.

    The spread comes from `requests` sent one after the other: their TTFT, less the known TTFT of an idle engine. But
    beside other streams HTTP takes longer. So the mean comes from the scenario's traffic, at LOAD and for a `part` of
    its time: its TTFT, less its time in the queue and in engines. The first times are scaled to that mean. All requests
    are of the lowest tier, which is not hedged.
    """
    tier = scenario.traffic[-1].tier
    with tempfile.TemporaryDirectory(prefix="tailgate-on-the-way-") as folder:
        async with Children(lambda name, line: None) as children:
            running = await start(scenario, contender, children, Path(folder))
            target = Target(running.url, keys={tier: (key_of(tier),)}, length=Length.HIDDEN)
            one = Arrival(0.0, tier, tier, MODEL, PROMPT_TOKENS, OUTPUT_TOKENS)
            alone_s = await _to_first_s(repeat(one, requests), target, Plan(clients=1))
            before = await _told(running.replicas)
            traffic = (replace(arrival, tier=tier) for arrival in scenario.arrivals(OTHER_SEED, LOAD, part))
            beside_s = await _to_first_s(traffic, target, Plan())
            after = await _told(running.replicas)
        if children.died.done():
            raise Broken(children.died.result().how_it_ended)
    if len(alone_s) < requests:
        raise Broken(f"{requests - len(alone_s)} of {requests} requests one after the other got no token")
    if (begun := after.begun - before.begun) != len(beside_s):
        raise Broken(f"{len(beside_s)} answers have begun, but {begun} in the engines: were some hedged?")
    idle_s = _alone_s(engine_of(scenario))
    in_engines_s = (after.ttft_s - before.ttft_s) / scenario.time_scale / len(beside_s)
    return stretched([ttft_s - idle_s for ttft_s in alone_s], fmean(beside_s) - in_engines_s)


def stretched(found_s: Iterable[float], mean_s: float) -> list[float]:
    """Ways (s) with the same relative spread and the given mean, sorted. Raises Broken if either mean is not above 0.

    Timers may end early, so single measured ways may be below 0: these count as 0.
    """
    ways = sorted(max(0.0, way_s) for way_s in found_s)
    alone_s = fmean(ways)
    if min(alone_s, mean_s) <= 0.0:
        raise Broken(
            f"requests alone took {alone_s * 1e3:.2f} ms outside of engines, and beside others {mean_s * 1e3:.2f}: "
            "an engine cannot take longer than its client waits"
        )
    stretch = mean_s / alone_s
    return [stretch * way_s for way_s in ways]


async def _to_first_s(arrivals: Iterable[Arrival], target: Target, plan: Plan) -> list[float]:
    """Seconds from due to first token, less the time in the queue, of all requests with a first token.

    Raises Broken if none had, or if the generator was late.
    """
    kept = Kept()
    await play(arrivals, target, kept, plan)
    begun = [request for request in kept.requests if request.first_s is not None]
    if not begun:
        last = kept.requests[-1] if kept.requests else None
        why = "none was sent" if last is None else last.reason or last.outcome.name
        raise Broken(f"no request got a token: {why}")
    late_s = rank(sorted(request.late_s for request in kept.requests), PERCENTILES["p99"])
    if late_s > MAX_LATE_S:
        raise Broken(f"the generator was late by {late_s * 1e3:.0f} ms (p99), of {MAX_LATE_S * 1e3:.0f} at most")
    return [_without_queue_s(request) for request in begun]


def _without_queue_s(request: Request) -> float:
    assert request.first_s is not None
    if request.queue_s is None:
        raise Broken("an answer has no server-timing: how long it waited in the queue is not known")
    return request.first_s - request.arrival.at - request.queue_s


async def _told(urls: Iterable[str]) -> Told:
    """Reads the figures of the engines. Raises Broken."""
    sums: defaultdict[str, float] = defaultdict(float)
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        for url in urls:
            try:
                text = (await http.get(f"{url}/metrics")).raise_for_status().text
            except httpx.HTTPError as error:
                raise Broken(f"{url}/metrics: {error!r}") from error
            for sample in chain.from_iterable(family.samples for family in text_string_to_metric_families(text)):
                sums[sample.name] += sample.value
    return Told(sums[f"{TTFT}_sum"], round(sums[f"{TTFT}_count"]))


def _alone_s(profile: Profile) -> float:
    """TTFT of such a request inside an idle engine."""
    engine = SimulatedReplica(profile)
    engine.add(EngineRequest(1, PROMPT_TOKENS, OUTPUT_TOKENS), 0.0)
    return engine.step().at
