"""Where requests wait for a slot, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from gateway.core.policy import AdmissionMode, Tier
from gateway.core.queueing.limits import TenantUse
from gateway.core.queueing.rates import Rate
from gateway.core.queueing.request import QueuedRequest

ARRIVALS_TAU_S: Final = 5.0
TURN_SHARE: Final = 0.5
"""Of the time that it may wait, after which a tenant's turn goes before earlier deadlines of others,"""
MAX_TURN_S: Final = 1.0
"""or so much, if that is less."""
FLOOR_MARGIN: Final = 1.25
"""A floor is a share of every ten seconds, served in whole requests: aimed at exactly, it would often be missed."""
STALE: Final = 32
"""Entries of requests that are gone, beyond as many as wait, that a heap may hold."""

Entry = tuple[float, int, int, QueuedRequest]
"""(start by, id, ticket, request): the entry of a request whose ticket is another one is stale."""
BandKey = tuple[int, str]


class TenantQueue:
    """Those of one tenant, in the order in which they have to be sent."""

    __slots__ = ("bytes", "count", "heap", "use")

    def __init__(self, use: TenantUse) -> None:
        self.use = use
        self.count = 0
        self.bytes = 0
        """Size of their bodies together."""
        self.heap: list[Entry] = []

    def from_last(self) -> list[QueuedRequest]:
        """The requests that may be shed; the one that may be sent last comes first."""
        entries = sorted(self.heap, reverse=True)
        return [live for _, _, ticket, live in entries if live.ticket == ticket and _may_be_shed(live.ask.tier)]


