"""One rate, tested until every promise is decided, or until the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.core.policy import Policy
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.play import Now, Plan, Player
from loadtests.replay.target import Target
from loadtests.verdict.promises import Judgement, Promise, Verdict
from loadtests.verdict.trial import Part, Trial

MAX_LATE_SHARE = 0.01
"""Share of late requests beyond which a generator measures itself: its p99 is late."""

FIND_WRONG = 0.05
"""Probability of a wrong verdict on one rate of a search: it asks several, and the next ones tell."""
CERTIFY_WRONG = 0.01
MIN_STRETCH_S = 1.0
ANSWERS = 1.5
"""A stretch is this many slow answers long."""


def stretch_of(slowest_s: float) -> float:
    """The stretch (seconds) for a target whose slowest answer takes so long while nothing else runs."""
    return max(MIN_STRETCH_S, ANSWERS * slowest_s)


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome at one rate."""

    rate_per_s: float
    seconds: float
    sent: int
    judgements: list[Judgement]
    on_time: bool
    """Whether the generator kept to its schedule."""
    interrupted: bool
    part: Part = Part.AFTER
    """The part of the trial in which it ended."""
    recovery_s: float = 0.0
    """Seconds from the end of the push until the target kept its promises again."""

    @property
    def verdict(self) -> Verdict:
        """Fail if any promise is broken, pass if all are kept."""
        found = {one.verdict for one in self.judgements}
        return next((one for one in (Verdict.FAIL, Verdict.UNDECIDED) if one in found), Verdict.PASS)

    @property
    def seems_kept(self) -> bool:
        """Whether every promise is kept by the measured shares, whatever their intervals."""
        return all(one.requests and one.misses <= (1.0 - one.promise.share) * one.requests for one in self.judgements)

    @property
    def worst(self) -> Judgement:
        """The promise that is broken most, or kept by the least."""
        return worst_of(self.judgements)


def worst_of(found: Sequence[Judgement]) -> Judgement:
    """The promise that is broken most, or kept by the least: by misses over allowed misses."""
    return max(found, key=lambda one: one.misses / max(1e-9, (1.0 - one.promise.share) * one.requests))


@dataclass(frozen=True, slots=True)
class Rules:
    """When a step ends. `wrong`: allowed probability of a wrong verdict."""

    wrong: float
    budget_s: float
    """Longest time after the warm-up."""
    warmup_s: float
    stretch_s: float
    """Stretch of time that counts as one observation: longer than an answer, which shares its batch with others."""
    max_late_s: float


async def step(
    arrivals: Iterator[Arrival],
    rate_per_s: float,
    target: Target,
    judged_by: tuple[Policy, list[Promise]],
    plan: Plan,
    rules: Rules,
    stop: asyncio.Event,
    show: Callable[[float, Part, list[Judgement]], None] = lambda at, part, found: None,
) -> Step:
    """Send `arrivals` until all promises are decided, any is broken, or `budget_s` is over. Raises OSError.

    `show` is called twice a second, with the time, the part of the trial, and the verdicts so far.
    """
    policy, promises = judged_by
    trial = Trial(policy, promises, rules.stretch_s, rules.budget_s, rules.wrong, rules.warmup_s, rules.max_late_s)

    def look(now: Now) -> None:
        if now.at_s >= 0.0:
            show(now.at_s, trial.part, trial.look(now.at_s, player.under_way()))

    player = Player(
        trial.arrivals(arrivals),
        target,
        trial,
        replace(plan, warmup_s=rules.warmup_s),
        show=look,
        settled=lambda now, under_way: trial.decided is not None,
    )
    played = await player.play(stop)
    found = trial.decided or trial.judgements(played.seconds)
    on_time = is_on_time(trial.late, played.sent)
    return Step(
        rate_per_s, played.sending_s, played.sent, found, on_time, played.interrupted, trial.part, trial.recovery_s
    )


def is_on_time(late: int, sent: int) -> bool:
    """Whether the generator kept to its schedule. A single late request is a stall, however few were sent."""
    return late <= max(1.0, MAX_LATE_SHARE * sent)
