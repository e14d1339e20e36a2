"""A queue for baselines. It stands in front of a decider that sends every request at once.

Each pool has a rule that says when it is full. While it is full, requests of one priority are shed, and all others are
held. Held requests are released by priority, then in order of arrival, or refused after their tier's queue timeout.
`Cap` is a static limit on requests in flight per replica. `Saturation` is the rule of llm-d's saturation detector. Its
defaults in llm-d's inference scheduler are: queue depth 5, KV cache .8, staleness 200 ms, a scrape every 50 ms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.core.commands import Command, Ended, Refuse
from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec
from gateway.core.request import Request
from gateway.core.request_state import RequestState
from gateway.core.results import AttemptResult, Outcome, Reason
from gateway.core.sample import Sample
from gateway.sim.baselines.balancer import Balancer
from gateway.sim.run.decider import Decider

STALE_S = 0.2


class Rule(Protocol):
    """A rule that says whether a pool is full."""

    def full(self, now: float) -> bool: ...
    def observe(self, replica_name: str, sample: Sample, now: float) -> None: ...


class Cap:
    """A pool is full while each replica that is up has `slots` requests in flight."""

    def __init__(self, balancer: Balancer, pool: str, slots: int) -> None:
        self._balancer = balancer
        self._pool = pool
        self._slots = slots

    def full(self, now: float) -> bool:
        least = self._balancer.least(self._pool, now)
        return least is not None and least >= self._slots

    def observe(self, replica_name: str, sample: Sample, now: float) -> None:
        """Ignored: the balancer knows which replicas are up."""


class Saturation:
    """By the last scrapes of its replicas, a pool is full while their mean of `max(waiting / queue, KV / kv)` is at
    least 1.

    A replica whose scrape is older than 200 ms counts as 1.
    """

    def __init__(self, pool: PoolSpec, queue: float, kv: float) -> None:
        self._queue = queue
        self._kv = kv
        self._scores = {replica.name: (1.0, -math.inf) for replica in pool.replicas}

    def full(self, now: float) -> bool:
        scores = [1.0 if now - at > STALE_S else score for score, at in self._scores.values()]
        return sum(scores) >= len(scores)

    def observe(self, replica_name: str, sample: Sample, now: float) -> None:
        """Compute the score of a replica from its scrape. Scrapes of other pools' replicas, and incomplete ones, are
        ignored.
        """
        if replica_name in self._scores and sample.waiting is not None and sample.kv_fraction is not None:
            self._scores[replica_name] = max(sample.waiting / self._queue, sample.kv_fraction / self._kv), now


class _Lane:
    """The gate of one pool: its rule, and the held requests by priority."""

    def __init__(self, rule: Rule, priorities: list[int]) -> None:
        self.rule = rule
        self.held: dict[int, deque[Request]] = {priority: deque() for priority in priorities}

    def expires_at(self) -> float:
        return min((_expires_at(held[0]) for held in self.held.values() if held), default=math.inf)


class AdmissionGate:
    """A decider that gives to `inner` only the requests that the rules allow.

    `shed`: priority whose requests are shed instead of held.
    """

    def __init__(
        self, inner: Decider, policy: Policy, rule: Callable[[PoolSpec], Rule], shed: int | None = None
    ) -> None:
        self._inner = inner
        self._shed = shed
        priorities = sorted({tier.priority for tier in policy.tiers.values()})
        self._lanes: Mapping[str, _Lane] = {p.name: _Lane(rule(p), priorities) for p in policy.pools.values()}
        # These calls are forwarded unchanged.
        self.sent = inner.sent
        self.first_token = inner.first_token
        self.progress = inner.progress

    def arrive(self, request: Request, now: float) -> list[Command]:
        """Forward the request, hold it, or shed it."""
        lane = self._lane(request)
        if request.tier.priority == self._shed and lane.rule.full(now):
            return _refused(request, Outcome.REFUSED, Reason.QUEUE_FULL, now)
        lane.held[request.tier.priority].append(request)
        return self._release(lane, now)

    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]:
        """Forward the call. Held requests may be released."""
        return self._released(self._inner.finish(attempt_id, result, now), now)

    def leave(self, request_id: int, now: float) -> list[Command]:
        """The client of a request has left. The request may be held here."""
        for lane in self._lanes.values():
            for held in lane.held.values():
                for request in held:
                    if request.id == request_id:
                        held.remove(request)
                        return [_ended(request, Outcome.ABANDONED, Reason.CLIENT_GONE, now)]
        return self._released(self._inner.leave(request_id, now), now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        """Take a scrape. Held requests may be released."""
        for lane in self._lanes.values():
            lane.rule.observe(replica_name, sample, now)
        return self._released(self._inner.observe(replica_name, sample, now), now)

    def wake(self, now: float) -> list[Command]:
        """Refuse requests that were held for longer than their tier's queue timeout."""
        out = self._released(self._inner.wake(now), now)
        for lane in self._lanes.values():
            for held in lane.held.values():
                while held and _expires_at(held[0]) <= now:
                    out += _refused(held.popleft(), Outcome.TIMEOUT, Reason.QUEUE_TIMEOUT, now)
        return out

    def wake_at(self) -> float:
        """Time of the next wake: that of the inner decider, or the time when a held request expires."""
        return min(self._inner.wake_at(), *(lane.expires_at() for lane in self._lanes.values()))

    def _lane(self, request: Request) -> _Lane:
        """The lane of the first pool on the route that takes the prompt, or else of the last pool on the route. A
        request without a route may use all pools.
        """
        route = request.policy.route(request.model, request.tier) or tuple(request.policy.pools.values())
        tokens = request.prompt_exact or request.prompt_bytes // 4
        fitting = (pool for pool in route if pool.takes(tokens))
        return self._lanes[next(fitting, route[-1]).name]

    def _release(self, lane: _Lane, now: float) -> list[Command]:
        """Release held requests, the most urgent first, until the pool is full."""
        out: list[Command] = []
        for held in lane.held.values():
            while held and not lane.rule.full(now):
                out += self._inner.arrive(held.popleft(), now)
        return out

    def _released(self, commands: list[Command], now: float) -> list[Command]:
        """`commands`, and the commands for requests that are released now."""
        for lane in self._lanes.values():
            commands += self._release(lane, now)
        return commands


def _expires_at(request: Request) -> float:
    return request.body_at + request.tier.timeouts.queue_s


def _refused(request: Request, outcome: Outcome, why: Reason, now: float) -> list[Command]:
    return [Refuse(request.id, why), _ended(request, outcome, why, now)]


def _ended(request: Request, outcome: Outcome, why: Reason, now: float) -> Ended:
    state = RequestState(request)
    state.decide(outcome, why, now)
    return Ended(state.record())
