"""The target, the traffic and the promises of `find` and `certify`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console

from gateway.core.policy import Policy
from gateway.policy import load
from gateway.sim.workload.arrivals import Arrival
from loadtests.commands.asked import fields_of, keys_of, one_target, traffic_of, whose
from loadtests.commands.prompts import PromptOptions, prompts_of
from loadtests.replay.models import WhichModel, contact
from loadtests.replay.play import Kept, Plan, play
from loadtests.replay.probe import NoContact, reach
from loadtests.replay.request import Outcome
from loadtests.replay.target import Length, Target
from loadtests.replay.traffic import Traffic
from loadtests.replay.written import Written
from loadtests.verdict.gateway_counts import beside, counted, differs
from loadtests.verdict.promises import Judgement, Promise, promises_of
from loadtests.verdict.sequential import MIN_STRETCHES, Bounds
from loadtests.verdict.step import Rules, Step, step, stretch_of, worst_of
from loadtests.verdict.trial import PUSH, Part

SAMPLES = 5
APART_S = 0.5
"""Requests, and the seconds between them, that tell how long an answer takes while nothing else runs."""
LINE_EVERY_S = 20.0
"""Seconds between two lines about progress where there is no terminal."""
ENDS = signal.SIGINT, signal.SIGTERM
PARTS = {
    Part.BEFORE: "before the push",
    Part.PUSH: f"pushed to {PUSH:g} times the rate",
    Part.RECOVERY: "recovering",
    Part.AFTER: "after the push",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options that both commands have."""

    target: Sequence[str]
    policy: Path
    workload: str | None
    prompts: Path | None
    mix: str | None
    key: list[str]
    model: str | None
    extra: str | None
    goodput: float
    seed: int
    max_late_s: float
    admin: str | None


WRONG: Final = (ValueError, NoContact, WhichModel, OSError)
"""Errors of wrong options, or of a target that does not answer."""


