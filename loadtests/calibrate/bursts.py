"""Bursts of a probe, and its observations of each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.play import Kept, Plan, play
from loadtests.replay.prompts import Sizes
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Target

APART_S = 0.002
"""Pause between two requests of a burst."""
LEAD_S = 0.05
WARMED = 16
"""Bursts of at most this many requests are sent once before any is measured."""


@dataclass(frozen=True, slots=True)
class Burst:
    """This many identical requests at once."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    apart_s: float = APART_S

    def arrivals(self) -> list[Arrival]:
        """The requests of the burst, one soon after the other."""
        return [
            Arrival(i * self.apart_s, "default", "calibrate", "default", self.prompt_tokens, self.output_tokens)
            for i in range(self.requests)
        ]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. Times in seconds from the start of its burst, tokens as the engine counted them."""

    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    output_tokens: int


class Failed(Exception):
    """The probe failed, so that no profile can be fitted. Says why."""


def bursts(context_tokens: int, most_at_once: int) -> list[Burst]:
    """A probe with short and long requests, alone and together. Each cost dominates in some of the bursts."""
    long = max(64, min(2048, context_tokens // 2))
    alone = [Burst(1, 32, 64), Burst(1, long // 4, 16), Burst(1, long // 2, 16), Burst(1, long, 16)]
    few = [Burst(2, 32, 64), Burst(4, 32, 64), Burst(8, 32, 64), Burst(4, long // 2, 32)]
    many = [Burst(16, 32, 96), Burst(48, 32, 96), Burst(16, long // 4, 64), Burst(8, long, 32), Burst(16, long, 64)]
    return [*alone * 2, *few, *many, Burst(most_at_once, 32, 128, 0.0)]


async def warm(plan: Sequence[Burst], target: Target, sizes: Sizes, seeds: Random) -> None:
    """Send small bursts once without measuring: for the first requests of a size, an engine compiles and allocates
    memory.
    """
    for burst in dict.fromkeys(plan):
        if burst.requests <= WARMED:
            await sent(burst.arrivals(), target, sizes, seeds, burst.requests)


async def send(
    plan: Sequence[Burst], target: Target, sizes: Sizes, seeds: Random, tell: Callable[[], None] = lambda: None
) -> list[list[Seen]]:
    """Send the bursts one after the other. Returns the observations of each. `tell` is called after each burst. Raises
    Failed and OSError.
    """
    found = []
    for burst in plan:
        found.append(await sent(burst.arrivals(), target, sizes, seeds, burst.requests))
        tell()
    return found


async def sent(
    arrivals: Iterable[Arrival], target: Target, sizes: Sizes, seeds: Random, connections: int
) -> list[Seen]:
    """Observations of requests, in the order in which they were sent. Raises Failed if one was not answered."""
    kept = Kept()
    # Each prompt is new, so that the engine does not find it in its cache.
    plan = Plan(seed=seeds.getrandbits(32), sizes=sizes, warm_connections=connections, lead_s=LEAD_S)
    await play(arrivals, target, kept, plan)
    return [_seen(request) for request in sorted(kept.requests, key=lambda request: request.sent_s)]


def _seen(request: Request) -> Seen:
    if request.outcome is not Outcome.FINISHED or request.first_s is None:
        said = f": {request.reason}" if request.reason else ""
        raise Failed(f"a request of the probe was {request.outcome.name.lower()}, not finished{said}")
    if not request.prompt_tokens or not request.output_tokens:
        raise Failed("the target does not say how many tokens it has read and written (usage)")
    return Seen(request.sent_s, request.first_s, request.last_s, request.prompt_tokens, request.output_tokens)
