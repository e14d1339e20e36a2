"""The event-loop lag gauge holds the largest lag for a while, then forgets it."""

import asyncio
import contextlib

from gateway.observe.metrics.lag import HOLD_S, INTERVAL_S, LoopLag


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_largest_loop_lag_is_held_and_then_forgotten() -> None:
    clock = Clock()
    seen: list[float] = []
    lag = LoopLag(clock, seen.append)
    clock.now += 0.5
    lag.woke(due=clock.now - 0.3)
    lag.woke(due=clock.now - 0.01)
    assert round(lag.read(), 6) == 0.3
    for _ in range(2):
        assert round(lag.read(), 6) == 0.3
        clock.now += HOLD_S
        lag.woke(due=clock.now - 0.02)
    assert round(lag.read(), 6) == 0.02
    assert len(seen) == 4
    assert lag.waits.counts[lag.waits.edges.index(0.5)] == 1
    # two of them in the .3 s, as long as callbacks that became ready during it waited
    assert sum(lag.waits.counts) == 6


def test_loop_stall_counts_as_a_wait_for_each_of_its_moments() -> None:
    """A callback that is ready .2 s into a stall of 1 s waits for .8 s; a single long wait would hide it."""
    clock = Clock()
    lag = LoopLag(clock, lambda _: None, interval_s=0.01)
    for _ in range(900):
        clock.now += 0.01
        lag.woke(due=clock.now)
    assert (lag.waits.quantile(0.99), sum(lag.waits.counts)) == (lag.waits.edges[0], 900)
    clock.now += 1.0
    lag.woke(due=clock.now - 0.999)
    assert sum(lag.waits.counts) == 1000
    waited = dict(zip(lag.waits.edges, lag.waits.counts, strict=False))
    assert (waited[1.0], waited[0.5], waited[0.2]) == (50, 30, 10)
    assert (lag.waits.quantile(0.95) or 0.0) > 0.2


async def test_lag_is_measured_when_the_loop_was_blocked() -> None:
    clock = Clock()
    woken = asyncio.Event()

    def each(now: float) -> None:
        woken.set()

    lag = LoopLag(clock, each)
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0)  # it has noted when it wants to wake
    clock.now += INTERVAL_S + 2.0
    async with asyncio.timeout(5):
        await woken.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert round(lag.read(), 6) == 2.0
