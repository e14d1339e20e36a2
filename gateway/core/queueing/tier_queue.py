"""The queue of one tier: requests by tenant, in fair turns and by latest start."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.rates import Rate, TurnRate
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.queueing.limits import TenantUse
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.queueing.shares import FairShares
from gateway.core.request import Request
from gateway.core.serving import sent_name

ARRIVALS_TAU_S: Final = 5.0
TURN_SHARE: Final = 0.5
"""A request's turn is due after this share of the time from body complete to its deadline."""
MAX_TURN_S: Final = 1.0
"""A request's turn is due after this time at the latest."""
LOOKED_AHEAD: Final = 8
"""If a replica has room, this many queued requests are compared by the cached part of their prompts."""
STALE: Final = 32
"""A heap is compacted when it has more than twice as many entries as requests, plus this many."""
Entry = tuple[float, int, int, QueuedRequest]
"""(latest start, id, ticket, request). An entry is stale if its request has a different ticket by now."""
TierKey = tuple[int, str]


class TenantQueue:
    """Queued requests of one tenant in one tier, by latest start."""

    __slots__ = ("bytes", "count", "heap", "listed", "use")

    def __init__(self, use: TenantUse) -> None:
        self.use = use
        self.listed = use.served
        """The value of `use.served` in the valid entry of the heap of turns. Other entries are stale."""
        self.count = 0
        self.bytes = 0
        """Total size of the request bodies."""
        self.heap: list[Entry] = []

    def from_last(self) -> list[QueuedRequest]:
        """The requests that may be shed. The first is the one with the largest latest start."""
        entries = sorted(self.heap, reverse=True)
        return [state for _, _, ticket, state in entries if state.ticket == ticket and _may_be_shed(state.request.tier)]


