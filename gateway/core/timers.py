"""Timers of requests, in one heap."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush


class Timers:
    """One timer per key, set and replaced in O(log n). A replaced one is dropped when it reaches the top of the heap.

    The heap is rebuilt when more than half of it is stale, so its size stays within twice the number of keys.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}

    def set(self, key: int, at: float) -> None:
        """Wake `key` at time `at`; inf clears the timer."""
        if at == math.inf:
            self._at.pop(key, None)
            return
        self._at[key] = at
        heappush(self._heap, (at, key))

    def advance(self, key: int, at: float) -> None:
        """Wake `key` at time `at`, unless its timer is earlier."""
        known = self._at.get(key)
        if at < (math.inf if known is None else known):
            self._at[key] = at
            heappush(self._heap, (at, key))

    def clear(self, key: int) -> None:
        """Forget `key`; it may be unknown."""
        if key in self._at:
            del self._at[key]
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, k) for k, at in self._at.items()]
            heapify(self._heap)

    def at(self, key: int) -> float:
        """When the timer of `key` is due; inf without one."""
        return self._at.get(key, math.inf)

    def next_at(self) -> float:
        """When the next timer is due; inf without one."""
        heap = self._heap
        while heap:
            at, key = heap[0]
            if self._at.get(key) == at:
                return at
            heappop(heap)
        return math.inf

    def due(self, now: float) -> list[int]:
        """Remove every timer that is due, and return the keys, earliest first."""
        keys = []
        while self.next_at() <= now:
            _, key = heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys

    @property
    def keys(self) -> frozenset[int]:
        """All keys that are set."""
        return frozenset(self._at)

    def __len__(self) -> int:
        return len(self._at)
