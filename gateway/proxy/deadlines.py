"""Connections that may not stay as they are for longer than a fixed time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class Deadline(Generic[K]):
    """A set of keys that all get the same time. First in is first due, so a sweep looks only at those that are."""

    def __init__(self, limit_s: float, act: Callable[[K], None]) -> None:
        self.limit_s = limit_s
        self._act = act
        self._due: dict[K, float] = {}

    def start(self, key: K, now: float) -> None:
        """Give `key` its time, from now."""
        self.stop(key)
        self._due[key] = now + self.limit_s

    def stop(self, key: K) -> None:
        """Let `key` off; it may not be in the set."""
        if key in self._due:
            del self._due[key]

    def oldest(self) -> K | None:
        """The key that is due first; None if there is none."""
        return next(iter(self._due), None)

    def sweep(self, now: float) -> None:
        """Act on every key whose time is up."""
        while self._due:
            key = next(iter(self._due))
            if self._due[key] > now:
                return
            del self._due[key]
            self._act(key)

    def __len__(self) -> int:
        return len(self._due)
