"""Counts a failed attempt as load of its replica for as long as a useful answer would have taken."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.slot import R, Slot

MAX_IMPUTED_S: Final = 60.0
"""A failed attempt counts as load for at most this long."""


class ImputedLoad:
    """Failed attempts of one pool that still count as load of their replicas.

    Without this load, a replica that fails at once would look idle and get every request. Only odd answers that are its
    own count (`Judge.is_its_own`): what all engines refuse alike is no load.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, BaseReplica, int]] = []
        """Tuples (end of the load, slot number, replica, prompt tokens). The slot number is negated in the entry of a
        request, and positive in the entry of its prompt.
        """

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, slot: Slot[R], stay_s: float, now: float) -> None:
        """Count a slot that was released without a useful answer. `stay_s`: mean seconds of a useful answer."""
        replica: BaseReplica = slot.replica
        prediction = slot.prediction
        read_s = 0.0 if prediction is None else prediction.expected_s
        read_at = slot.opened_at + min(MAX_IMPUTED_S, read_s)
        if not slot.first_token and read_at > now:
            replica.imputed_tokens += slot.unread_tokens
            heappush(self._heap, (read_at, slot.number, replica, slot.unread_tokens))
        end_at = slot.opened_at + min(MAX_IMPUTED_S, max(read_s, stay_s))
        if end_at > now:
            replica.imputed += 1
            heappush(self._heap, (end_at, -slot.number, replica, 0))

    def settle(self, now: float) -> None:
        """Remove the load of attempts that would have ended by now."""
        while self._heap and self._heap[0][0] <= now:
            _, key, replica, tokens = heappop(self._heap)
            if key < 0:
                replica.imputed -= 1
            else:
                replica.imputed_tokens -= tokens
