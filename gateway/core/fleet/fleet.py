"""All pools of the policy in force, and what is observed of their replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gateway.core.fleet.health.evidence import EVIDENCE, Observation, Says, checked, seen_of, text_of
from gateway.core.fleet.health.replica_health import UNREACHED
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.policy import Policy, Tier
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.snapshot import ReplicaState

DEFAULT_RETRY_AFTER_S: Final = 1.0


class Fleet:
    """Pools by name. The state of a pool or replica outlives a reload that keeps its name."""

    def __init__(self, policy: Policy) -> None:
        self._gateways = 1
        self._pools: dict[str, Pool] = {}
        self.configure(policy)

    def configure(self, policy: Policy, now: float = -math.inf) -> list[Pool]:
        """Apply the pools of a policy. Returns the pools that were removed. Those still finish their requests.

        Replicas added at `now` get a slow start. The replicas of the first policy do not.
        """
        old, self._pools = self._pools, {}
        for name, spec in policy.pools.items():
            pool = old.pop(name, None)
            if pool is None:
                pool = Pool(spec)
                for replica in pool.replicas.values():
                    replica.begin(now)
            else:
                pool.configure(spec, now)
            pool.probes.least_urgent = _least_urgent(policy, name)
            self._pools[name] = pool
        for gone in old.values():
            gone.configure(replace(gone.spec, replicas=()))
        self.share(self._gateways, now)
        return list(old.values())

    def share(self, gateways: int, now: float) -> list[Pool]:
        """As many gateways divide strict slots. Returns the pools whose slots may have changed."""
        self._gateways = gateways
        changed = [pool for pool in self._pools.values() if pool.gateways != gateways and pool.spec.strict_slots]
        for pool in self._pools.values():
            pool.gateways = gateways
        for pool in changed:
            pool.refresh(now)
        return changed

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def returned(self, tier: Tier, tenant: str) -> None:
        """Tell the queues that a tenant was charged less than expected, so that its turn may come earlier."""
        for pool in self._pools.values():
            if pool.queue.holds(tier):
                pool.queue.of_tier(tier).returned(tenant)

    def pool(self, name: str) -> Pool | None:
        """The pool of this name; None if the policy has none."""
        return self._pools.get(name)

    def replica(self, name: str) -> Replica | None:
        """The replica of this name; None if the policy has none."""
        for pool in self._pools.values():
            replica = pool.replicas.get(name)
            if replica is not None:
                return replica
        return None

    @property
    def alive(self) -> bool:
        """Whether any pool has a replica that gets requests."""
        return any(pool.alive for pool in self._pools.values())

    def ended(
        self, replica: Replica, result: AttemptResult, request: Request, body: int | None, now: float
    ) -> list[Replica]:
        """Judge the end of an attempt at `replica`. Returns the replicas whose state changed.

        `body`: hash of the body of the request, if it is known. A failure to connect counts for every data-parallel
        rank of that server.
        """
        seen = seen_of(result)
        if EVIDENCE[seen].is_answer:
            replica.was_alive = True
        judged = [replica]
        if seen in UNREACHED and replica.spec.dp_rank is not None:
            judged = [other for other in replica.pool.replicas.values() if other.spec.server == replica.spec.server]
        moved = []
        text = "" if seen is Observation.ANSWER else text_of(result, request.endpoint)
        for each in judged:
            before, health = each.health.state, each.pool.spec.health
            each.health.saw(seen, health, now, text)
            if EVIDENCE[seen].says in (Says.ALIVE, Says.ODD):
                each.pool.judge.answers.answered(each, seen, request.tenant, body, health, now)
            if self._moved(each, before, now):
                moved.append(each)
        return moved

    def learn_context(self, replica: Replica, result: AttemptResult) -> None:
        """Learn from the end of an attempt how long a context the replica has."""
        news = False
        if result.end is AttemptOutcome.REJECTED and result.context_tokens is not None:
            news = replica.learn_context(result.context_tokens)
        elif result.end is AttemptOutcome.COMPLETE and result.prompt_tokens is not None:
            news = replica.prove_context(result.prompt_tokens + (result.output_tokens or 0))
        if news:
            replica.pool.contexts.compare([*replica.pool.replicas.values()])

    def observe(self, replica: Replica, sample: Sample, now: float) -> bool:
        """Learn from a health check, scrape or model list of `replica`. Returns True if its breaker state changed."""
        if sample.healthy is not False:
            replica.was_alive = True
        if sample.context_tokens is not None:
            replica.context_tokens, replica.longest_tokens = sample.context_tokens, sample.longest_tokens
            replica.told_context = True
            replica.pool.contexts.compare([*replica.pool.replicas.values()])
        replica.adapters.observe(sample)
        if sample.models is not None:
            replica.pool.names.listed(replica, frozenset(sample.models))
        if sample.waiting is not None or sample.running is not None:
            replica.sample, replica.sample_at = sample, now
            # If answers are paused for slow clients, the engine may have finished them and freed their context long
            # ago.
            unsure = replica.total_held_tokens if replica.paused else replica.total_unread_tokens
            replica.kv.scraped(sample, replica.total_held_tokens, unsure, now)
            replica.cache.resize(replica.kv.capacity_tokens)
            if sample.cache_queries is not None and sample.cache_hits is not None:
                restarted = replica.cache.evidence.counted(sample.cache_queries, sample.cache_hits)
                if restarted:
                    replica.restarts += 1
                    replica.cache.clear()
            if sample.waiting is not None and sample.running is not None:
                replica.learned.scraped(sample.waiting, sample.running, replica.total_in_flight)
        if sample.generated_tokens is not None:
            replica.health.silence.counted(sample.generated_tokens, bool(sample.running or sample.waiting), now)
        seen = checked(sample, replica.health.silence.said_at)
        if seen is None:
            return False
        state = replica.health.state
        text = f"{seen}: {sample.error}" if sample.error else seen
        replica.health.saw(seen, replica.pool.spec.health, now, text, sample.asked_at)
        return self._moved(replica, state, now)

    def drain(self, replica: Replica, on: bool, now: float) -> None:
        """Stop new requests to `replica` if `on`; else let it serve again, with a slow start."""
        replica.drained = on
        if not on:
            replica.begin(now)
            replica.pool.check(now)
        replica.pool.refresh(now)

    def cool(self, now: float) -> float:
        """Try replicas again that are due, end backoffs that are over, and judge all replicas. Returns seconds until
        the next call is due.
        """
        soonest_s = math.inf
        for pool in self._pools.values():
            health = pool.spec.health
            for replica in pool.replicas.values():
                replica.health.cooled(health, now)
                if replica.health.state is ReplicaState.DOWN:
                    soonest_s = min(soonest_s, replica.health.cools_in_s(health, now))
            soonest_s = min(soonest_s, pool.check(now), pool.backoffs.end_due(now) - now)
            pool.refresh(now)
        return soonest_s

    @property
    def doubts(self) -> bool:
        """Whether any body or tenant failed lately, so that new requests need a `body_hash`."""
        return any(pool.judge.answers.doubted for pool in self._pools.values())

    def cools_in_s(self, pool_name: str, now: float) -> float:
        """Seconds until a pool whose replicas are all down may have a usable replica again; at least
        `DEFAULT_RETRY_AFTER_S`.
        """
        pool = self._pools.get(pool_name)
        if pool is None or not pool.replicas:
            return DEFAULT_RETRY_AFTER_S
        soonest_s = min(r.health.cools_in_s(pool.spec.health, now) for r in pool.replicas.values())
        return max(DEFAULT_RETRY_AFTER_S, soonest_s) if soonest_s < math.inf else DEFAULT_RETRY_AFTER_S

    @staticmethod
    def _moved(replica: Replica, before: ReplicaState, now: float) -> bool:
        state = replica.health.state
        if state is before:
            return False
        if ReplicaState.EJECTED not in (before, state):
            replica.forget_context()
            replica.cache.clear()  # the replica may be another process now, with an empty cache
        if state is ReplicaState.UP:
            if replica.began_at > -math.inf or not replica.spec.is_found:
                replica.begin(now)  # the first replicas of a pool are its only ones, and need no slow start
            replica.pool.check(now)
        replica.pool.refresh(now)
        return True


def _least_urgent(policy: Policy, pool: str) -> int:
    """The priority of the least urgent tier that `pool` may serve."""
    return max((t.priority for t in policy.tiers.values() if t.pools is None or pool in t.pools), default=0)
