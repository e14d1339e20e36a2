"""Requests that are kept while their pool has no replica."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection

from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.request import Request
from gateway.core.serving import sent_name

Kind = tuple[str, str, str, str, bool]
"""Model, its name at replicas, tier, home of a pinned request, and whether it may fall back. Requests of one kind wait
for the same replicas: if the first has to wait, so do the others.
"""
_Turn = tuple[int, float, float, int]


class HeldRequests:
    """The requests on hold of one pool, in the order in which they are sent later: by priority, weight and arrival."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Kind, QueuedRequest]] = {}
        self._turns: dict[Kind, list[_Turn]] = {}
        self.bytes = 0
        """Bytes of the bodies."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, state: QueuedRequest, home: str, falls_back: bool) -> None:
        """Keep a request. `home`: the only replica that may serve it; empty if any may, or if none is known yet.
        `falls_back`: whether replicas of the fallback may serve it, too.
        """
        request = state.request
        kind = request.model.name, sent_name(request), request.tier.name, home, falls_back
        self._held[request.id] = kind, state
        insort(self._turns.setdefault(kind, []), _turn(request))
        self.bytes += request.body_bytes

    def position(self, state: QueuedRequest) -> int:
        """Place of a request in that order, from 1 on."""
        turn = _turn(state.request)
        return 1 + sum(bisect_left(turns, turn) for turns in self._turns.values())

    def remove(self, state: QueuedRequest) -> None:
        """Let a request go."""
        kind, _ = self._held.pop(state.request.id)
        turns = self._turns[kind]
        del turns[bisect_left(turns, _turn(state.request))]
        if not turns:
            del self._turns[kind]
        self.bytes -= state.request.body_bytes

    def first(self, but: Collection[Kind]) -> tuple[Kind, QueuedRequest] | None:
        """The request to send first, and its kind, which is none of these; None if there is none."""
        heads = [turns[0] for kind, turns in self._turns.items() if kind not in but]
        return self._held[min(heads)[3]] if heads else None

    def all(self) -> list[QueuedRequest]:
        """All requests, in no order."""
        return [state for _, state in self._held.values()]


def _turn(request: Request) -> _Turn:
    return request.tier.priority, -request.tier.weight, request.body_at, request.id
