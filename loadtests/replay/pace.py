"""Sends each request at its planned time, whatever the outcome of earlier requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Protocol, TypeVar

from gateway.sim.run.retries import pause_s
from loadtests.replay.request import Outcome, Request

AT_ONCE = 32
"""Most requests that are sent in a row before answers are read."""
BEHIND_S = 1.0
"""Lateness at which a request counts in another moment than its own: the shortest bin of a report is a second."""
CATCH_UP_S = 10.0
"""Seconds in which a generator that only stalled has sent its backlog: it sends thousands a second."""
TRIED_AGAIN = (Outcome.SHED, Outcome.QUOTA, Outcome.FAILED, Outcome.RESET, Outcome.CONNECT, Outcome.TIMEOUT)


class Due(Protocol):
    """An item to be sent at a given time."""

    @property
    def due_s(self) -> float:
        """Seconds from the beginning."""


T = TypeVar("T", bound=Due)


class Backlog:
    """Tells a generator that is too slow for its traffic from one that stalled: the slow one never catches up."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def is_hopeless(self, due_s: float, sent_s: float) -> bool:
        """Whether every request of `CATCH_UP_S` left more than `BEHIND_S` late. Called for each request, when it is
        sent."""
        if sent_s - due_s <= BEHIND_S:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = sent_s
        return self._since_s is not None and sent_s - self._since_s >= CATCH_UP_S


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
