"""The highest rate that keeps all promises: doubled until one breaks, halved in between, then asked nearby, until the
knee is known well enough.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from loadtests.verdict.knee import Knee, knee_of
from loadtests.verdict.promises import Verdict
from loadtests.verdict.step import Step

FACTOR = 2.0
WITHIN = 0.04
"""The search ends once the knee is known this well, as a share of it, to both sides."""
MIN_STEPS = 8
"""Fewer steps do not know their own spread."""


@dataclass(slots=True)
class Found:
    """The steps of a search, and its result."""

    steps: list[Step] = field(default_factory=list)
    kept_per_s: float = 0.0
    """The highest rate that was kept; 0 if there is none."""
    broken_per_s: float = math.inf
    """The lowest rate above it that was broken; inf if there is none."""
    broke: str = ""
    """The promise that broke there."""
    knee: Knee = field(default_factory=lambda: Knee(0.0, 0.0, math.inf))

    @property
    def rate_per_s(self) -> float:
        """The estimate; 0 if nothing was kept."""
        return self.knee.rate_per_s

    @property
    def is_narrow(self) -> bool:
        """Whether the knee is known well enough."""
        return self.knee.low_per_s > 0.0 and self.knee.high_per_s <= self.knee.low_per_s * (1.0 + WITHIN) ** 2

    def add(self, one: Step) -> None:
        """Count a step. An undecided one is near the knee: its measured shares decide."""
        self.steps.append(one)
        kept = one.verdict is Verdict.PASS or (one.verdict is Verdict.UNDECIDED and one.seems_kept)
        if kept:
            self.kept_per_s = max(self.kept_per_s, one.rate_per_s)
            if self.broken_per_s <= self.kept_per_s:
                self.broken_per_s = math.inf  # a lower rate broke by chance
        elif one.rate_per_s < self.broken_per_s:
            self.broken_per_s, self.broke = one.rate_per_s, one.worst.promise.name
        self.knee = self._knee()

    def _knee(self) -> Knee:
        """The knee by all steps, between those that are decided. The ends of the search are a part of its interval."""
        if not self.kept_per_s:
            return Knee(0.0, 0.0, self.broken_per_s)
        if not self.broke:
            return Knee(self.kept_per_s, self.kept_per_s, math.inf)
        is_between = self.kept_per_s < self.broken_per_s < math.inf
        is_wide = self.broken_per_s > self.kept_per_s * (1.0 + WITHIN)
        about = math.sqrt(self.kept_per_s * self.broken_per_s) if is_between and is_wide else self.knee.rate_per_s
        surely_broken = min((one.rate_per_s for one in self.steps if one.verdict is Verdict.FAIL), default=math.inf)
        passed = (one.rate_per_s for one in self.steps if one.verdict is Verdict.PASS)
        surely_kept = max((rate for rate in passed if rate < surely_broken), default=0.0)
        found = knee_of([one for one in self.steps if surely_kept <= one.rate_per_s <= surely_broken], about)
        low, high = found.low_per_s, found.high_per_s
        if is_between:
            low, high = min(low, self.kept_per_s), max(high, self.broken_per_s)
        low, high = (min(max(end, surely_kept), surely_broken) for end in (low, high))
        return Knee(min(max(found.rate_per_s, low), high), low, high)


async def search(
    ask: Callable[[float, int], Awaitable[Step]], from_per_s: float, up_to_per_s: float, left: Callable[[], bool]
) -> Found:
    """Ask rates until the knee is known well enough, or nothing is `left` of the budget. Raises what `ask` raises.

    `ask`: tests a rate, with the number of the step, so that each sends other requests.
    """
    found = Found()
    for rate in _rates(found, from_per_s, up_to_per_s):
        if not left():
            break
        one = await ask(rate, len(found.steps))
        found.add(one)
        if one.interrupted or not one.on_time:
            break
    return found


def _rates(found: Found, from_per_s: float, up_to_per_s: float) -> Iterator[float]:
    """The next rate to ask, given the steps so far."""
    yield from_per_s
    while not found.broke and found.kept_per_s < up_to_per_s:
        yield min(found.kept_per_s * FACTOR, up_to_per_s)
    while not found.kept_per_s and found.broken_per_s > from_per_s / 2**10:
        yield found.broken_per_s / FACTOR
    while found.kept_per_s and found.broke and not (found.is_narrow and len(found.steps) >= MIN_STEPS):
        if found.kept_per_s * (1.0 + WITHIN) < found.broken_per_s < math.inf:
            yield math.sqrt(found.kept_per_s * found.broken_per_s)
        else:  # beside the knee, so that the slope is seen, too
            aside = (1.0 + WITHIN) ** (1 if len(found.steps) % 2 else -1)
            yield min(found.knee.rate_per_s * aside, up_to_per_s)
