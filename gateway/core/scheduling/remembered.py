"""Learned facts of a controller, handed over to its successor: costs, lengths, margins, ejections."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.estimators.memory import objects_in
from gateway.core.fleet.pool import Replica
from gateway.core.scheduling.state import State


def memory(state: State, now: float) -> dict[str, object]:
    """Everything learned, as plain data."""
    replicas = [replica for pool in state.fleet for replica in pool.replicas.values()]
    return {
        "pools": {name: learned.memory() for name, learned in state.forecaster.pools.items()},
        "lengths": state.forecaster.lengths.memory(),
        "prompts": state.prompts.memory(),
        "margins": state.admission.promises.memory(),
        "replicas": {replica.spec.name: _memory_of(replica, state, now) for replica in replicas},
    }


def _memory_of(replica: Replica, state: State, now: float) -> dict[str, object]:
    engine = state.forecaster.engines.get(replica.spec.name)
    return {
        "pool": replica.pool.spec.name,
        "url": replica.spec.url,
        "drained": int(replica.drained),
        "model": {} if engine is None else engine.memory(),
        "limit": replica.learned.memory(),
        "kv": replica.kv.memory(),
        "cache": replica.cache.evidence.memory(),
        "health": replica.health.memory(now),
    }


def recall(state: State, memory: Mapping[str, object], away_s: float) -> None:
    """Take over the facts about the pools and replicas of the present policy."""
    state.forecaster.lengths.recall(memory.get("lengths"))
    state.prompts.recall(memory.get("prompts"))
    state.admission.promises.recall(memory.get("margins"))
    pools, replicas = objects_in(memory.get("pools")), objects_in(memory.get("replicas"))
    for pool in state.fleet:
        name, now = pool.spec.name, state.call.now
        if name in pools:
            state.forecaster.of(pool).recall(pools[name])
        for replica in pool.replicas.values():
            told = objects_in(replicas.get(replica.spec.name))
            if (told.get("pool"), told.get("url")) == (name, replica.spec.url):
                _recall_of(replica, told, state, away_s)
        pool.refresh(now)
        for replica in pool.replicas.values():
            state.admission.price(replica, now)
            pool.tune(replica, state.admission.prefill_limit(pool), now)


def _recall_of(replica: Replica, told: Mapping[str, object], state: State, away_s: float) -> None:
    now = state.call.now
    replica.drained = told.get("drained") == 1
    engine = state.forecaster.engine(replica, now)
    engine.recall(told.get("model"))
    replica.slowness = engine.slowness
    replica.learned.recall(told.get("limit"))
    replica.kv.recall(told.get("kv"))
    replica.cache.evidence.recall(told.get("cache"))
    replica.cache.resize(replica.kv.capacity_tokens)
    replica.health.recall(told.get("health"), away_s, now)
