"""What requests take outside of emulated engines: HTTP, whoever stands in front, and the timers of the emulator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from statistics import fmean

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim.profiles import PROFILES, Profile
from gateway.sim.replica import Replica
from gateway.sim.replica import Request as Sequence
from gateway.sim.workload import Arrival
from loadtests.children import Children
from loadtests.live.start import Broken
from loadtests.replay.play import Kept, Plan, play
from loadtests.replay.target import Length, Target
from loadtests.scenarios.file import MODEL, ContenderSection, ScenarioFile
from loadtests.scenarios.run import SEED
from loadtests.scenarios.simulated import as_slow
from loadtests.scenarios.stage import key_of, start

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 2
LOAD = 0.9
"""Of the scenario's traffic: streams beside which HTTP is measured, and hardly a queue."""
TTFT = "vllm:time_to_first_token_seconds"


async def ways_s(scenario: ScenarioFile, contender: ContenderSection, requests: int, part: float) -> list[float]:
    """What requests take on their way (s, in order, none below 0), told by two measurements. Raises Broken.

    How far apart they lie, so many `requests` say that are sent one after the other: their TTFT, less that of an idle
    engine, which is known. But beside other streams HTTP takes longer. How long in the mean, the scenario's traffic
    says, at LOAD and for a `part` of its time: its TTFT less its time in the queue, and less what the engines say they
    took. The first are stretched to that mean. All of it is of the lowest tier, which nobody hedges.
    """
    tier = scenario.traffic[-1].tier
    with tempfile.TemporaryDirectory(prefix="tailgate-on-the-way-") as folder:
        async with Children(lambda name, line: None) as children:
            stage = await start(scenario, contender, children, Path(folder))
            target = Target(stage.url, keys={tier: (key_of(tier),)}, length=Length.HIDDEN)
            one = Arrival(0.0, tier, tier, MODEL, PROMPT_TOKENS, OUTPUT_TOKENS)
            alone = await _to_first_s(repeat(one, requests), target, Plan(clients=1))
            before_s, before = await _engines(stage.replicas)
            traffic = (replace(arrival, tier=tier) for arrival in scenario.arrivals(SEED, LOAD, part))
            beside = await _to_first_s(traffic, target, Plan())
            after_s, after = await _engines(stage.replicas)
    if after - before != len(beside):
        raise Broken(f"{len(beside)} answers have begun, and {after - before} in the engines: were some hedged?")
    idle_s = _alone_s(as_slow(PROFILES[scenario.profile], scenario.time_scale))
    found_s = sorted(max(0.0, ttft_s - idle_s) for ttft_s in alone)
    mean_s = max(0.0, fmean(beside) - (after_s - before_s) / scenario.time_scale / len(beside))
    stretch = mean_s / fmean(found_s)
    return [stretch * way_s for way_s in found_s]


async def _to_first_s(arrivals: Iterable[Arrival], target: Target, plan: Plan) -> list[float]:
    """From sent to first token, less the time in the queue, of all that had one. Raises Broken if none had."""
    kept = Kept()
    await play(arrivals, target, kept, plan)
    found_s = [
        request.first_s - request.sent_s - (request.queue_s or 0.0)
        for request in kept.requests
        if request.first_s is not None
    ]
    if not found_s:
        last = kept.requests[-1]
        raise Broken(f"no request got a token: {last.reason or last.outcome.name}")
    return found_s


async def _engines(urls: Iterable[str]) -> tuple[float, int]:
    """The sum of all TTFT that engines have told, in their own seconds, and how many these are."""
    sums = {"_sum": 0.0, "_count": 0.0}
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        for url in urls:
            text = (await http.get(f"{url}/metrics")).raise_for_status().text
            for family in text_string_to_metric_families(text):
                for sample in family.samples if family.name == TTFT else ():
                    end = sample.name.removeprefix(TTFT)
                    if end in sums:
                        sums[end] += sample.value
    return sums["_sum"], round(sums["_count"])


def _alone_s(profile: Profile) -> float:
    """TTFT of such a request inside the engine."""
    engine = Replica(profile)
    engine.add(Sequence(1, PROMPT_TOKENS, OUTPUT_TOKENS), 0.0)
    return engine.step().at
