"""Deadlines of connections: a connection may stay in a state only for a fixed time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
MAX_AT_ONCE: Final = 32
"""At most this many keys are handled in one turn of the loop. To end a request takes up to .1 ms, and thousands may be
due at once.
"""


class Deadline(Generic[K]):
    """A set of keys that all have the same time limit. They become due in the order in which they were added, so a
    sweep reads only overdue keys.
    """

    def __init__(self, limit_s: float, act: Callable[[K], None], broke: Callable[[K, Exception], None]) -> None:
        """`limit_s`: time limit in seconds. `act` is called with each overdue key. If `act` raises, `broke` gets the
        exception, and the other keys are still handled.
        """
        self.limit_s = limit_s
        self._act = act
        self._broke = broke
        self._due: dict[K, float] = {}

    def start(self, key: K, now: float) -> None:
        """Start the time limit of `key` at `now`, or start it again."""
        self.stop(key)
        self._due[key] = now + self.limit_s

    def stop(self, key: K) -> None:
        """Remove `key`. Ignored if it is missing."""
        if key in self._due:
            del self._due[key]

    def oldest(self) -> K | None:
        """The key that is due first; None if there is none."""
        return next(iter(self._due), None)

    def sweep(self, now: float) -> bool:
        """Act on at most `MAX_AT_ONCE` overdue keys. Returns whether more are overdue."""
        for _ in range(MAX_AT_ONCE):
            key = self.oldest()
            if key is None or self._due[key] > now:
                return False
            del self._due[key]
            try:
                self._act(key)
            except Exception as error:  # noqa: BLE001 - a bug affects only this key
                self._broke(key, error)
        key = self.oldest()
        return key is not None and self._due[key] <= now

    def __len__(self) -> int:
        return len(self._due)
