"""The gateway itself stands still (SIGSTOP, a busy loop): what arrived meanwhile counts, and no replica is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.core.results import Outcome, Reason
from gateway.late import LATE_S, Within
from gateway.proxy.time_limits import Alarm, Deadline
from tests.foreign.client import Answer, request
from tests.foreign.loop import VirtualLoop
from tests.foreign.replica import Play
from tests.foreign.script import CHAT, DONE, HI, STOP, chunked
from tests.foreign.world import SOUND_STREAM, TTFT_S, World
from tests.interpreted import interpreted

pytestmark = interpreted

JUST_AFTER_S = 0.0005
"""When the loop reads what arrived during a stop: after the timers that were due, in its next poll."""


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def _run(loop: VirtualLoop, story: Callable[[World], Awaitable[None]]) -> None:
    async def told() -> None:
        world = World(loop)
        await story(world)
        assert world.held() == []
        assert world.down() == []
        world.close()

    loop.run_until_complete(told())


async def _answer_after_a_stop(world: World, stop_s: float, arrived: bytes) -> Answer | None:
    """Ask, stand still for `stop_s` from one second before the deadline, and then read what arrived."""
    door = world.door()
    door.protocol.data_received(request(CHAT, True, world.unlike()))
    await asyncio.sleep(TTFT_S - 1.0)
    world.loop.jump(stop_s)
    line: Any = world.replicas.lines[-1]
    world.loop.call_later(JUST_AFTER_S, line.protocol.data_received, arrived)
    return await world.answer(door)


def test_first_token_that_arrived_during_a_stop_is_in_time(loop: VirtualLoop) -> None:
    async def story(world: World) -> None:
        world.set_parts(lambda _: Play([]))
        answer = await _answer_after_a_stop(world, 2.6, SOUND_STREAM)
        assert answer is not None
        assert answer.status == 200

    _run(loop, story)


def test_request_without_an_answer_times_out_after_a_stop_all_the_same(loop: VirtualLoop) -> None:
    async def story(world: World) -> None:
        world.set_parts(lambda _: Play([]))
        answer = await _answer_after_a_stop(world, 2.6, b"HTTP/1.1 ")
        assert answer is not None
        assert answer.status == 504
        assert world.loop.time() < 1000.0 + TTFT_S + 3.0

    _run(loop, story)


def test_tokens_that_arrived_during_a_stop_are_no_silence(loop: VirtualLoop) -> None:
    async def story(world: World) -> None:
        world.set_parts(lambda _: Play([chunked(HI, last=b"")]))
        door = world.door()
        door.protocol.data_received(request(CHAT, True, world.unlike()))
        await asyncio.sleep(1.0)
        world.loop.jump(40.0)  # more than the idle timeout
        line: Any = world.replicas.lines[-1]
        more, end = (chunked(*events).partition(b"\r\n\r\n")[2] for events in ((HI,), (STOP, DONE)))
        world.loop.call_later(JUST_AFTER_S, line.protocol.data_received, more.removesuffix(b"0\r\n\r\n"))
        world.loop.call_later(1.0, line.protocol.data_received, end)
        answer = await world.answer(door)
        assert answer is not None
        assert answer.body.endswith(DONE)

    _run(loop, story)


def _connecting(world: World, finished: asyncio.Event) -> None:
    """Connections take until `finished`, and two turns more."""
    connect = world.loop.create_connection

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        await finished.wait()
        await asyncio.sleep(0)
        return await connect(*args, **kwargs)

    world.loop.create_connection = slowly  # type: ignore[method-assign]


def test_connection_that_was_made_during_a_stop_is_used(loop: VirtualLoop) -> None:
    async def story(world: World) -> None:
        finished = asyncio.Event()
        _connecting(world, finished)
        door = world.door()
        door.protocol.data_received(request(CHAT, True, world.unlike()))
        await world.turn()
        world.loop.jump(30.0)
        world.loop.call_later(JUST_AFTER_S, finished.set)
        answer = await world.answer(door)
        assert answer is not None
        assert answer.status == 200
        assert (world.records[-1].outcome, world.records[-1].attempts) == (Outcome.OK, 1)

    _run(loop, story)


def test_client_whose_request_arrived_during_a_stop_is_not_too_slow() -> None:
    slow: list[str] = []
    deadline: Deadline[str] = Deadline(10.0, slow.append, lambda _, error: None)
    deadline.start("a", 0.0)
    deadline.excuse(8.0)
    deadline.start("b", 9.0)
    assert not deadline.sweep(17.9)
    assert slow == []
    assert not deadline.sweep(18.0)
    assert slow == ["a"]


def test_alarm_that_rings_late_tells_and_rings_after_one_poll(loop: VirtualLoop) -> None:
    told: list[object] = []
    alarm = Alarm(loop, loop.time, lambda: told.append(("ring", alarm.was_late)), told.append)
    alarm.set(loop.time() + 1.0)

    async def stop(seconds: float) -> None:
        loop.jump(seconds)
        loop.call_later(JUST_AFTER_S, told.append, "arrived")
        await asyncio.sleep(0.01)

    loop.run_until_complete(stop(3.6))
    assert told == [pytest.approx(2.6), "arrived", ("ring", True)]
    told.clear()
    alarm.set(loop.time() + 1.0)
    loop.run_until_complete(stop(1.0 + LATE_S / 2))
    assert told == [("ring", False), "arrived"]


@pytest.mark.parametrize("arrives", [True, False])
def test_time_limit_that_is_over_late_gives_the_loop_its_turns(loop: VirtualLoop, arrives: bool) -> None:
    async def limited() -> tuple[bool, bool]:
        arrived = asyncio.Event()
        within = Within(1.0)
        try:
            async with within:
                loop.jump(3.0)
                if arrives:
                    loop.call_later(JUST_AFTER_S, arrived.set)
                await arrived.wait()
        except TimeoutError:
            return False, within.was_late
        return True, within.was_late

    assert loop.run_until_complete(limited()) == (arrives, True)


def test_time_limit_that_is_over_in_time_says_so(loop: VirtualLoop) -> None:
    async def limited() -> bool:
        within = Within(1.0)
        with pytest.raises(TimeoutError):
            async with within:
                await asyncio.Event().wait()
        return within.was_late

    assert loop.run_until_complete(limited()) is False


def test_cancelled_time_limit_raises_the_cancellation(loop: VirtualLoop) -> None:
    async def limited() -> None:
        async with Within(1.0):
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = loop.create_task(limited())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run_until_complete(cancelled())


def test_connection_that_the_gateway_made_too_late_is_a_timeout_without_blame(loop: VirtualLoop) -> None:
    async def story(world: World) -> None:
        finished = asyncio.Event()
        _connecting(world, finished)
        door = world.door()
        door.protocol.data_received(request(CHAT, True, world.unlike()))
        for _ in range(2):
            await world.turn()
            world.loop.jump(30.0)
            await asyncio.sleep(2 * LATE_S)
        answer = await world.answer(door)
        assert answer is not None
        assert answer.status == 504
        assert world.records[-1].why is Reason.CONNECT_TIMEOUT
        assert world.gateway.metrics.upstream_errors == {}
        finished.set()
        await asyncio.sleep(1.0)

    _run(loop, story)
