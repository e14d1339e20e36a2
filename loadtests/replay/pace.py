"""Sends each request at its planned time, whatever the outcome of earlier requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Protocol, TypeVar

from gateway.sim.run.retries import pause_s
from loadtests.replay.request import Outcome, Request

AT_ONCE = 32
"""Most requests that are sent in a row before answers are read."""
TRIED_AGAIN = (Outcome.SHED, Outcome.QUOTA, Outcome.FAILED, Outcome.RESET, Outcome.CONNECT, Outcome.TIMEOUT)


class Due(Protocol):
    """An item to be sent at a given time."""

    @property
    def due_s(self) -> float:
        """Seconds from the beginning."""


T = TypeVar("T", bound=Due)


async def pace(
    items: Iterable[T],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    send: Callable[[T], None],
) -> None:
    """Send all items, which are sorted by time. `clock` counts seconds from the beginning.

    Each item is taken from `items` before it is due, so that making it does not delay it.
    """
    in_a_row = 0
    for item in items:
        while (left_s := item.due_s - clock()) > 0.0:
            await sleep(left_s)
            in_a_row = 0
        send(item)
        in_a_row += 1
        if in_a_row >= AT_ONCE:
            # The generator is behind, but must read answers in between: else they would look slow.
            await sleep(0.0)
            in_a_row = 0


def rests_s(request: Request, random: Random) -> float | None:
    """Seconds that a client waits before it retries, by the rules of the OpenAI SDK; None if it does not retry."""
    if request.outcome not in TRIED_AGAIN or request.first_s is not None:
        return None
    return pause_s(request.retry_after_s, request.tries, random)
