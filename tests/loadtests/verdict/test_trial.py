"""A trial of one rate: only the part before the push breaks a promise, only the part after it keeps one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count, pairwise
from random import Random

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.request import FIRST_TURN, Outcome, Request
from loadtests.verdict.promises import Judgement, Promise, Verdict
from loadtests.verdict.trial import PUSH, Part, Trial
from tests.loadtests.report.made import policy

GOOD = Promise("gold", 0.95)
BOUND_S = 1.0
"""p99 of the TTFT of gold in that policy."""
STRETCH_S, WARMUP_S, BUDGET_S = 1.0, 2.0, 600.0


def arrivals(rate_per_s: float, seed: int) -> Iterator[Arrival]:
    draw, at = Random(seed), 0.0
    for _ in count():
        at += draw.expovariate(rate_per_s)
        yield Arrival(at, "gold", "", "", 100, 10)


class Queue:
    """One server that answers requests in order, each after a random time of 1 / `serves_per_s` in the mean."""

    def __init__(self, serves_per_s: float, seed: int) -> None:
        self._serves_per_s = serves_per_s
        self._draw = Random(-seed)
        self._free_s = 0.0

    def first_s(self, at: float) -> float:
        """The time of the answer to a request of this time."""
        self._free_s = max(self._free_s, at) + self._draw.expovariate(self._serves_per_s)
        return self._free_s


def tried(trial: Trial, rate_per_s: float, server: Queue, seed: int) -> list[tuple[float, Part]]:
    """Run the trial in virtual time. Returns when each request was sent, and in which part."""
    under_way: list[tuple[float, int, Request]] = []
    sent: list[tuple[float, Part]] = []
    looked_s = 0.0

    def until(now_s: float) -> None:
        while under_way and under_way[0][0] <= now_s:
            trial.ended(heapq.heappop(under_way)[2])

    for number, arrival in enumerate(trial.arrivals(arrivals(rate_per_s, seed))):
        while looked_s + 0.5 <= arrival.at:
            looked_s += 0.5
            until(looked_s)
            trial.look(looked_s, [one for _, _, one in under_way])
        sent.append((arrival.at, trial.part))
        request = Request(number, arrival, arrival.at, arrival.at)
        request.outcome, request.output_tokens = Outcome.FINISHED, 10
        request.first_s = request.last_s = request.ended_s = server.first_s(arrival.at)
        heapq.heappush(under_way, (request.ended_s, number, request))
    until(float("inf"))
    return sent


def trial_of(budget_s: float = BUDGET_S) -> Trial:
    return Trial(policy(), [GOOD], STRETCH_S, budget_s, 0.01, WARMUP_S)


def verdict(rate_per_s: float, seed: int) -> tuple[Trial, Judgement]:
    trial = trial_of()
    tried(trial, rate_per_s, Queue(20.0, seed), seed)
    (found,) = trial.decided or trial.judgements(float("inf"))
    return trial, found


def test_a_rate_that_is_kept_passes_after_the_push() -> None:
    trial, found = verdict(10.0, 1)
    assert (found.verdict, trial.part) == (Verdict.PASS, Part.AFTER)
    assert 0.0 < trial.recovery_s < 60.0
    assert found.kept is not None
    assert found.kept.low >= 0.95


def test_a_rate_that_overloads_fails_without_a_push() -> None:
    trial, found = verdict(40.0, 1)
    assert (found.verdict, trial.part) == (Verdict.FAIL, Part.BEFORE)


def test_a_queue_that_grows_slowly_never_passes() -> None:
    """At 1.01 times the capacity, a test that begins idle sees no miss for a minute, and passes by that alone."""
    passed_idle = 0
    for seed in range(10):
        trial, found = verdict(20.2, seed)
        assert found.verdict is not Verdict.PASS
        passed_idle += trial.part is not Part.BEFORE and trial.parts[1].from_s < 0.4 * BUDGET_S
    assert passed_idle > 0, "a test without a push would have passed"


def test_target_that_took_long_to_recover_is_watched_for_longer() -> None:
    trial = trial_of()
    tried(trial, 10.0, Queue(20.0, 1), 1)
    *_, after = trial.parts
    trial.recovery_s = (trial.due_s - after.from_s) / 4.9
    (found,) = trial.judgements(float("inf"))
    assert found.verdict is Verdict.UNDECIDED


def test_the_push_raises_the_rate_and_ends() -> None:
    trial = trial_of()
    sent = tried(trial, 10.0, Queue(20.0, 2), 2)
    gaps: dict[Part, list[float]] = {part: [] for part in Part}
    for (one, _), (other, part) in pairwise(sent):
        gaps[part].append(other - one)
    rates = {part: len(of) / sum(of) for part, of in gaps.items()}
    assert rates[Part.PUSH] == pytest.approx(PUSH * 10.0, rel=0.25)
    assert rates[Part.AFTER] == pytest.approx(10.0, rel=0.25)
    assert [part for part, of in gaps.items() if of] == list(Part)


def test_budget_ends_the_trial() -> None:
    trial = trial_of(budget_s=30.0)
    sent = tried(trial, 19.0, Queue(20.0, 3), 3)
    assert sent[-1][0] <= WARMUP_S + 30.0
    assert trial.decided is None


def test_later_turns_of_conversations_do_not_stand_for_first_ones() -> None:
    """A stretch with an open first request is not over, however many later turns have ended in it."""
    trial = trial_of()
    traffic = trial.arrivals(arrivals(5.0, 1))
    firsts = [next(traffic) for _ in range(50)]
    for number, arrival in enumerate(firsts):
        request = Request(FIRST_TURN + number, arrival, arrival.at, arrival.at)
        request.outcome, request.first_s, request.ended_s = Outcome.FINISHED, arrival.at, arrival.at
        trial.ended(request)
    (found,) = trial.judgements(firsts[-1].at + 5.0)
    assert found.requests == 0
