"""One rate, tried from both sides.

Near the knee a queue takes minutes to settle. A test that begins idle sees too few misses until then, and one that
begins overloaded too many. So a trial pushes the rate up for some seconds. The part before the push may say that a
promise is broken. The part after it may say that a promise is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

from gateway.core.policy import Policy
from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.request import Request
from loadtests.verdict.promises import Judgement, Promise, Tally, Verdict
from loadtests.verdict.sequential import MIN_STRETCHES, Bounds

PUSH = 1.5
"""The push, as a multiple of the rate."""
MOSTLY = 0.5
"""It lasts until more than this share of the requests of a stretch miss a promise, or for `MIN_STRETCHES` stretches."""
MEMORIES = 5.0
"""The part after a recovery has to last so many times as long as that. Of a memory that fades exponentially, less than
1% is left then."""
BEFORE = 0.5
"""The push begins after this share of the budget, if the part before it has not decided earlier."""


class Part(IntEnum):
    """The parts of a trial, in order."""

    BEFORE, PUSH, RECOVERY, AFTER = range(4)


@dataclass(slots=True)
class Trial:
    """A recorder, and the traffic that it records. `wrong`: allowed probability of a wrong verdict."""

    policy: Policy
    promises: list[Promise]
    stretch_s: float
    budget_s: float
    wrong: float
    warmup_s: float
    max_late_s: float = 0.01
    recovery_s: float = 0.0
    """Seconds from the end of the push until the target kept its promises again."""
    decided: list[Judgement] | None = None
    """The verdicts, once nothing is undecided."""
    parts: list[Tally] = field(default_factory=list)
    """Counts of the parts that have begun."""
    due_s: float = 0.0
    """Time of the last request that was taken from the traffic."""

    def __post_init__(self) -> None:
        self._begin(self.warmup_s)

    def arrivals(self, traffic: Iterable[Arrival]) -> Iterator[Arrival]:
        """The traffic, with the push, until all is decided or the budget is over."""
        came_s = 0.0
        for arrival in traffic:
            at = self.due_s + (arrival.at - came_s) / (PUSH if self.part is Part.PUSH else 1.0)
            came_s = arrival.at
            if self.decided is not None or at >= self.warmup_s + self.budget_s:
                return
            self.due_s = at
            self.parts[-1].due(at)
            yield replace(arrival, at=at)

    def gap(self, request: Request, gap_s: float, count: int) -> None:
        """Gaps are not judged."""

    def ended(self, request: Request) -> None:
        """A request is over."""
        for part in self.parts:
            part.ended(request)

    @property
    def part(self) -> Part:
        """The present part."""
        return Part(len(self.parts) - 1)

    @property
    def late(self) -> int:
        """Requests that the generator sent late."""
        return sum(part.late for part in self.parts)

    def look(self, now_s: float, under_way: Iterable[Request] = ()) -> list[Judgement]:
        """The verdicts at this time of the test. May begin the next part, or decide."""
        if self.decided is not None:
            return self.decided
        judged = self._judged(now_s, under_way)
        found = self._together(judged)
        verdicts = {one.verdict for one in found}
        if Verdict.FAIL in verdicts or Verdict.UNDECIDED not in verdicts:
            self.decided = found
        elif self.part is not Part.AFTER and self._is_over(now_s, judged[self.part]):
            self._begin(self.due_s)
        return found

    def judgements(self, now_s: float, under_way: Iterable[Request] = ()) -> list[Judgement]:
        """The verdicts by all parts."""
        return self._together(self._judged(now_s, under_way))

    def _judged(self, now_s: float, under_way: Iterable[Request]) -> dict[Part, list[Judgement]]:
        """The first part and the present one, each judged alone."""
        open_now = list(under_way)
        return {part: self.parts[part].judgements(now_s, self.wrong, open_now) for part in {Part.BEFORE, self.part}}

    def _together(self, judged: dict[Part, list[Judgement]]) -> list[Judgement]:
        before = judged[Part.BEFORE]
        if self.part is not Part.AFTER:
            return [together(one, None) for one in before]
        after = judged[Part.AFTER]
        if self.due_s - self.parts[Part.AFTER].from_s < MEMORIES * self.recovery_s:
            after = [replace(one, verdict=Verdict.UNDECIDED) for one in after]
        return [together(*both) for both in zip(before, after, strict=True)]

    def _is_over(self, now_s: float, found: list[Judgement]) -> bool:
        """Whether the present part, judged so, has done its work."""
        lasted_s = now_s - self.parts[-1].from_s
        if self.part is Part.BEFORE:
            return all(one.verdict is Verdict.PASS for one in found) or lasted_s >= BEFORE * self.budget_s
        if self.part is Part.PUSH:
            return any(_misses(found, MOSTLY)) or lasted_s >= MIN_STRETCHES * self.stretch_s
        return not all(_misses(found))

    def _begin(self, from_s: float) -> None:
        """Begin a part with the first request that is due after this time."""
        begins_s = math.nextafter(from_s, math.inf)
        if self.parts:
            if self.part is Part.RECOVERY:
                self.recovery_s = from_s - self.parts[-1].from_s
            self.parts[-1].until_s = begins_s
        self.parts.append(Tally(self.policy, self.promises, self.stretch_s, begins_s, max_late_s=self.max_late_s))


def together(before: Judgement, after: Judgement | None) -> Judgement:
    """The verdict by the parts before and after the push. Each tells one end of the interval."""
    is_broken, is_kept = before.verdict is Verdict.FAIL, after is not None and after.verdict is Verdict.PASS
    verdict = Verdict.FAIL if is_broken else Verdict.PASS if is_kept else Verdict.UNDECIDED
    if after is None:
        kept = None if before.kept is None else replace(before.kept, low=0.0)
        return replace(before, verdict=verdict, kept=kept)
    requests, misses = before.requests + after.requests, before.misses + after.misses
    ends = 0.0 if after.kept is None else after.kept.low, 1.0 if before.kept is None else before.kept.high
    kept = Bounds(1.0 - misses / max(1, requests), min(ends), max(ends))
    return replace(
        before,
        verdict=verdict,
        kept=kept,
        requests=requests,
        misses=misses,
        stretches=before.stretches + after.stretches,
    )


def _misses(found: list[Judgement], at_least: float = 0.0) -> list[bool]:
    """For each stretch that is over, whether it misses a promise, by more than this share of its requests."""
    rows = zip(*(one.stretches for one in found), strict=True)
    allowed = [1.0 - one.promise.share for one in found]
    return [any(misses > max(of, at_least) * n for (n, misses), of in zip(row, allowed, strict=True)) for row in rows]
