"""The highest rate that keeps all promises: doubled until one breaks, then halved in between."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from loadtests.verdict.promises import Verdict
from loadtests.verdict.step import Step

FACTOR = 2.0
WITHIN = 0.04
"""The search ends once both ends are this near, as a share of the lower one."""


@dataclass(slots=True)
class Found:
    """The steps of a search, and its result."""

    steps: list[Step] = field(default_factory=list)
    kept_per_s: float = 0.0
    """The highest rate at which all promises were kept; 0 if there is none."""
    broken_per_s: float = math.inf
    """The lowest rate at which one was broken; inf if there is none."""
    broke: str = ""
    """The promise that broke there."""

    @property
    def rate_per_s(self) -> float:
        """The estimate: the geometric middle of both ends. 0 if nothing was kept."""
        if not self.kept_per_s or math.isinf(self.broken_per_s):
            return self.kept_per_s
        return math.sqrt(self.kept_per_s * self.broken_per_s)

    @property
    def is_narrow(self) -> bool:
        """Whether both ends are known and near each other."""
        return bool(self.kept_per_s) and self.broken_per_s <= self.kept_per_s * (1.0 + WITHIN)

    def add(self, one: Step) -> None:
        """Count a step. An undecided one is near the knee: its measured shares decide."""
        self.steps.append(one)
        kept = one.verdict is Verdict.PASS or (one.verdict is Verdict.UNDECIDED and one.seems_kept)
        if kept:
            self.kept_per_s = max(self.kept_per_s, one.rate_per_s)
            if self.broken_per_s <= self.kept_per_s:
                self.broken_per_s = math.inf  # a lower rate broke by chance: it is asked again
        elif one.rate_per_s < self.broken_per_s:
            self.broken_per_s, self.broke = one.rate_per_s, one.worst.promise.name


async def search(
    ask: Callable[[float], Awaitable[Step]], from_per_s: float, up_to_per_s: float, left: Callable[[], bool]
) -> Found:
    """Ask rates until the ends are within `WITHIN`, or nothing is `left` of the budget. Raises what `ask` raises."""
    found = Found()
    for rate in _rates(found, from_per_s, up_to_per_s):
        if not left():
            break
        one = await ask(rate)
        found.add(one)
        if one.interrupted or not one.on_time:
            break
    return found


def _rates(found: Found, from_per_s: float, up_to_per_s: float) -> Iterator[float]:
    """The next rate to ask, given the steps so far."""
    yield from_per_s
    while math.isinf(found.broken_per_s) and found.kept_per_s < up_to_per_s:
        yield min(found.kept_per_s * FACTOR, up_to_per_s)
    while not found.kept_per_s and found.broken_per_s > from_per_s / 2**10:
        yield found.broken_per_s / FACTOR
    while found.kept_per_s and found.kept_per_s * (1.0 + WITHIN) < found.broken_per_s < math.inf:
        yield math.sqrt(found.kept_per_s * found.broken_per_s)