class TierQueue(Remembering):
    """Queued requests of one tier, by latest start. The tenant served least goes first once its turn is due.

    If that tenant always went first, its short bursts would make the queued requests of others late for no reason. So
    its first request must wait for `TURN_SHARE` of its allowed time, or `MAX_TURN_S`. Under overload, tenants then take
    turns, and those with a small demand are served in time.

    The latest start of a request is its deadline minus its predicted engine TTFT. Ordered by deadline alone, long
    prompts would be sent too late.

    Tokens served to a tenant are counted with a half-life (`TenantUse.serve`). The heap entry of a tenant may hold an
    old, lower count. Only the top entry matters, and a read updates it. `returned` lowers a count.
    """

    __slots__ = (
        "_earliest",
        "_flows",
        "_turns",
        "adapted",
        "admitted_at",
        "arrivals",
        "count",
        "fixed",
        "fixed_bytes",
        "key",
        "owed",
        "shares",
        "tier",
        "turns",
    )

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.key: TierKey = (tier.priority, tier.name)
        self.count = 0
        self.adapted = 0  # queued requests for LoRA adapters
        self.fixed = self.fixed_bytes = 0
        """Number of queued requests that may not be shed, and the bytes of their bodies."""
        self.owed = 0.0
        """Tokens that the tier still has to be served to reach its floor."""
        self.arrivals = Rate(ARRIVALS_TAU_S)
        """Rate of admitted requests, sent or queued."""
        self.turns, self.shares = TurnRate(), FairShares()
        self.admitted_at = -math.inf  # time of the last admission
        self._flows: dict[str, TenantQueue] = {}
        self._turns: list[tuple[float, float, int, TenantQueue]] = []
        self._earliest: list[Entry] = []

    def remembered(self) -> tuple[str, ...]:
        return "arrivals", "turns"

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All queued requests, in arbitrary order."""
        for flow in self._flows.values():
            for _, _, ticket, state in flow.heap:
                if state.ticket == ticket:
                    yield state

    def admitted(self, now: float) -> None:
        """Count a request that was sent or queued."""
        self.arrivals.add(now)
        self.admitted_at = now

    def push(self, state: QueuedRequest, ticket: int, now: float) -> None:
        assert state.use is not None
        if not self.count:
            self.turns.began(now)
        state.ticket = state.last_ticket = ticket
        forecast = state.forecast
        state.start_by = state.deadline - (0.0 if forecast is None else forecast.engine_s(state.request.body_at))
        flow = self._flows.get(state.request.tenant)
        if flow is None:
            flow = self._flows[state.request.tenant] = TenantQueue(state.use)
            heappush(self._turns, (flow.listed, state.start_by, ticket, flow))
        entry = (state.start_by, state.request.id, ticket, state)
        heappush(flow.heap, entry)
        heappush(self._earliest, entry)
        flow.count += 1
        flow.bytes += state.request.body_bytes
        if not _may_be_shed(state.request.tier):
            self.fixed += 1
            self.fixed_bytes += state.request.body_bytes
        self.count += 1
        self.adapted += bool(state.request.affinity.adapter)

    def remove(self, state: QueuedRequest, now: float) -> None:
        state.ticket = 0
        self.count -= 1
        self.adapted -= bool(state.request.affinity.adapter)
        if not _may_be_shed(state.request.tier):
            self.fixed -= 1
            self.fixed_bytes -= state.request.body_bytes
        if not self.count:
            self.turns.stopped(now)
            self._flows.clear()
            self._turns.clear()
            self._earliest.clear()
            return
        flow = self._flows[state.request.tenant]
        flow.count -= 1
        flow.bytes -= state.request.body_bytes
        if not flow.count:
            del self._flows[state.request.tenant]
            self._compact_turns()
        flow.heap = _compacted(flow.heap, flow.count)
        self._earliest = _compacted(self._earliest, self.count)

    def head(self, now: float) -> QueuedRequest | None:
        """The request to serve next."""
        turn = self._turn()
        if turn is None or now >= due_at(turn.request, turn.deadline):
            return turn
        return self.first()

    def head_but(self, blocked: set[str], now: float) -> QueuedRequest | None:
        """The request to serve next, without requests for the models and adapters in `blocked`. O(n)."""
        others = [state for state in self if sent_name(state.request) not in blocked]
        turn = min(others, key=_tenant_turn, default=None)
        if turn is None or now >= due_at(turn.request, turn.deadline):
            return turn
        return min(others, key=by_turn)

    def _turn(self) -> QueuedRequest | None:
        """The request with the earliest latest start of the tenant that was served least."""
        turns = self._turns
        while turns:
            served, _, _, flow = turns[0]
            head = _first(flow.heap)
            if head is None or served != flow.listed:
                heappop(turns)
            elif flow.use.served != served:
                flow.listed = flow.use.served
                heapreplace(turns, (flow.listed, head.start_by, head.ticket, flow))
            else:
                return head
        return None

    def returned(self, tenant: str) -> None:
        """Move a tenant forward, because its answer was shorter than expected and tokens were returned to it."""
        flow = self._flows.get(tenant)
        head = None if flow is None else _first(flow.heap)
        if flow is None or head is None or flow.use.served >= flow.listed:
            return
        flow.listed = flow.use.served
        heappush(self._turns, (flow.listed, head.start_by, head.ticket, flow))
        self._compact_turns()

    def _compact_turns(self) -> None:
        """Drop stale entries of tenants, if there are many."""
        if len(self._turns) > 2 * len(self._flows) + STALE:
            self._turns = [turn for turn in self._turns if turn[3].count and turn[0] == turn[3].listed]
            heapify(self._turns)

    def first(self) -> QueuedRequest | None:
        """The request with the earliest latest start."""
        return _first(self._earliest)

    def earliest(self, blocked: set[str]) -> list[QueuedRequest]:
        """Up to `LOOKED_AHEAD` requests from the top of the heap, by latest start. They need not be exactly the
        earliest.

        If models or adapters are `blocked`, the result is exactly the earliest requests for others, in O(n log n).
        """
        if blocked:
            free = (state for state in self if sent_name(state.request) not in blocked)
            return sorted(free, key=by_turn)[:LOOKED_AHEAD]
        top = sorted(entry for entry in self._earliest[: 2 * LOOKED_AHEAD] if entry[3].ticket == entry[2])
        return [state for _, _, _, state in top[:LOOKED_AHEAD]]

    def in_order(self) -> list[QueuedRequest]:
        """All queued requests, the earliest latest start first."""
        return sorted(self, key=by_turn)

    def least_savable(self) -> QueuedRequest | None:
        """Of the requests that may be shed, the one with the earliest latest start: it is the likeliest to be late."""
        first = self.first()
        if first is None or _may_be_shed(first.request.tier):
            return first
        return min((state for state in self if _may_be_shed(state.request.tier)), key=by_turn, default=None)

    def yield_to(self, tenant: str, body_bytes: int, by_count: bool, spare_bytes: int) -> list[QueuedRequest]:
        """The queued requests that a new request of `tenant` displaces from a full queue; empty if the tenant has its
        share.

        Each tenant has an equal share of the tier's requests and bytes. If the new request keeps its tenant within its
        share, it displaces requests of tenants above theirs. Those tenants keep at least their share. `by_count`:
        whether the queue is full in requests. `spare_bytes`: bytes left in the queue.
        """
        own = self._flows.get(tenant)
        tenants = len(self._flows) + (own is None)
        share = max(1, self.count // tenants)
        held = sum(flow.bytes for flow in self._flows.values())
        byte_share = held // tenants
        count, size = (0, 0) if own is None else (own.count, own.bytes)
        wanted = body_bytes - spare_bytes
        if count >= share or (wanted > 0 and size + body_bytes > byte_share):
            return []
        others = [flow for flow in self._flows.values() if flow is not own]
        if wanted > 0:
            over = sorted((flow for flow in others if flow.bytes > byte_share), key=_bytes, reverse=True)
        else:
            over = sorted((flow for flow in others if flow.count > share), key=_count, reverse=True)
        out: list[QueuedRequest] = []
        for flow in over:
            left, left_bytes = flow.count, flow.bytes
            for state in flow.from_last():
                if (out or not by_count) and wanted <= 0:
                    return out
                if left_bytes <= byte_share if wanted > 0 else left <= share:
                    break
                out.append(state)
                left -= 1
                left_bytes -= state.request.body_bytes
                wanted -= state.request.body_bytes
        return out if (out or not by_count) and wanted <= 0 else []

    def ahead_of(self, tenant: str, start_by: float = math.inf) -> int:
        """Number of requests of this tier that would be served before a new one of `tenant`, as tenants take turns.

        If `start_by` is given, only requests with at most this latest start count, in O(n).
        """
        flow = self._flows.get(tenant)
        mine = 0 if flow is None else flow.count
        others = len(self._flows) - (flow is not None)
        earlier = self.count
        if start_by < math.inf:
            earlier = 0
            for start, _, ticket, state in self._earliest:
                if start <= start_by and state.ticket == ticket:
                    earlier += 1
        return min(earlier, mine + others * (mine + 1))


def due_at(request: Request, deadline: float) -> float:
    """Time from which the turn of a request is due. Then it may go before requests with earlier latest starts."""
    at = request.body_at
    return at + min(MAX_TURN_S, TURN_SHARE * (deadline - at))


def _first(heap: list[Entry]) -> QueuedRequest | None:
    """The first request of a heap. Drops stale entries at the top."""
    while heap and heap[0][3].ticket != heap[0][2]:
        heappop(heap)
    return heap[0][3] if heap else None


def _compacted(heap: list[Entry], count: int) -> list[Entry]:
    """The heap, without stale entries if it has many. `count`: number of requests that still wait."""
    if len(heap) <= 2 * count + STALE:
        return heap
    kept = [entry for entry in heap if entry[3].ticket == entry[2]]
    heapify(kept)
    return kept


def _tenant_turn(state: QueuedRequest) -> tuple[float, float, int]:
    return 0.0 if state.use is None else state.use.served, state.start_by, state.request.id


def _count(flow: TenantQueue) -> int:
    return flow.count


def _bytes(flow: TenantQueue) -> int:
    return flow.bytes


def _may_be_shed(tier: Tier) -> bool:
    return tier.admission.mode is AdmissionMode.ENFORCE


def by_turn(state: QueuedRequest) -> tuple[int, float, int]:
    """A sort key: the most urgent tier first, then the earliest latest start."""
    return state.request.tier.priority, state.start_by, state.request.id
