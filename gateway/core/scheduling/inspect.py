"""Reads of the controller's state. A read changes nothing, unless its docstring says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.commands import Command
from gateway.core.policy import Policy, Tier
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.redundancy.request_quarantine import News
from gateway.core.request import Request
from gateway.core.request_state import RequestState
from gateway.core.results import Reason
from gateway.core.sample import GatewayLoad, LimitUse, PoolLoad, ReplicaLoad
from gateway.core.scheduling.explanation import LIMITS, REFUSED, PlacementExplanation, explain
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.scheduling.remembered import memory, memory_of
from gateway.core.scheduling.state import BREAKERS, OTHERS, State
from gateway.core.serving import fallback_of
from gateway.core.snapshot import QueuePosition, ReplicaState, ReplicaView, Snapshot


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resources held at one moment. Once no request is under way, all counts are 0 and all tables are empty."""

    requests: int
    attempts: int
    slots: Mapping[str, int]
    """Number of slots in use, by replica; replicas without any are left out. Removed replicas that still serve are
    included.
    """
    unread_prompts: Mapping[str, int]
    """Number of prompts that the engine has not read, by replica; replicas without any are left out."""
    unread_tokens: int
    context_tokens: int
    """Tokens of context in use at all replicas together: prompts and answers."""
    queued: int
    queued_bytes: int
    timers: frozenset[int]
    """Ids of requests that have a timer set, for a deadline or a hedge."""
    tenants: Mapping[tuple[str, str], int]
    """Number of requests that count against a concurrency limit, by (tenant, tier); pairs without any are left out."""
    promises: int
    """Number of admitted requests whose outcome `Promises` still waits for. A request counts once for each judge."""

    @property
    def is_empty(self) -> bool:
        """Whether all counts are 0 and all tables are empty."""
        return self == NOTHING_HELD


NOTHING_SEEN: Final[Mapping[str, ReplicaView]] = {}
NOTHING_HELD: Final = Holdings(0, 0, {}, {}, 0, 0, 0, 0, frozenset(), {}, 0)


