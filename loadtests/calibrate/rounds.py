"""A calibration: bursts, mixed traffic and its check, in turn, several times.

These take turns because an engine's speed changes from minute to minute. So fit and check both cover all of those
minutes. Thus the engine's variation can be separated from the profile's error. Mixed traffic for the fit and for the
check alternate every few seconds. Otherwise, if an engine is 10% slower for half a minute, only one of the two would
have its 50% longer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from loadtests.calibrate.bursts import Burst, Failed, Seen, send, sent, warm
from loadtests.calibrate.check import SHARES, Checked, compared, full, judged, mixed
from loadtests.calibrate.fit import Fitted, fit
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Target

CONNECTIONS = 32
FIRST = 5
"""Probes before the first fit, which sets all rates: a single probe may be unusually slow or fast."""
TURNS = 4
"""Turns of mixed traffic in a round: in each turn every one of FITTED_SHARES is followed by its check in SHARES."""
FITTED_SHARES, FITTED_REQUESTS = (0.45, 0.85), 120
"""Mixed traffic of a turn: the shares of the engine's capacity, and the number of requests at each.

The checked loads lie between the fitted ones.
"""
REQUESTS = 100
"""Requests of each check in a turn."""
CONTEXT_TOKENS = 8192
"""Assumed context length if the engine does not report it."""
GOOD = 0.25
"""Largest error of a check for a profile that plans can trust."""
GOOD_FIT = 0.15
"""Largest root mean square error of the fit for such a profile, if no check was wanted."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A fact that an engine may report, and the option that replaces it. None: the engine does not report it."""

    target: Target
    sizes: Sizes
    said_context_tokens: int | None
    kv_capacity_tokens: int | None

    @property
    def context_tokens(self) -> int:
        """The context length, as reported or as assumed."""
        return self.said_context_tokens or CONTEXT_TOKENS


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A profile, its checks, and the reason if wanted checks are missing."""

    engine: Engine
    fitted: Fitted
    checks: list[Checked]
    unchecked: str | None

    @property
    def most_off(self) -> float:
        """The largest relative error of a required figure in the checks."""
        return max(figure.off for figure in judged(self.checks))

    @property
    def engine_apart(self) -> float:
        """The largest variation of the engine itself in these figures, from round to round."""
        return max(figure.apart for figure in judged(self.checks))

    @property
    def trusted(self) -> bool:
        """Whether plans made with the profile can be trusted; unknown if a wanted check failed.

        A check judges a profile better than the fit to single bursts, which shows every hiccup of an engine.
        """
        if self.checks:
            return self.most_off <= GOOD
        return self.unchecked is None and self.fitted.error <= GOOD_FIT


def steps(plan: list[Burst], rounds: int) -> int:
    """Number of times that `calibrated` calls `tell`."""
    return (FIRST + rounds - 1) * len(plan) + rounds * TURNS + 1


async def calibrated(
    engine: Engine,
    plan: list[Burst],
    seed: int,
    *,
    rounds: int = 1,
    checked: bool = True,
    name: str = "fitted",
    tell: Callable[[], None] = lambda: None,
) -> Calibrated:
    """Rounds of `plan`; the first one determines the rates of the rest. Raises Failed and OSError."""
    seeds, sizes = Random(seed), (engine.context_tokens, engine.kv_capacity_tokens)
    bursts: list[list[Seen]] = []
    together: list[list[Seen]] = []
    live: list[list[list[list[Seen]]]] = [[[] for _ in range(rounds)] for _ in SHARES]
    unchecked = None

    async def traffic(rate: float, seed: int, requests: int) -> list[Seen]:
        return await sent(mixed(first, rate, seed, requests), engine.target, engine.sizes, seeds, CONNECTIONS)

    await warm(plan, engine.target, engine.sizes, seeds)
    for number in range(rounds):
        for _ in range(1 if number else FIRST):
            bursts += await send(plan, engine.target, engine.sizes, seeds, tell)
        if number == 0:
            first = (await asyncio.to_thread(fit, bursts, *sizes, name)).profile
            rate = full(first)
        for turn in range(TURNS):
            for fitted_share, share, seen in zip(FITTED_SHARES, SHARES, live, strict=True):
                together.append(await traffic(fitted_share * rate, seeds.getrandbits(32), FITTED_REQUESTS))
                if not checked or unchecked is not None:
                    continue
                try:
                    # Each round has the same lengths and times, so that rounds differ only by the engine.
                    seen[number].append(await traffic(share * rate, seed + turn, REQUESTS))
                except (Failed, OSError) as error:
                    unchecked = str(error) or repr(error)  # the text of a timeout is empty
            tell()
    found = await asyncio.to_thread(fit, bursts, *sizes, name, together, first)
    tell()
    if not checked or unchecked is not None:
        return Calibrated(engine, found, [], unchecked)
    return Calibrated(engine, found, compared(found.profile, [share * rate for share in SHARES], live), None)