class TierQueue:
    """Those of one tier: who has to be sent first, until the tenant that was served least has waited for a while.

    Were that tenant always next, a short burst would leave what others have in the room to wait until it is too late,
    though there is time for all. It is next, with the first of its own, once that one has waited for
    `TURN_SHARE` of the time that it has, or `MAX_TURN_S`: where there are too many for all to be in time, tenants take
    turns, and those that ask for little are in time.

    A request has to be sent by its deadline less what its engine takes to its first token. By deadlines alone, the turn
    of long prompts would come when it is too late for them, and for them only.

    What a tenant was served is counted in tokens, with a half-life (`TenantUse.serve`). The heap of tenants keeps
    what that was when the tenant was put in; it only matters at the top, where it is looked up anew.
    """

    __slots__ = (
        "_earliest",
        "_flows",
        "_latest",
        "_turns",
        "admitted_at",
        "arrivals",
        "count",
        "fixed",
        "fixed_bytes",
        "key",
        "owed",
        "tier",
    )

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.key: BandKey = (tier.priority, tier.name)
        self.count = 0
        self.fixed = self.fixed_bytes = 0
        """Those of them that may not be shed, and the bytes of their bodies."""
        self.owed = 0.0
        """Tokens that the tier's floor entitles it to and it has not had."""
        self.arrivals = Rate(ARRIVALS_TAU_S)
        """Requests admitted per second, waiting or not,"""
        self.admitted_at = -math.inf
        """and the last of them."""
        self._flows: dict[str, TenantQueue] = {}
        self._turns: list[tuple[float, float, int, TenantQueue]] = []
        self._earliest: list[Entry] = []
        self._latest: list[Entry] = []

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All who wait, in no order that means anything."""
        for flow in self._flows.values():
            for _, _, ticket, live in flow.heap:
                if live.ticket == ticket:
                    yield live

    def admitted(self, now: float) -> None:
        """One more was sent, or let wait."""
        self.arrivals.add(now)
        self.admitted_at = now

    def push(self, live: QueuedRequest, ticket: int) -> None:
        assert live.use is not None
        live.ticket = ticket
        live.start_by = live.deadline - (0.0 if live.forecast is None else live.forecast.engine_s(live.ask.body_at))
        flow = self._flows.get(live.ask.tenant)
        if flow is None:
            flow = self._flows[live.ask.tenant] = TenantQueue(live.use)
            heappush(self._turns, (live.use.served, live.start_by, ticket, flow))
        entry = (live.start_by, live.ask.id, ticket, live)
        heappush(flow.heap, entry)
        heappush(self._earliest, entry)
        flow.count += 1
        flow.bytes += live.ask.body_bytes
        if _may_be_shed(live.ask.tier):
            heappush(self._latest, (-live.start_by, -live.ask.id, ticket, live))
        else:
            self.fixed += 1
            self.fixed_bytes += live.ask.body_bytes
        self.count += 1

    def remove(self, live: QueuedRequest) -> None:
        live.ticket = 0
        self.count -= 1
        if not _may_be_shed(live.ask.tier):
            self.fixed -= 1
            self.fixed_bytes -= live.ask.body_bytes
        if not self.count:
            self._flows.clear()
            self._turns.clear()
            self._earliest.clear()
            self._latest.clear()
            return
        flow = self._flows[live.ask.tenant]
        flow.count -= 1
        flow.bytes -= live.ask.body_bytes
        if not flow.count:
            del self._flows[live.ask.tenant]
            if len(self._turns) > 2 * len(self._flows) + STALE:
                self._turns = [turn for turn in self._turns if turn[3].count]
                heapify(self._turns)
        flow.heap = _compacted(flow.heap, flow.count)
        self._earliest = _compacted(self._earliest, self.count)
        self._latest = _compacted(self._latest, self.count)

    def head(self, now: float) -> QueuedRequest | None:
        """The one to be served next."""
        turn = self._turn()
        if turn is None or now - turn.ask.body_at >= min(MAX_TURN_S, TURN_SHARE * (turn.deadline - turn.ask.body_at)):
            return turn
        return self.first()

    def _turn(self) -> QueuedRequest | None:
        """The first of the tenant that was served least."""
        turns = self._turns
        while turns:
            served, _, _, flow = turns[0]
            head = _first(flow.heap)
            if head is None:
                heappop(turns)
            elif flow.use.served != served:
                heapreplace(turns, (flow.use.served, head.start_by, head.ticket, flow))
            else:
                return head
        return None

    def first(self) -> QueuedRequest | None:
        """The one that has to be sent first."""
        return _first(self._earliest)

    def last(self) -> QueuedRequest | None:
        """The one that could be sent last of those that may be shed."""
        return _first(self._latest)

    def yield_to(self, tenant: str, body_bytes: int, by_count: bool, spare_bytes: int) -> list[QueuedRequest]:
        """The requests that make way for a newcomer of `tenant` in a full room; none if it has its share already.

        Every tenant of the tier has a like share of the requests, and of the bytes, that the tier holds. One that would
        have no more than its share with the newcomer gets it, from those that have more; these keep theirs. `by_count`:
        the room is full in requests, too. `spare_bytes` are left in it.
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
            for live in flow.from_last():
                if (out or not by_count) and wanted <= 0:
                    return out
                if left_bytes <= byte_share if wanted > 0 else left <= share:
                    break
                out.append(live)
                left -= 1
                left_bytes -= live.ask.body_bytes
                wanted -= live.ask.body_bytes
        return out if (out or not by_count) and wanted <= 0 else []

    def ahead_of(self, tenant: str) -> int:
        """How many of this tier go before a newcomer of `tenant`: tenants take turns."""
        flow = self._flows.get(tenant)
        mine = 0 if flow is None else flow.count
        others = len(self._flows) - (flow is not None)
        return min(self.count, mine + others * (mine + 1))


def _first(heap: list[Entry]) -> QueuedRequest | None:
    """The top of a heap, without those that are gone."""
    while heap and heap[0][3].ticket != heap[0][2]:
        heappop(heap)
    return heap[0][3] if heap else None


def _compacted(heap: list[Entry], count: int) -> list[Entry]:
    """A heap of which `count` still wait, rid of the others once they are many."""
    if len(heap) <= 2 * count + STALE:
        return heap
    kept = [entry for entry in heap if entry[3].ticket == entry[2]]
    heapify(kept)
    return kept


