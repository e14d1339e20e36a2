"""When requests are sent: each at the time that was fixed beforehand, whatever became of those before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Protocol, TypeVar

from gateway.sim.run.retries import pause_s
from loadtests.replay.request import Outcome, Request

AT_ONCE = 32
"""Requests sent in a row without looking at what has come meanwhile."""
TRIED_AGAIN = (Outcome.SHED, Outcome.QUOTA, Outcome.FAILED, Outcome.RESET, Outcome.CONNECT, Outcome.TIMEOUT)


class Due(Protocol):
    """Something that is to be sent at a time."""

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
    """Send all items, which are in order of time. `clock` counts seconds from the beginning.

    Each is taken from `items` while there is still time before it is due, so that it is made before it is sent.
    """
    in_a_row = 0
    for item in items:
        while (left_s := item.due_s - clock()) > 0.0:
            await sleep(left_s)
            in_a_row = 0
        send(item)
        in_a_row += 1
        if in_a_row >= AT_ONCE:
            # Behind: answers have to be read all the same, or they would look slow as well.
            await sleep(0.0)
            in_a_row = 0


def rests_s(request: Request, random: Random) -> float | None:
    """How long a client rests before it tries again, as the OpenAI SDK does; None where it does not try again."""
    if request.outcome not in TRIED_AGAIN or request.first_s is not None:
        return None
    return pause_s(request.retry_after_s, request.tries, random)
