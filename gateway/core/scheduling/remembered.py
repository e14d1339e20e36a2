"""Facts that a controller hands over to its successor: costs, lengths, margins, ejections, use of quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.core.estimators.memory import objects_in
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.scheduling.state import State

MAX_BLOCKS: Final = 2**13
"""Blocks of prompts that are handed over for each pool, shared evenly by its replicas: 16 MiB of conversations."""


def memory(state: State, now: float) -> dict[str, object]:
    """Everything learned but about single replicas, as plain data."""
    return {
        "at": now,
        "pools": {name: learned.memory() for name, learned in state.forecaster.pools.items()},
        "rates": {pool.spec.name: _rates_of(pool, state) for pool in state.fleet},
        "lengths": state.forecaster.lengths.memory(),
        "prompts": state.prompts.memory(),
        "quotas": state.accounting.tenants.memory(),
        "margins": state.admission.promises.memory(),
    }


def _rates_of(pool: Pool, state: State) -> dict[str, object]:
    queues = {tier.name: pool.queue.of_tier(tier).memory() for tier in state.policy.tiers.values()}
    asked = {name: each.memory() for name, each in pool.asked.tiers.items()}
    pools = {"drain": pool.drain, "ends": pool.ends, "prompts": pool.prompts, "demand": pool.demand}
    return {**{name: each.memory() for name, each in pools.items()}, "queues": queues, "asked": asked}


def memory_of(replica: Replica, state: State) -> dict[str, object]:
    """Everything learned about a replica."""
    engine = state.forecaster.engines.get(replica.spec.name)
    return {
        "pool": replica.pool.spec.name,
        "url": replica.spec.url,
        "drained": replica.drained,
        "model": {} if engine is None else engine.memory(),
        "limit": replica.learned.memory(),
        "kv": replica.kv.memory(),
        "cache": replica.cache.evidence.memory(),
        "blocks": replica.cache.memory(MAX_BLOCKS // max(1, len(replica.pool.replicas))),
        "budget": replica.budget.memory(),
        "health": replica.health.memory(),
    }


def recall(state: State, memory: Mapping[str, object], away_s: float) -> None:
    """Take over the facts about the pools and replicas of the present policy."""
    at, now = memory.get("at"), state.call.now
    shift_s = now - away_s - at if isinstance(at, float) else 0.0
    state.forecaster.lengths.recall(memory.get("lengths"))
    state.prompts.recall(memory.get("prompts"))
    state.admission.promises.recall(memory.get("margins"), shift_s)
    state.accounting.tenants.recall(memory.get("quotas"), state.policy.tiers, now)
    pools, replicas = objects_in(memory.get("pools")), objects_in(memory.get("replicas"))
    for pool in state.fleet:
        name = pool.spec.name
        if name in pools:
            state.forecaster.of(pool).recall(pools[name], shift_s)
        for replica in pool.replicas.values():
            told = objects_in(replicas.get(replica.spec.name))
            if (told.get("pool"), told.get("url")) == (name, replica.spec.url):
                _recall_of(replica, told, state, shift_s)
        pool.refresh(now)
        for replica in pool.replicas.values():
            state.admission.price(replica, now)
            pool.tune(replica, state.admission.prefill_limit(pool), now)
        if isinstance(at, float):
            _recall_rates(pool, objects_in(objects_in(memory.get("rates")).get(name)), state, shift_s)


def _recall_of(replica: Replica, told: Mapping[str, object], state: State, shift_s: float) -> None:
    now = state.call.now
    replica.drained = told.get("drained") is True
    engine = state.forecaster.engine(replica, now)
    engine.recall(told.get("model"), shift_s)
    replica.slowness = engine.slowness
    replica.learned.recall(told.get("limit"), shift_s)
    replica.kv.recall(told.get("kv"), shift_s)
    replica.cache.evidence.recall(told.get("cache"), shift_s)
    replica.cache.resize(replica.kv.capacity_tokens)
    if not len(replica.cache):
        replica.cache.recall(told.get("blocks"))
    replica.budget.recall(told.get("budget"), shift_s)
    replica.health.recall(told.get("health"), shift_s, now)


def _recall_rates(pool: Pool, told: Mapping[str, object], state: State, shift_s: float) -> None:
    pool.drain.recall(told.get("drain"), shift_s)
    pool.ends.recall(told.get("ends"), shift_s)
    pool.prompts.recall(told.get("prompts"), shift_s)
    pool.demand.recall(told.get("demand"), shift_s)
    queues, asked = objects_in(told.get("queues")), objects_in(told.get("asked"))
    for tier in state.policy.tiers.values():
        pool.queue.of_tier(tier).recall(queues.get(tier.name), shift_s)
        if tier.name in asked:
            pool.asked.recall(tier, asked[tier.name], shift_s)