class Inspector:
    """Reads the state of a controller, for its caller, the admin pages and metrics."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.prompts = state.prompts
        self.forecaster = state.forecaster
        self._call = state.call
        self._requests = state.requests
        self._attempts = state.attempts

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.state.policy

    def on_hold(self) -> dict[str, int]:
        """Number of requests on hold, by pool; pools without any are left out."""
        return {pool.spec.name: len(pool.held) for pool in self.state.fleet if pool.held}

    @property
    def decided(self) -> list[Command]:
        """Commands of the latest call. If the call raised an exception, the commands that were decided before it."""
        return self._call.commands

    @property
    def woken(self) -> int:
        """Id of the request whose deadline was acted on last."""
        return self.state.woken

    def knows(self, request_id: int) -> bool:
        """Whether this request has arrived and is not over."""
        return request_id in self._requests

    def is_open(self, attempt_id: int) -> bool:
        """Whether this attempt is under way, and so holds a slot."""
        return attempt_id in self._attempts

    def position(self, request_id: int, now: float) -> QueuePosition | None:
        """Where a request waits, queued or on hold; None if it does not wait."""
        state = self._requests.get(request_id)
        if state is not None and state.held_by is not None:
            return QueuePosition(state.held_by.held.position(state), None, True)
        if state is None or state.pool is None or not state.waiting:
            return None
        forecast = state.forecast
        wait_s = None if forecast is None else max(0.0, forecast.at + forecast.wait_s - now)
        return QueuePosition(state.pool.queue.position(state), wait_s, False)

    def left(self, tenant: str, tier: str, now: float) -> Left:
        """Requests and tokens that the tenant may still use in this minute."""
        return self.state.accounting.tenants.left(tenant, tier, now)

    def exceeded(self, tenant: str, tier: Tier, tokens: int, now: float) -> LimitExceeded | None:
        """The limit that one more request of at least `tokens` would exceed for sure; None if there is none."""
        return self.state.accounting.tenants.check(tenant, tier, tokens, now)

    def limit_uses(self, tenant: str, tier: str, now: float) -> tuple[LimitUse, ...]:
        """Use of each limit of a tenant, for the other gateways; none if the tier is unknown or sets no limit."""
        found = self.policy.tiers.get(tier)
        return () if found is None else self.state.accounting.tenants.uses(tenant, found, now)

    def suspects(self, now: float) -> bool:
        """Whether any request is suspected of killing replicas, or failed lately. New requests then need a
        `body_hash`.
        """
        return not self.state.quarantine.is_empty(now) or self.state.fleet.doubts

    def quarantined(self, now: float) -> list[News]:
        """New reports on requests in quarantine. Each is returned once, so this read changes state."""
        return self.state.quarantine.news(now)

    def disbelieved(self) -> dict[tuple[str, str], int]:
        """Number of impossible usage reports, by (pool, replica), since the last call. This read resets the numbers."""
        found, self.state.disbelieved = self.state.disbelieved, {}
        return found

    def alive(self) -> bool:
        """Whether any pool has a replica that gets requests."""
        return self.state.fleet.alive

    def restarts(self, replica: str) -> int:
        """How often the engine of this replica was seen to restart; -1 if the policy has no such replica."""
        found = self.state.fleet.replica(replica)
        return -1 if found is None else found.restarts

    def states(self) -> list[tuple[str, str, ReplicaState, str]]:
        """(pool, replica, state, why it is out) for every replica. Cheap enough to poll."""
        return [
            (pool.spec.name, name, r.state, r.health.why if r.state is not ReplicaState.DRAINED else "")
            for pool in self.state.fleet
            for name, r in pool.replicas.items()
        ]

    def load(self, interval_s: float, now: float) -> GatewayLoad:
        """The load of this gateway alone, for other gateways. `interval_s` (> 0): see `GatewayLoad`."""
        replicas: list[ReplicaLoad] = []
        pools: list[PoolLoad] = []
        for pool in self.state.fleet:
            by_tier: dict[str, int] = {}
            for name, replica in pool.replicas.items():
                budget = replica.budget
                per_s = budget.own_prompt_tokens_per_s(now)
                if not replica.in_flight and per_s < 1.0:
                    continue
                held, growth = replica.held_tokens, max(0.0, budget.growth_tokens)
                count, unread = len(replica.reading), replica.unprefilled_tokens
                replicas.append(ReplicaLoad(name, replica.in_flight, count, unread, held, growth, max(0.0, per_s)))
                for tier, requests in replica.by_tier.items():
                    by_tier[tier] = by_tier.get(tier, 0) + requests
            under_way = tuple((tier, requests) for tier, requests in by_tier.items() if requests)
            waiting = tuple(pool.queue.counts().items())
            if under_way or waiting:
                pools.append(PoolLoad(pool.spec.name, under_way, waiting))
        ejected = [
            (name, replica.health.out.value)
            for pool in self.state.fleet
            for name, replica in pool.replicas.items()
            if replica.health.out is not None
        ]
        return GatewayLoad(interval_s, tuple(replicas), tuple(pools), tuple(ejected))

    def memory(self, now: float) -> dict[str, object]:
        """Learned facts for the `recall` of a successor, as plain data, but `replicas`: see `memory_of`. The lists are
        those in use: they must be written before the next call.
        """
        return memory(self.state, now)

    def memory_of(self, replica: str) -> dict[str, object]:
        """The item of one replica in the object `replicas` of a memory; empty if the policy has no such replica."""
        found = self.state.fleet.replica(replica)
        return {} if found is None else memory_of(found, self.state)

    def held(self, now: float) -> dict[str, tuple[int, float]]:
        """By pool: the number of dispatched requests, and the sum of their ages in seconds. Cheap enough to poll."""
        held = held_by_pool(self._requests.values(), now)
        return {pool.spec.name: held.get(pool.spec.name, (0, 0.0)) for pool in self.state.fleet}

    def holdings(self) -> Holdings:
        """Resources held now; O(n) in all replicas and requests."""
        state = self.state
        pools = {id(pool): pool for pool in state.fleet}
        replicas = {id(replica): replica for pool in pools.values() for replica in pool.replicas.values()}
        for attempt in self._attempts.values():
            replicas[id(attempt.replica)] = attempt.replica
            pools[id(attempt.replica.pool)] = attempt.replica.pool
        return Holdings(
            requests=len(self._requests),
            attempts=len(self._attempts),
            slots={r.spec.name: r.in_flight for r in replicas.values() if r.in_flight},
            unread_prompts={r.spec.name: len(r.reading) for r in replicas.values() if r.reading},
            unread_tokens=sum(r.unprefilled_tokens for r in replicas.values()),
            context_tokens=sum(r.held_tokens for r in replicas.values()),
            queued=sum(len(pool.queue) for pool in pools.values()),
            queued_bytes=sum(pool.queue.bytes for pool in pools.values()),
            timers=(state.timers.keys | state.hedges.timers.keys) - {BREAKERS, OTHERS},
            tenants=state.accounting.tenants.in_flight(),
            promises=state.admission.promises.open,
        )

    def replica_views(self, names: Iterable[str], now: float) -> dict[str, ReplicaView]:
        """A part of a snapshot: copies of some replicas, by name."""
        now = max(now, self._call.now)
        found = [replica for replica in map(self.state.fleet.replica, names) if replica is not None]
        return {replica.spec.name: replica.pool.replica_view(replica, now) for replica in found}

    def snapshot(self, now: float, seen: Mapping[str, ReplicaView] = NOTHING_SEEN) -> Snapshot:
        """A copy of the state, for the admin pages and metrics. `seen`: parts of it that were copied just before."""
        now = max(now, self.state.call.now)
        state, held = self.state, self.held(now)
        return Snapshot(
            generation=state.policy.generation,
            pools=tuple(pool.view(now, *held[pool.spec.name], seen) for pool in state.fleet),
            tenants=state.accounting.tenants.views(now),
            forecast=state.forecaster.view(),
            hedged_pools=state.hedges.pool_views(now),
            hedged_tiers=state.hedges.tier_views(),
            at=now,
        )

    def explain(self, request: Request, now: float) -> PlacementExplanation | Unplaceable:
        """The decision that a request would get if it arrived now. Nothing is really decided or changed."""
        found = self._explain(request, now)
        other = fallback_of(request)
        if isinstance(found, PlacementExplanation):
            may_fall_back = found.verdict == REFUSED and found.constraint not in LIMITS
        else:
            may_fall_back = found.why is Reason.NO_REPLICAS
        if other is None or not may_fall_back:
            return found
        there = self._explain(other, now)
        if isinstance(there, Unplaceable) or there.verdict == REFUSED:
            return found
        why = found.why if isinstance(found, PlacementExplanation) else found.detail
        return replace(there, why=f"its fallback {other.model.name} serves it: {there.why}. {why}")

    def _explain(self, request: Request, now: float) -> PlacementExplanation | Unplaceable:
        """The decision that a request would get now, without the fallback of its tier."""
        core, state = self.state, RequestState(request)
        offer = core.places.find(request, now)
        if isinstance(offer, Unplaceable):
            return offer
        state.ask(offer)
        exceeded = core.accounting.exceeded(state, offer, now)
        return explain(core.admission, offer, exceeded, now)


def held_by_pool(lives: Iterable[RequestState], now: float) -> dict[str, tuple[int, float]]:
    """Number of dispatched requests by pool, and the sum of their ages in seconds.

    The age of a request counts from its dispatch to its outcome, even if attempts are still under way then.
    """
    held: dict[str, tuple[int, float]] = {}
    for state in lives:
        if state.dispatched_at is not None and state.pool is not None:
            count, seconds = held.get(state.pool.spec.name, (0, 0.0))
            age_s = (now if state.ended_at is None else state.ended_at) - state.dispatched_at
            held[state.pool.spec.name] = count + 1, seconds + age_s
    return held