class PoolQueue:
    """A band for each tier. Priorities are strict, but for a tier that is owed some of its floor: it goes first.

    Bands of one priority take turns by when their heads have to be sent. Bounded by its caller, in requests and in
    bytes of held bodies. Every operation is O(log n) in the requests that wait, and looks at every band at most.
    """

    def __init__(self) -> None:
        self._bands: dict[BandKey, TierQueue] = {}
        self._count = 0
        self._tickets = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All who wait, by priority and by when they have to be sent."""
        return iter(sorted((live for band in self._bands.values() for live in band), key=_turn))

    def band(self, tier: Tier) -> TierQueue:
        """The band of a tier; it outlives those who wait in it."""
        key = tier.priority, tier.name
        band = self._bands.get(key)
        if band is None:
            self._bands[key] = TierQueue(tier)
            self._bands = dict(sorted(self._bands.items()))
            band = self._bands[key]
        return band

    def push(self, live: QueuedRequest) -> None:
        """Let `live` wait; its `deadline` and its forecast say where it stands."""
        self._tickets += 1
        band = self.band(live.ask.tier)
        band.tier = live.ask.tier
        band.push(live, self._tickets)
        self._count += 1
        self.bytes += live.ask.body_bytes

    def remove(self, live: QueuedRequest) -> None:
        """Take `live` out, wherever it stands: it is served, it left, or its deadline passed."""
        self.band(live.ask.tier).remove(live)
        self._count -= 1
        self.bytes -= live.ask.body_bytes

    def holds(self, tier: Tier) -> bool:
        """Whether any request of `tier` waits."""
        band = self._bands.get((tier.priority, tier.name))
        return band is not None and band.count > 0

    def heads(self, now: float) -> list[QueuedRequest]:
        """The first of every band, in the order in which they are served."""
        heads = [(band.owed <= 0.0, _turn(head), head) for band in self._bands.values() if (head := band.head(now))]
        if len(heads) > 1:
            heads.sort(key=_place)
        return [head for _, _, head in heads]

    def last_below(self, priority: int) -> QueuedRequest | None:
        """The one to be served last of those that may be shed and are less urgent than `priority`."""
        lasts = (band.last() for band in self._bands.values() if band.count and band.key[0] > priority)
        return max((last for last in lasts if last is not None), key=_turn, default=None)

    def shared_with(self, priority: int) -> tuple[int, int]:
        """How many wait, and bytes of their bodies, of those that a newcomer of `priority` has to share the room with.

        Less urgent ones that may not be shed do not count: they cannot make way.
        """
        count, held = self._count, self.bytes
        for band in self._bands.values():
            if band.key[0] > priority:
                count -= band.fixed
                held -= band.fixed_bytes
        return count, held

    def ahead_of(self, priority: int) -> int:
        """How many wait of this priority and above."""
        return sum(band.count for band in self._bands.values() if band.key[0] <= priority)

    def above(self, tier: Tier, now: float) -> tuple[int, float]:
        """Of tiers that go before `tier`: how many wait, and how many come per second."""
        count, rate = 0, 0.0
        for band in self._bands.values():
            if band.key[0] < tier.priority:
                count += band.count
                rate += band.arrivals.per_s(now)
        return count, rate

    def served(self, tier: Tier, tokens: float) -> None:
        """`tokens` were dispatched, of `tier`: tiers with a floor are owed their share of it while they wait."""
        key = tier.priority, tier.name
        for band in self._bands.values():
            if band.tier.floor <= 0.0:
                continue
            owed = band.owed + band.tier.floor * FLOOR_MARGIN * tokens
            if band.key == key:
                # What it was given on top of its floor is no debt: nobody else wanted it.
                owed = max(owed - tokens, -tokens)
            elif not band.count:
                owed = min(owed, 0.0)
            band.owed = owed


def _turn(live: QueuedRequest) -> tuple[int, float, int]:
    return live.ask.tier.priority, live.start_by, live.ask.id


def _place(entry: tuple[bool, tuple[int, float, int], QueuedRequest]) -> tuple[bool, tuple[int, float, int]]:
    return entry[0], entry[1]


def _count(flow: TenantQueue) -> int:
    return flow.count


def _bytes(flow: TenantQueue) -> int:
    return flow.bytes


def _may_be_shed(tier: Tier) -> bool:
    return tier.admission.mode is AdmissionMode.ENFORCE
