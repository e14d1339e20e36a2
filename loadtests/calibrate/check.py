"""How far off the simulator is with a fitted profile, on traffic that it was not fitted to.

Requests of mixed lengths at random times, in an open loop, at two shares of the rate at which the profile says that the
engine is full; then the same requests, at the times at which they were sent, in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from gateway.sim.lengths import Mixture, Part
from gateway.sim.profiles import Profile
from gateway.sim.synthetic import Share, Synthetic
from gateway.sim.workload import Arrival
from loadtests.calibrate.bursts import Seen, sent
from loadtests.calibrate.fit import served
from loadtests.quantiles import interval, off, rank
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Target

SHARES = (0.5, 0.75)
REQUESTS = 300
CONNECTIONS = 32
FIGURES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Checked:
    """The same requests at the engine and in the simulator, at a share of what it can carry (`rate`: requests/s)."""

    share: float
    rate: float
    live: list[Seen]
    told: list[Seen]

    def ttft_s(self, figure: str) -> tuple[float, float]:
        """A percentile of the time to first token: live, and as the simulator told it."""
        live, told = (rank(sorted(one.first_s - one.sent_s for one in of), FIGURES[figure]) for of in self._sides)
        return live, told

    @property
    def p99_overlaps(self) -> bool:
        """Whether the 95% intervals of the p99 of the time to first token meet."""
        (low, high), (bottom, top) = (
            interval(sorted(one.first_s - one.sent_s for one in of), FIGURES["p99"]) for of in self._sides
        )
        return low <= top and bottom <= high

    def tpot_s(self) -> tuple[float, float]:
        """The median time per token."""
        live, told = (
            rank(sorted((one.last_s - one.first_s) / max(1, one.output_tokens - 1) for one in of), 0.5)
            for of in self._sides
        )
        return live, told

    def goodput(self, bound_s: float) -> tuple[float, float]:
        """The share of requests whose first token came within `bound_s`."""
        live, told = (sum(one.first_s - one.sent_s <= bound_s for one in of) / len(of) for of in self._sides)
        return live, told

    @property
    def _sides(self) -> tuple[list[Seen], list[Seen]]:
        return self.live, self.told


def full(profile: Profile, seed: int = 1) -> float:
    """Requests per second of the mixed traffic that the engine can carry: very many at once, over the time they took.

    So many that it matters little how the engine empties after the last of them has got its place.
    """
    many = mixed(profile, 1.0, seed, 20 * REQUESTS)
    asked = [Seen(0.0, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in many]
    return len(asked) / max(one.last_s for one in served(profile, asked))


def mixed(profile: Profile, rate: float, seed: int, requests: int = REQUESTS) -> list[Arrival]:
    """Requests whose lengths vary as those of chats do, as far as the context allows, at exponential gaps."""
    most = profile.max_model_len // 4
    prompts = Mixture((Part(1.0, min(512.0, most / 4), 0.9),), most, 16)
    answers = Mixture((Part(1.0, 48.0, 0.7),), min(256, most), 8)
    share = Share(tier="default", part=1.0, prompt=prompts, answer=answers)
    return list(islice(Synthetic(rate, 100.0 * requests / rate, (share,)).arrivals(seed), requests))


async def check(
    profile: Profile, target: Target, sizes: Sizes, seed: int, tell: Callable[[], None] = lambda: None
) -> list[Checked]:
    """One of each share; `tell` hears of each that is over. Raises Failed and OSError."""
    seeds, rate, found = Random(f"{seed} check"), full(profile), []
    for share in SHARES:
        arrivals = mixed(profile, share * rate, seed)
        live = await sent(arrivals, target, sizes, seeds, CONNECTIONS)
        found.append(Checked(share, share * rate, live, served(profile, live)))
        tell()
    return found


def good_s(found: Sequence[Checked]) -> float:
    """What is taken for a good time to first token (s): twice the median of the first."""
    return 2.0 * found[0].ttft_s("p50")[0]


def worst(found: Sequence[Checked]) -> float:
    """The most that p50, p95 or goodput is off, as a share of what came."""
    bound_s = good_s(found)
    pairs = [pair for one in found for pair in (one.ttft_s("p50"), one.ttft_s("p95"), one.goodput(bound_s))]
    return max(off(live, told) for live, told in pairs)
