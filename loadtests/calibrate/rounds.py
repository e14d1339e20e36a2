"""A calibration: bursts, mixed traffic and the check of it, and all of that several times in turn.

They take turns because an engine is not as fast in one minute as in the next. The fit and the check then both cover all
of those minutes. Thus the engine's distance from itself can be told from the profile's distance from the engine. Mixed
traffic for the fit and for the check alternate every few seconds. Else an engine that is slower by a tenth for half a
minute, in which only one of them was sent, would show waits longer by half near saturation.
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
"""How often bursts are sent before the first fit, which tells all rates: one time alone may be a slow or a fast one."""
TURNS = 4
"""Of mixed traffic in a round; a turn is each of FITTED_SHARES, and the check of the same place in SHARES after it."""
FITTED_SHARES, FITTED_REQUESTS = (0.45, 0.85), 120
"""Of the mixed traffic of a turn: at what parts of the rate that the engine can carry, and how many at each. On both
sides of the checks, so that what is asked of the profile lies between what it was fitted to."""
REQUESTS = 100
"""Of each check in a turn."""
CONTEXT_TOKENS = 8192
"""Taken for the length of the context where the engine does not say."""
GOOD = 0.25
"""The most that a check may be off for plans made with the profile to be trusted."""
GOOD_FIT = 0.15
"""Root mean square of what a fit may be off for that, where no check was asked for."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A fact that an engine reports of itself, and how to ask for it. None: it does not say."""

    target: Target
    sizes: Sizes
    said_context_tokens: int | None
    kv_capacity_tokens: int | None

    @property
    def context_tokens(self) -> int:
        """As it says, or as is taken for it."""
        return self.said_context_tokens or CONTEXT_TOKENS


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A profile, the checks of it, and why there are none if they were wanted."""

    engine: Engine
    fitted: Fitted
    checks: list[Checked]
    unchecked: str | None

    @property
    def most_off(self) -> float:
        """The most that a figure of the checks that has to be right is off, as a share."""
        return max(figure.off for figure in judged(self.checks))

    @property
    def engine_apart(self) -> float:
        """The most that the engine is off itself in these, from one round to another."""
        return max(figure.apart for figure in judged(self.checks))

    @property
    def trusted(self) -> bool:
        """Whether plans made with the profile are to be trusted; where a check was wanted and failed nobody knows.

        A check judges a profile better than its fit to single bursts, which an engine's every hiccup is in.
        """
        if self.checks:
            return self.most_off <= GOOD
        return self.unchecked is None and self.fitted.error <= GOOD_FIT


def steps(plan: list[Burst], rounds: int) -> int:
    """How often `tell` of `calibrated` is called."""
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
    """So many rounds of `plan`; the first one tells at which rates the rest is sent. Raises Failed and OSError."""
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
                    # The same lengths and times each round, so that rounds can be told apart by the engine alone.
                    seen[number].append(await traffic(share * rate, seed + turn, REQUESTS))
                except (Failed, OSError) as error:
                    unchecked = str(error) or repr(error)  # a timeout has no words of its own
            tell()
    found = await asyncio.to_thread(fit, bursts, *sizes, name, together, first)
    tell()
    if not checked or unchecked is not None:
        return Calibrated(engine, found, [], unchecked)
    return Calibrated(engine, found, compared(found.profile, [share * rate for share in SHARES], live), None)
