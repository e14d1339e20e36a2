"""The schedule is fixed beforehand, and lateness is the generator's own fault."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from gateway.sim.workload.arrivals import Arrival
from loadtests.replay.pace import AT_ONCE, BEHIND_S, CATCH_UP_S, Backlog, pace, rests_s
from loadtests.replay.request import Outcome, Request


class Clock:
    """A clock that advances by sleep and work."""

    now = 0.0
    sleeps = 0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1


@dataclass
class Due:
    due_s: float
    sent_s: float = -1.0


async def sent(ats: list[float], clock: Clock, work_s: float = 0.0) -> list[float]:
    items = [Due(at) for at in ats]

    def send(item: Due) -> None:
        item.sent_s = clock.now
        clock.now += work_s

    await pace(items, clock, clock.sleep, send)
    return [item.sent_s for item in items]


async def test_each_request_is_sent_when_it_is_due() -> None:
    assert await sent([0.5, 0.5, 2.0], Clock()) == [0.5, 0.5, 2.0]


async def test_pace_catches_up_after_slow_sends() -> None:
    # Sending takes 1 s each: two are late, the last one is not, since the schedule does not move.
    assert await sent([0.0, 0.25, 0.5, 5.0], Clock(), work_s=1.0) == pytest.approx([0.0, 1.0, 2.0, 5.0])


async def test_a_sleep_that_ends_early_is_repeated() -> None:
    class Hasty(Clock):
        async def sleep(self, seconds: float) -> None:
            self.now += seconds / 2 if seconds > 1e-3 else seconds

    (only,) = await sent([1.0], Hasty())
    assert 1.0 <= only < 1.001


async def test_late_pace_still_yields_to_reading_answers() -> None:
    clock = Clock()
    await sent([0.0] * (3 * AT_ONCE), clock)
    assert clock.sleeps == 3


async def test_requests_are_prepared_ahead_of_their_due_time() -> None:
    clock, made = Clock(), []

    def items() -> list[Due]:
        for at in (1.0, 3.0):
            made.append((at, clock.now))
            yield Due(at)

    await pace(items(), clock, clock.sleep, lambda item: None)
    assert made == [(1.0, 0.0), (3.0, 1.0)]


def hopeless(*sent: tuple[float, float]) -> bool:
    """Whether the generator gives up, for (due, sent) of each request."""
    backlog = Backlog()
    return any(backlog.is_hopeless(*times) for times in sent)


def test_generator_whose_requests_all_leave_late_gives_up() -> None:
    assert hopeless(*((0.1 * n, 0.2 * n) for n in range(200)))


def test_generator_that_catches_up_after_a_stall_does_not_give_up() -> None:
    stalled = [(0.1 * n, 60.0 + 1e-3 * n) for n in range(600)]
    later = [(60.0 + n, 60.0 + n) for n in range(100)]
    assert not hopeless(*stalled, *later)


def test_generator_that_is_in_time_once_begins_its_count_anew() -> None:
    late = [(n, n + 2 * BEHIND_S) for n in range(int(CATCH_UP_S))]
    assert not hopeless(*late, (50.0, 50.0), *((100.0 + due, 100.0 + sent) for due, sent in late))


def over(outcome: Outcome, **details: object) -> Request:
    request = Request(0, Arrival(0.0, "t", "t", "m", 10, 10), outcome=outcome)
    for name, value in details.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(("told_s", "rests"), [(3.0, 3.0), (120.0, 120.0), (120.5, None)])
def test_retrying_clients_of_the_tester_obey_retry_after(told_s: float, rests: float | None) -> None:
    assert rests_s(over(Outcome.SHED, retry_after_s=told_s), Random(1)) == rests


def test_client_of_the_tester_backs_off_before_a_retry_without_retry_after() -> None:
    pauses = [rests_s(over(Outcome.FAILED, tries=tries), Random(1)) for tries in (1, 2, 3, 9)]
    for pause, whole in zip(pauses, (0.5, 1.0, 2.0, 8.0), strict=True):
        assert pause is not None
        assert 0.75 * whole <= pause <= whole


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.INVALID, Outcome.CUT, Outcome.ERROR_EVENT])
def test_outcome_without_retry_has_no_pause(outcome: Outcome) -> None:
    assert rests_s(over(outcome), Random(1)) is None


def test_stream_that_has_begun_is_not_retried_by_the_tester() -> None:
    assert rests_s(over(Outcome.TIMEOUT, first_s=0.5), Random(1)) is None
