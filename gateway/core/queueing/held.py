"""Requests that are kept while their pool has no replica."""

from __future__ import annotations

from heapq import heappop, heappush

from gateway.core.queueing.queued_request import QueuedRequest


class HeldRequests:
    """The requests on hold of one pool, in the order in which they are sent later: by priority, weight and arrival."""

    def __init__(self) -> None:
        self._held: dict[int, QueuedRequest] = {}
        self._order: list[tuple[int, float, float, int]] = []
        """A heap. Entries of requests that have left stay until they reach the top."""
        self.bytes = 0
        """Bytes of the bodies."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, state: QueuedRequest) -> None:
        """Keep a request."""
        request = state.request
        self._held[request.id] = state
        heappush(self._order, _turn(state))
        self.bytes += request.body_bytes

    def position(self, state: QueuedRequest) -> int:
        """Place of a request in that order, from 1 on; O(n)."""
        turn = _turn(state)
        return 1 + sum(_turn(other) < turn for other in self._held.values())

    def remove(self, state: QueuedRequest) -> None:
        """Let a request go."""
        del self._held[state.request.id]
        self.bytes -= state.request.body_bytes

    def first(self) -> QueuedRequest | None:
        """The request to send first; None if there is none."""
        while self._order:
            found = self._held.get(self._order[0][3])
            if found is not None:
                return found
            heappop(self._order)
        return None

    def all(self) -> list[QueuedRequest]:
        """All requests, in no order."""
        return [*self._held.values()]


def _turn(state: QueuedRequest) -> tuple[int, float, float, int]:
    request = state.request
    return request.tier.priority, -request.tier.weight, request.body_at, request.id
