"""Little's law between server and controller: it holds for any traffic and window, and a leak breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app import Gateway
from gateway.core.commands import Command, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.observe.metrics.little import EVERY_S, MAX_MARKS, UNREAD_S, WINDOW_S, Little, LittleView
from gateway.observe.metrics.metrics import Metrics
from gateway.proxy.occupancy import Occupancy
from gateway.settings import Settings
from tests.footprint import footprint

from .made import ASK, FREE, POLICY

START = 1000.0
SLOTS = 16  # of the short pool


class Traffic:
    """Requests at random times of random length, through a real controller, counted by a server and by metrics."""

    def __init__(self, seed: int, rate_per_s: float, service_s: float) -> None:
        self.draw = Random(seed)
        self.now = START
        self.rate_per_s, self.service_s = rate_per_s, service_s
        self.metrics = Metrics(POLICY)
        self.server = Occupancy()
        self.controller = Controller(POLICY, Random(seed))
        self.little = Little(self.metrics, lambda now: {"short": self.server.held_s(now)}, START)
        self.closes: Callable[[int], bool] = lambda request: True
        """Whether the server lets go of this request when it is over."""
        self.counts: Callable[[int], bool] = lambda request: True
        """Whether its record is counted."""
        self._due: list[tuple[float, int, Callable[[], list[Command]]]] = []
        self._requests = 0
        self._inside: set[int] = set()

    def run(self, seconds: float) -> None:
        """Let requests arrive for this long; open ones stay open."""
        until = self.now + seconds
        at = self.now + self.draw.expovariate(self.rate_per_s)
        while (next_at := min(at, self._due[0][0] if self._due else at, self.controller.wake_at())) < until:
            self.now = max(self.now, next_at)
            if self._due and self._due[0][0] <= next_at:
                _, _, call = heappop(self._due)
                self._carry_out(call())
            elif next_at < at:
                self._carry_out(self.controller.wake(self.now))
            else:
                self._requests += 1
                request = replace(
                    ASK, id=self._requests, tier=FREE, prompt_exact=100, stream=False, head_at=at, body_at=at
                )
                self._carry_out(self.controller.arrive(request, at))
                at += self.draw.expovariate(self.rate_per_s)
        self.now = until

    def read(self) -> LittleView:
        """The law of the pool now."""
        views = {view.pool: view for view in self.little.read(self.now, self.controller.held(self.now))}
        assert views["long"].in_flight == 0.0
        return views["short"]

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(request_id=request_id, attempt=attempt):
                    if request_id not in self._inside:
                        self._inside.add(request_id)
                        self.server.begin(self.now, self.now)
                    self.controller.sent(attempt, self.now)
                    finish = self.draw.expovariate(1 / self.service_s)
                    heappush(self._due, (self.now + finish, attempt, self._finisher(attempt)))
                case Ended(record=record):
                    request_id = record.request.id
                    if request_id in self._inside:
                        self._inside.discard(request_id)
                        if self.closes(request_id):
                            self.server.end(self.now)
                    if self.counts(request_id):
                        self.metrics.ended(record)
                case Refuse():
                    pass

    def _finisher(self, attempt: int) -> Callable[[], list[Command]]:
        end = AttemptOutcome.COMPLETE if self.draw.random() < 0.95 else AttemptOutcome.FAILED
        return lambda: self.controller.finish(attempt, AttemptResult(end, 100, 20, 20, 200), self.now)


@given(st.integers(0, 2**32), st.floats(0.5, 15.0), st.floats(0.05, 2.0), st.lists(st.floats(1, 90), max_size=6))
@settings(max_examples=25, deadline=None)
def test_littles_law_holds_for_any_traffic_over_any_window(
    seed: int, rate_per_s: float, service_s: float, pauses: list[float]
) -> None:
    traffic = Traffic(seed, rate_per_s, service_s)
    for pause_s in pauses:
        traffic.run(pause_s)
        traffic.read()
    traffic.run(30.0)
    found = traffic.read()
    product = found.rate_per_s * (found.time_s or 0.0)
    assert found.in_flight == pytest.approx(product, rel=1e-6, abs=1e-9)


def leaking(share: float, **what: Callable[[int], bool]) -> LittleView:
    """A minute of traffic, then a minute with a leak."""
    traffic = Traffic(7, 20.0, 0.4)
    traffic.run(60.0)
    traffic.read()
    for name, keeps in what.items():
        setattr(traffic, name, keeps)
    traffic.run(60.0)
    return traffic.read()


def test_littles_law_has_no_gap_after_a_minute_of_traffic() -> None:
    found = leaking(0.0)
    assert found.gap is not None
    assert abs(found.gap) < 1e-6
    assert found.in_flight == pytest.approx(8.0, rel=0.3)
    assert found.rate_per_s == pytest.approx(20.0, rel=0.2)
    assert found.time_s == pytest.approx(0.4, rel=0.3)


def test_littles_law_shows_requests_that_the_server_never_releases() -> None:
    found = leaking(0.02, closes=lambda request: request % 50 != 0)
    assert found.gap is not None
    assert found.gap > 0.3


def test_littles_law_shows_a_single_request_that_the_server_forgot_to_close() -> None:
    found = leaking(0.0, closes=lambda request: request != 1300)
    assert found.gap is not None
    assert found.gap > 0.01


def test_littles_law_shows_that_one_record_in_twenty_is_lost() -> None:
    found = leaking(0.02, counts=lambda request: request % 20 != 0)
    assert found.gap is not None
    assert 0.01 < found.gap < 0.2


def test_littles_law_shows_a_request_that_the_controller_never_ends() -> None:
    traffic = Traffic(7, 20.0, 0.4)
    traffic.run(60.0)
    traffic.read()
    # The server has closed its connection, but the controller never learned that the attempt ended.
    heappop(traffic._due)
    traffic.server.end(traffic.now)
    traffic.run(60.0)
    found = traffic.read()
    assert found.gap is not None
    assert found.gap < -0.05


def test_littles_law_gap_needs_a_window_of_100_mean_times() -> None:
    traffic = Traffic(3, 5.0, 2.0)
    traffic.run(90.0)
    short = traffic.read()
    assert short.window_s == pytest.approx(90.0)
    assert short.gap is None
    for _ in range(20):
        traffic.run(15.0)
        long = traffic.read()
    assert long.gap is not None
    assert long.time_s is not None
    assert 100 * long.time_s <= long.window_s <= 120 * long.time_s


def test_idle_pool_has_no_gap_in_littles_law() -> None:
    traffic = Traffic(3, 1e-9, 1.0)
    traffic.run(120.0)
    found = traffic.read()
    assert (found.in_flight, found.rate_per_s, found.time_s, found.gap) == (0.0, 0.0, None, None)


def test_littles_law_has_no_figure_below_0_after_many_requests_came_back_from_a_dead_replica() -> None:
    server_s = [80.0]
    little = Little(Metrics(POLICY), lambda now: {"short": server_s[0]}, START)
    little.read(START + 10.0, {"short": (20, 80.0)})
    server_s[0] = 10.0
    (found,) = little.read(START + 70.0, {"short": (25, 10.0)})
    assert (found.in_flight, found.time_s, found.gap) == (0.0, 0.0, None)


def test_request_that_reached_no_replica_was_not_dispatched_by_littles_law() -> None:
    traffic = Traffic(3, 1e-9, 1.0)
    request = replace(ASK, tier=FREE, head_at=START, body_at=START)
    commands = traffic.controller.arrive(request, START)
    while isinstance(sent := commands[0], Dispatch):
        commands = traffic.controller.finish(sent.attempt, AttemptResult(AttemptOutcome.UNREACHABLE), START + 2.0)
    traffic._carry_out(commands)
    traffic.now += 5.0
    (lane,) = traffic.metrics.lanes.values()
    assert lane.attempts > 0
    assert traffic.read().rate_per_s == 0.0


def test_littles_law_keeps_few_marks_however_often_it_is_read() -> None:
    traffic = Traffic(3, 1.0, 0.1)
    for _ in range(2 * MAX_MARKS):
        traffic.run(EVERY_S)
        traffic.read()
    full = footprint(traffic.little)
    for _ in range(MAX_MARKS + 100):
        traffic.run(EVERY_S / 2)
        traffic.read()
    assert footprint(traffic.little) <= 1.2 * full
    for _ in range(MAX_MARKS):
        traffic.run(EVERY_S)
        traffic.read()
    assert footprint(traffic.little) <= 1.2 * full
    assert traffic.read().window_s == pytest.approx(60.0, abs=EVERY_S)


def test_the_window_of_littles_law_does_not_grow_while_nobody_reads_it() -> None:
    traffic = Traffic(3, 5.0, 0.1)
    for _ in range(900):
        traffic.run(1.0)
        if traffic.little.is_due(traffic.now):
            traffic.read()
    assert WINDOW_S <= traffic.read().window_s <= WINDOW_S + UNREAD_S + 1.0


async def test_the_gateway_reads_littles_law_when_a_mark_is_due() -> None:
    asked = asyncio.Event()

    class Due:
        def is_due(self, now: float) -> bool:
            return True

        def read(self, now: float, held: Mapping[str, tuple[int, float]]) -> tuple[LittleView, ...]:
            asked.set()
            return ()

    async with Gateway(Settings(port=0, admin_port=0, drain_deadline_s=0.0), POLICY) as gateway:
        gateway.sweeper.little = cast(Any, Due())
        await asked.wait()


# ---- the server alone


def steps(draw: Random) -> Iterator[tuple[float, int]]:
    at = START
    while True:
        at += draw.expovariate(10.0)
        yield at, draw.choice([1, -1])


def test_occupancy_is_the_integral_of_present_requests_over_time() -> None:
    occupancy, inside, area, before = Occupancy(), 0, 0.0, START
    for at, change in steps(Random(1)):
        area += inside * (at - before)
        before = at
        if change > 0:
            occupancy.begin(at, at)
            inside += 1
        elif inside:
            occupancy.end(at)
            inside -= 1
        assert occupancy.open == inside
        assert occupancy.held_s(at) == pytest.approx(area)
        if at > START + 50:
            break


def test_moved_request_counts_for_its_new_pool_from_the_start_in_littles_law() -> None:
    here, there = Occupancy(), Occupancy()
    here.begin(10.0, 10.0)
    here.begin(11.0, 11.0)
    here.undo(10.0, 14.0)
    there.begin(10.0, 14.0)
    assert (here.open, there.open) == (1, 1)
    assert here.held_s(15.0) == pytest.approx(4.0)
    assert there.held_s(15.0) == pytest.approx(5.0)
