"""Deadlines of a request in each of its phases, and timers for them: one per key, in one heap."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Final

from gateway.core.policy import AdmissionMode
from gateway.core.request_state import RequestState
from gateway.core.results import Reason

# The caller reports the progress of an answer at most once in this time, so a report may be this late. The idle
# deadline is set later by as much: it may fire late, but never early.
PROGRESS_EVERY_S: Final = 0.25


def next_deadline(state: RequestState) -> tuple[float, Reason]:
    """The earliest deadline of a request in its present state, and the reason to give when it passes.

    `queue` counts from body complete while the request waits. An enforced objective whose bound passes earlier ends the
    wait earlier. A request on hold waits as long as its pool says. `ttft` counts from sent until the first content
    token, if `Request.visible`. `idle` counts from the last progress after that, except while the attempt is paused. An
    answer whose tokens cannot be seen has only `idle`, once its body has begun. `total` counts from head received in
    every phase.
    """
    request, timeouts = state.request, state.timeouts
    total_at = request.head_at + timeouts.total_s
    if state.held_by is not None:
        spec = state.held_by.spec
        held_at = request.body_at + (0.0 if spec.hold is None else spec.hold.time_s)
        return min(total_at, request.head_at + spec.timeouts.total_s, held_at), Reason.NO_REPLICAS
    if state.waiting:
        # A total timeout in the queue is reported as a queue timeout, because a retry may succeed.
        queue_at = request.body_at + timeouts.queue_s
        is_first = state.deadline < queue_at and state.deadline <= total_at
        if is_first and request.tier.admission.mode is AdmissionMode.ENFORCE:
            return state.deadline, Reason.PREDICTED
        return min(total_at, queue_at), Reason.QUEUE_TIMEOUT
    if not state.open:
        return total_at, Reason.TOTAL_TIMEOUT
    attempt = state.committed or state.open[-1]
    if attempt.slot.paused or not (state.visible or attempt.has_begun):
        return total_at, Reason.TOTAL_TIMEOUT
    if attempt.first_at is not None or attempt.has_begun:
        idle_at = attempt.last_at + timeouts.idle_s + PROGRESS_EVERY_S
        if idle_at <= total_at:
            return idle_at, Reason.IDLE_TIMEOUT
    elif attempt.sent_at is not None:
        ttft_at = attempt.sent_at + timeouts.ttft_s
        if ttft_at < total_at:
            return ttft_at, Reason.TTFT_TIMEOUT
    return total_at, Reason.TOTAL_TIMEOUT


class Timers:
    """One timer per key, set and replaced in O(log n). A replaced timer stays in the heap as a stale entry until it
    reaches the top.

    The heap is rebuilt when three quarters of its entries are stale. So it has at most four times as many entries as
    keys.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}
        self._next_at: float | None = math.inf
        """Time of the next timer; None if it has to be found in the heap."""

    def set(self, key: int, at: float) -> None:
        """Set the timer of `key` to `at`; inf clears it."""
        self._next_at = None
        if at == math.inf:
            self._at.pop(key, None)
            return
        self._at[key] = at
        heappush(self._heap, (at, key))

    def advance(self, key: int, at: float) -> None:
        """Set the timer of `key` to `at`, unless it is set to an earlier time."""
        known = self._at.get(key)
        if at < (math.inf if known is None else known):
            self._at[key] = at
            heappush(self._heap, (at, key))
            if self._next_at is not None and at < self._next_at:
                self._next_at = at

    def clear(self, key: int) -> None:
        """Clear the timer of `key`. Ignored if there is none."""
        at = self._at.get(key)
        if at is not None:
            del self._at[key]  # not `pop`, which compiled code looks up by name
            if at == self._next_at:
                self._next_at = None
        if len(self._heap) > 4 * len(self._at) + 64:
            self._heap = [(at, k) for k, at in self._at.items()]
            heapify(self._heap)

    def at(self, key: int) -> float:
        """Time of the timer of `key`; inf if there is none."""
        return self._at.get(key, math.inf)

    def next_at(self) -> float:
        """Time of the next timer; inf if there is none."""
        return self._find_next() if self._next_at is None else self._next_at

    def _find_next(self) -> float:
        """Time of the next timer. Drops stale entries from the top of the heap."""
        heap = self._heap
        self._next_at = math.inf
        while heap:
            at, key = heap[0]
            if self._at.get(key) == at:
                self._next_at = at
                return at
            heappop(heap)
        return math.inf

    def due(self, now: float) -> list[int]:
        """Remove all timers that are due. Returns their keys, the earliest first."""
        keys: list[int] = []
        if self.next_at() > now:
            return keys
        while self._find_next() <= now:
            _, key = heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys

    @property
    def keys(self) -> frozenset[int]:
        """All keys that have a timer."""
        return frozenset(self._at)

    def __len__(self) -> int:
        return len(self._at)
