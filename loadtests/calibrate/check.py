"""The error of the simulator with a fitted profile, on traffic that it was not fitted to.

Requests of mixed lengths come at random times, in an open loop. They come at two rates, which are shares of the
capacity that the profile gives the engine. Then the simulator gets the same requests at the same times. The whole check
is repeated in rounds. Differences between rounds come from the engine, and no profile can predict them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

from gateway.sim.engine.profiles import Profile
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.lengths import Mixture, Part
from gateway.sim.workload.synthetic import Synthetic, TierTraffic
from loadtests.calibrate.bursts import Seen
from loadtests.calibrate.fit import served
from loadtests.quantiles import PERCENTILES, off, overlap, rank

SHARES = (0.5, 0.7)
"""Checked loads, as shares of the engine's capacity. The second is the load that fleets are planned for (`tailgate plan
--utilization .7`).

Near saturation a step that is 10% longer doubles the wait, so that two runs of one engine differ by more than 25%.
"""
MANY = 6000
"""Number of requests that is enough to fill an engine."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure: the median over rounds, measured and simulated, and the engine's lowest and highest round."""

    live: float
    told: float
    least: float
    most: float

    @property
    def off(self) -> float:
        """Relative error of the simulator."""
        return off(self.live, self.told)

    @property
    def apart(self) -> float:
        """Relative spread of the engine's own rounds: the highest against the lowest."""
        return off(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Checked:
    """The same requests at the engine and in the simulator, round by round, at one share of the engine's capacity."""

    share: float
    rate: float
    """Requests per second."""
    live: list[list[Seen]]
    told: list[list[Seen]]

    def ttft_s(self, figure: str) -> Compared:
        """A percentile of the time to first token."""
        return self._compared(lambda seen: rank(sorted(map(_ttft_s, seen)), PERCENTILES[figure]))

    def tpot_s(self) -> Compared:
        """The median time per token."""
        return self._compared(lambda seen: rank(sorted(map(_tpot_s, seen)), 0.5))

    def goodput(self, bound_s: float) -> Compared:
        """The share of requests whose first token came within `bound_s`."""
        return self._compared(lambda seen: sum(_ttft_s(one) <= bound_s for one in seen) / len(seen))

    @property
    def p99_overlaps(self) -> bool | None:
        """Whether the 95% intervals of the p99 of the time to first token, over all rounds, overlap; None: too few
        requests.
        """
        live, told = (sorted(map(_ttft_s, chain(*side))) for side in (self.live, self.told))
        return overlap(live, told, PERCENTILES["p99"])

    def _compared(self, figure: Callable[[list[Seen]], float]) -> Compared:
        live, told = (list(map(figure, side)) for side in (self.live, self.told))
        return Compared(median(live), median(told), min(live), max(live))


def compared(profile: Profile, rates: Sequence[float], live: Sequence[Sequence[list[list[Seen]]]]) -> list[Checked]:
    """Compare the checks with the simulator. For each of `SHARES`, `rates` has its rate and `live` the rounds sent at
    that rate. A round has several turns; between turns the engine was empty.
    """
    return [
        Checked(
            share,
            rate,
            [list(chain(*turns)) for turns in rounds],
            [list(chain(*(served(profile, seen) for seen in turns))) for turns in rounds],
        )
        for share, rate, rounds in zip(SHARES, rates, live, strict=True)
    ]


def full(profile: Profile, seed: int = 1) -> float:
    """The engine's capacity of mixed traffic in requests per second: very many requests at once, divided by their time.

    With so many requests, the last seconds, in which slots are idle, hardly matter.
    """
    many = mixed(profile, 1.0, seed, MANY)
    asked = [Seen(0.0, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in many]
    return len(asked) / max(one.last_s for one in served(profile, asked))


def mixed(profile: Profile, rate: float, seed: int, requests: int) -> list[Arrival]:
    """Requests with lengths like those of chats, as far as the context allows, at exponential gaps."""
    most = profile.max_model_len // 4
    prompts = Mixture((Part(1.0, min(512.0, most / 4), 0.9),), most, 16)
    answers = Mixture((Part(1.0, 48.0, 0.7),), min(256, most), 8)
    share = TierTraffic(tier="default", part=1.0, prompt=prompts, answer=answers)
    return list(islice(Synthetic(rate, 100.0 * requests / rate, (share,)).arrivals(seed), requests))


def good_s(found: Sequence[Checked]) -> float:
    """The bound of a good time to first token (s): twice the median of the first."""
    return 2.0 * found[0].ttft_s("p50").live


def judged(found: Sequence[Checked]) -> Iterator[Compared]:
    """The figures that decide whether the profile is good: p50, p95 and goodput of each share."""
    bound_s = good_s(found)
    for one in found:
        yield from (one.ttft_s("p50"), one.ttft_s("p95"), one.goodput(bound_s))


def _ttft_s(one: Seen) -> float:
    return one.first_s - one.sent_s


def _tpot_s(one: Seen) -> float:
    return (one.last_s - one.first_s) / max(1, one.output_tokens - 1)
