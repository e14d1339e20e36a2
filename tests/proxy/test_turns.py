"""Turns: the work of many tenants on bodies, in an event loop that serves everybody else as well."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from gateway.proxy.turns import AHEAD_S, ALONE_S, SHARE, SHORT_BYTES, TINY_BYTES, Turns


class Clock:
    """A clock that stands still until work is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Work of a tenant in this many parts of `part_s` seconds; each records the tenant's name."""

    def __init__(self, turns: Turns, clock: Clock, tenant: str, parts: int, part_s: float, done: list[str]) -> None:
        self._turns, self._clock, self._tenant = turns, clock, tenant
        self._left, self._part_s, self._done = parts, part_s, done
        self.finished = asyncio.Event()
        turns.add(tenant, self.part)

    def part(self) -> None:
        since = self._turns.begin()
        self._clock.now += self._part_s
        self._turns.end(self._tenant, since)
        self._done.append(self._tenant)
        self._left -= 1
        if self._left:
            self._turns.add(self._tenant, self.part)
        else:
            self.finished.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def use(turns: Turns, clock: Clock, tenant: str, seconds: float) -> None:
    assert turns.may_start(tenant, SHORT_BYTES)
    since = turns.begin()
    clock.now += seconds
    turns.end(tenant, since)


async def finish(*works: Work) -> None:
    async with asyncio.timeout(60):
        for work in works:
            await work.finished.wait()


async def test_turns_go_to_the_tenant_that_has_used_least(clock: Clock) -> None:
    turns, done = Turns(clock), list[str]()
    plan = (("a", 2, 0.0010), ("b", 2, 0.0010), ("c", 6, 0.0001))
    await finish(*[Work(turns, clock, tenant, parts, part_s, done) for tenant, parts, part_s in plan])
    assert "".join(done[:7]) == "abccccc", "c has used less than one part of the others"


async def test_loop_is_left_to_others_for_three_quarters_of_the_time(clock: Clock) -> None:
    turns, done = Turns(clock), list[str]()
    started = perf_counter()
    await finish(*[Work(turns, clock, tenant, 4, 0.01, done) for tenant in "ab"])
    # The clock of the test stands still in between, so each pause is as long as the loop's own timer makes it.
    assert perf_counter() - started >= 7 * 0.01 * (1 / SHARE - 1)


def test_long_body_and_body_behind_it_wait_and_short_ones_do_not(clock: Clock) -> None:
    turns = Turns(clock)
    assert not turns.may_start("a", SHORT_BYTES + 1)
    assert turns.may_start("a", SHORT_BYTES)


def test_tenant_that_used_more_than_its_share_waits_while_another_is_there(clock: Clock) -> None:
    turns = Turns(clock)
    use(turns, clock, "modest", 0.0001)
    for _ in range(3):
        use(turns, clock, "greedy", AHEAD_S * SHARE / 2)
    assert not turns.may_start("greedy", SHORT_BYTES)
    assert turns.may_start("greedy", TINY_BYTES)
    assert turns.may_start("modest", SHORT_BYTES)
    clock.now += AHEAD_S
    assert turns.may_start("greedy", SHORT_BYTES), "its share has caught up"


def test_tenant_that_is_alone_never_waits_with_short_bodies(clock: Clock) -> None:
    turns = Turns(clock)
    use(turns, clock, "only", 0.0)
    clock.now += ALONE_S
    for _ in range(100):
        use(turns, clock, "only", AHEAD_S)
    use(turns, clock, "other", 0.001)


async def test_short_body_of_a_tenant_waits_behind_its_long_one(clock: Clock) -> None:
    turns, done = Turns(clock), list[str]()
    work = Work(turns, clock, "a", 1, 0.0, done)
    assert not turns.may_start("a", SHORT_BYTES)
    assert turns.may_start("b", SHORT_BYTES)
    await finish(work)
    assert turns.may_start("a", SHORT_BYTES)