class Judged:
    """A target, and traffic of any rate for it. Raises ValueError or PolicyErrors if the options are wrong."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.policy: Policy = load(options.policy)
        tiers = self._traffic(1.0, None).tiers
        self.tiers = set(self.policy.tiers) if tiers is None else tiers
        self.promises: list[Promise] = promises_of(self.policy, self.tiers, options.goodput)
        keys = keys_of(options.key, None, self.policy.tiers)
        url = one_target(options.target)
        self._target = Target(url, options.model, keys=keys, length=Length.CAP, extra=fields_of(options.extra))
        self._plan = Plan(seed=options.seed, grace_s=30.0)
        self._stretch_s = stretch_of(0.0)
        self.shares: dict[str, float] = {}
        """Goodput by tier in the last step, as the gateway counts it; empty without --admin."""
        self.stop = asyncio.Event()

    def _traffic(self, rate_per_s: float, duration_s: float | None) -> Traffic:
        of = self.options
        if of.prompts is not None:
            if of.workload is not None:
                raise ValueError("name the traffic once: --workload SPEC or --prompts FILE")
            kinds = PromptOptions(of.prompts, None, None, None, True, 0.0)
            return prompts_of(kinds, whose(of.mix, self.policy, of.model), rate_per_s, None, duration_s)
        return traffic_of(
            None,
            of.workload,
            mix=of.mix,
            policy=self.policy,
            model=of.model,
            rate=rate_per_s,
            speed=None,
            duration=duration_s,
        )

    async def prepare(self, out: Console) -> None:
        """Make contact, and learn how long an answer takes. Raises NoContact, WhichModel or OSError."""
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self.stop.set)
        arrivals = list(islice(self._traffic(10.0, 60.0).arrivals(self.options.seed), SAMPLES))
        if not arrivals:
            raise NoContact("the traffic has no request")
        if isinstance(arrivals[0], Written):
            await reach(self._target)
        else:
            self._target, sizes = await contact(self._target, arrivals[0], self.options.seed, out.print)
            self._plan = replace(self._plan, sizes=sizes or self._plan.sizes)
        kept = Kept()
        first = (replace(arrival, at=APART_S * number) for number, arrival in enumerate(arrivals))
        await play(first, self._target, kept, self._plan, stop=self.stop)
        answers = [one for one in kept.requests if one.outcome is Outcome.FINISHED]
        if not answers:
            told = kept.requests[0] if kept.requests else None
            why = (told.message or told.reason or told.outcome.name.lower()) if told is not None else "nothing was sent"
            raise NoContact(f"{self._target.url} answers none of the first requests: {why}")
        slowest_s = max(one.ended_s - one.arrival.at for one in answers)
        self._stretch_s = stretch_of(slowest_s)

    async def at(self, rate_per_s: float, wrong: float, budget_s: float, out: Console, number: int = 0) -> Step:
        """Test one rate until all promises are decided. `wrong`: allowed probability of a wrong verdict. Each `number`
        has other requests.
        """
        warmup_s = self._stretch_s
        most_s = warmup_s + budget_s + PUSH * MIN_STRETCHES * self._stretch_s
        arrivals: Iterator[Arrival] = self._traffic(rate_per_s, most_s).arrivals(self.options.seed + number)
        rules = Rules(wrong, budget_s, warmup_s, self._stretch_s, self.options.max_late_s)
        judged_by = self.policy, self.promises
        steps: list[Step] = []
        pushed = asyncio.Event()
        line_s = LINE_EVERY_S

        async def test() -> None:
            with out.status(f"{rate_per_s:.4g}/s") as status:

                def show(at_s: float, part: Part, found: list[Judgement]) -> None:
                    if part is not Part.BEFORE:
                        pushed.set()
                    nonlocal line_s
                    worst = told(worst_of(found))
                    line = f"{rate_per_s:.4g}/s, {at_s:.0f} of {budget_s:.0f} s, {PARTS[part]}; {worst}"
                    status.update(line)
                    if not out.is_terminal and at_s >= line_s:
                        out.print(line)
                        line_s = at_s + LINE_EVERY_S

                traffic = self._target, judged_by, self._plan
                steps.append(await step(arrivals, rate_per_s, *traffic, rules, self.stop, show))

        try:
            self.shares = await beside(self.options.admin, warmup_s, test, pushed)
        except ValueError as error:
            if not steps:
                raise
            out.print(f"{error}; the verdicts stand without it", style="red")
        found = steps[0]
        out.print(
            f"{rate_per_s:.4g}/s: {found.verdict} after {found.seconds:.0f} s{recovered(found)}; {told(found.worst)}"
        )
        return found


def recovered(found: Step) -> str:
    """The recovery from the push, as the end of a sentence."""
    if found.part is Part.RECOVERY:
        return ", had not recovered from the push"
    return f", recovered from the push in {found.recovery_s:.0f} s" if found.part is Part.AFTER else ""


def told(one: Judgement) -> str:
    """A promise, and the share that kept it with its interval."""
    return f"{one.promise.name}: {in_words(one.misses, one.requests, one.kept)}"


def in_words(misses: int, requests: int, kept: Bounds | None) -> str:
    """The share in percent with its interval, or that it is too soon for one."""
    if kept is None or (kept.low, kept.high) == (0.0, 1.0):
        return f"{misses:,} of {requests:,} requests missed it, too soon to tell"
    return f"{100 * kept.share:.4g}% ({100 * kept.low:.4g} to {100 * kept.high:.4g}%)"


def print_counted(one: Judgement, shares: dict[str, float], out: Console, indent: str = "") -> None:
    """Print the share of good requests that the gateway counts, beside a promise of goodput. The line is red if that is
    outside the interval of what clients saw.
    """
    share = counted(one, shares)
    if share is None:
        return
    text = f"{indent}{one.promise.tier}: the gateway counts {100 * share:.4g}% good"
    if differs(one, shares):
        out.print(f"{text}: clients see another service than the gateway", style="red")
    else:
        out.print(text)
