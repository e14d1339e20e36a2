"""What lies between a client and an emulated engine that has nothing else to do: HTTP, and whoever stands in front."""

from __future__ import annotations

import tempfile
from itertools import repeat
from pathlib import Path
from statistics import median

from gateway.sim.profiles import PROFILES, Profile
from gateway.sim.replica import Replica
from gateway.sim.replica import Request as Sequence
from gateway.sim.workload import Arrival
from loadtests.children import Children
from loadtests.live.start import Broken
from loadtests.replay.play import Kept, Plan, play
from loadtests.replay.target import Length, Target
from loadtests.scenarios.file import MODEL, ContenderSection, ScenarioFile
from loadtests.scenarios.simulated import as_slow
from loadtests.scenarios.stage import key_of, start

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 2


async def on_the_way_s(scenario: ScenarioFile, contender: ContenderSection, requests: int) -> float:
    """The median TTFT (s) of requests that are sent one after the other, less the engine's own: the ways of HTTP, what
    stands in front, and the timers of the emulator. Raises Broken."""
    kept = Kept()
    tier = scenario.traffic[0].tier
    with tempfile.TemporaryDirectory(prefix="tailgate-at-rest-") as folder:
        async with Children(lambda name, line: None) as children:
            stage = await start(scenario, contender, children, Path(folder))
            target = Target(stage.url, keys={tier: (key_of(tier),)}, length=Length.HIDDEN)
            one = Arrival(0.0, tier, tier, MODEL, PROMPT_TOKENS, OUTPUT_TOKENS)
            await play(repeat(one, requests), target, kept, Plan(clients=1))
    ttft_s = []
    for request in kept.requests:
        if request.first_s is None:
            raise Broken(f"a request at rest got no token: {request.reason or request.outcome.name}")
        ttft_s.append(request.first_s - request.sent_s)
    return median(ttft_s) - _alone_s(as_slow(PROFILES[scenario.profile], scenario.time_scale))


def _alone_s(profile: Profile) -> float:
    """TTFT of such a request inside the engine."""
    engine = Replica(profile)
    engine.add(Sequence(1, PROMPT_TOKENS, OUTPUT_TOKENS), 0.0)
    return engine.step().at
