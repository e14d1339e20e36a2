"""Lets the event loop run between the steps of a long computation in another thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PAUSE_S: Final = 0.001
"""The loop wakes within this time. A thread that pauses for no time at all has the interpreter's lock again before."""


def in_turns(items: Iterable[T], at_once: int) -> Iterator[T]:
    """The same items, with a pause after each few. Without it the loop would wait 5 ms for the lock at each step."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            time.sleep(PAUSE_S)
