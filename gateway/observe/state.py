"""The state of the process as one JSON document, for operators and for the console page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson
from fastapi import Response

from gateway.core.estimators.histograms import quantile
from gateway.core.policy import Model, Tier
from gateway.core.snapshot import PoolView, ReplicaState
from gateway.observe.build_info import kind
from gateway.observe.headline import headlines
from gateway.observe.metrics.arms import ArmFacts
from gateway.observe.metrics.facts import Attainment, RefusalFamily, TierFacts
from gateway.observe.metrics.kept import binds
from gateway.observe.metrics.metrics import WHYS, Metrics
from gateway.observe.metrics.stages import STAGES
from gateway.observe.metrics.window import SPAN_S, Quantiles
from gateway.observe.snapshots import REPLICAS_AT_ONCE
from gateway.observe.sources import Sources

TENANTS_SHOWN = 100
NO_STORE = {"cache-control": "no-store"}
_FIELDS: dict[type, tuple[str, ...]] = {}
"""Names of the fields of each dataclass that was encoded."""
TOLD = (RefusalFamily.AT_ONCE, RefusalFamily.WAITED)


def _shallow(value: Any) -> dict[str, Any]:
    """The fields of a dataclass. The dataclasses in them come here in their turn, so nothing is copied twice."""
    names = _FIELDS.get(type(value))
    if names is None:
        names = _FIELDS[type(value)] = tuple(field.name for field in fields(value))
    return {name: getattr(value, name) for name in names}


def document(value: object) -> bytes:
    """JSON of a value that contains dataclasses. They are converted first, because orjson crashes on compiled
    dataclasses.
    """
    return orjson.dumps(value, default=_shallow, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def page_of(value: object, status: int = 200) -> Response:
    """The same as a page that no cache keeps."""
    return Response(document(value), status, NO_STORE, "application/json")


async def state_pieces(found: Mapping[str, object]) -> AsyncIterator[bytes]:
    """JSON of the state, in pieces of at most `REPLICAS_AT_ONCE` replicas. The event loop runs other work between
    them: it forwards tokens, too.
    """
    pools = found["pools"]
    assert isinstance(pools, tuple)
    yield document({name: value for name, value in found.items() if name != "pools"})[:-1] + b',"pools":['
    for number, pool in enumerate(pools):
        told = _shallow(pool)
        replicas = told.pop("replicas")
        yield (b"," if number else b"") + document(told)[:-1] + b',"replicas":['
        for start in range(0, len(replicas), REPLICAS_AT_ONCE):
            await asyncio.sleep(0)
            part = document(replicas[start : start + REPLICAS_AT_ONCE])[1:-1]
            yield (b"," if start else b"") + part
        yield b"]}"
    yield b"]}"


async def state(metrics: Metrics, sources: Sources, started: float) -> dict[str, object]:
    """The present state, with sliding windows up to `sources.now()`. It contains dataclasses: see `document`."""
    snapshot = await sources.snapshot_in_pieces()
    now, policy, reload = sources.now(), sources.policy(), sources.reload()
    not_ready, watched, discovered = sources.not_ready(), sources.watched(), sources.discovered()
    busiest = sorted(snapshot.tenants, key=lambda tenant: (-tenant.in_flight, tenant.tenant))
    return {
        "version": sources.version,
        "build": kind(),
        "pid": os.getpid(),
        "uptime_s": now - started,
        "ready": not not_ready,
        "not_ready": not_ready,
        "headlines": headlines(metrics, snapshot, watched, now, sources.store(), discovered),
        "policy": {
            "generation": policy.generation,
            "digest": policy.digest,
            "reloaded_at_unix_s": reload.at_unix_s,
            "reload_error": reload.error,
        },
        "connections": sources.connections(),
        "relays": sources.relays(),
        "store": sources.store(),
        "loop_lag_s": sources.loop_lag_s(),
        "window_s": SPAN_S,
        "tiers": [
            {**_tier(metrics, tier, now), "binds": binds(metrics, snapshot, tier.name)}
            for tier in sorted(policy.tiers.values(), key=lambda tier: (tier.priority, tier.name))
        ],
        "splits": [
            _split(metrics, model, now) for name, model in policy.models.items() if model.split and name == model.name
        ],
        "fallbacks": [
            {"tier": tier, "asked": asked, "served": served, "outcome": outcome.value, "total": total}
            for (tier, asked, served, outcome), total in metrics.fallbacks.items()
        ],
        "pools": snapshot.pools,
        "little": sources.little(snapshot),
        "forecast": snapshot.forecast,
        "hedging": {"pools": snapshot.hedged_pools, "tiers": snapshot.hedged_tiers},
        "sources": discovered,
        "unreadable": [{"replica": one.name, "pool": one.pool, "errors": one.errors} for one in watched if one.errors],
        "tenants": busiest[:TENANTS_SHOWN],
        "tenants_total": len(busiest),
        "reasons": {
            "window": _reasons(metrics.recent_whys.read(now)),
            "total": _reasons(metrics.whys),
        },
    }


def _tier(metrics: Metrics, tier: Tier, now: float) -> dict[str, object]:
    facts = metrics.tiers.get(tier.name) or TierFacts(tier)
    return {
        "name": tier.name,
        "priority": tier.priority,
        "weight": tier.weight,
        "value": tier.value.value,
        "window": _counts(facts.recent.read(now)),
        "total": _counts(facts.counts),
        "admissions": _admissions(facts.recent_admissions.read(now)),
        "waits": {"sent" if end is None else end.value: count for end, count in facts.waits.items()},
        "latencies": {
            "ttft": _quantiles([facts.ttft], now),
            "tpot": _quantiles([facts.tpot], now),
            "itl": _quantiles([found for (name, _), found in metrics.itl.items() if name == tier.name], now),
            "e2e": _quantiles([facts.e2e], now),
            "queue": _quantiles([facts.queue], now),
        },
        "stages": _stages(facts.recent_stages.read(now)),
        "refusals": {
            **{family.value: _quantiles([told], now) for family, told in facts.refusals.items()},
            "all-but-failures": _quantiles([facts.refusals[family] for family in TOLD], now),
        },
        "objectives": _objectives(facts, tier, now),
    }


def _split(metrics: Metrics, model: Model, now: float) -> dict[str, object]:
    """The arms of a split model, over the last minute."""
    found = {arm: metrics.arms.facts[model.name, arm] for arm, _ in model.split}
    windows = {arm: facts.recent.read(now) for arm, facts in found.items()}
    offered = sum(window[ArmFacts.OFFERED] for window in windows.values())
    weights = sum(weight for _, weight in model.split)
    return {
        "model": model.name,
        "arms": [
            {
                "name": arm,
                "weight": weight / weights,
                "share": windows[arm][ArmFacts.OFFERED] / offered if offered else None,
                "window": _arm_counts(windows[arm]),
                "latencies": {"ttft": _quantiles([found[arm].ttft], now), "e2e": _quantiles([found[arm].e2e], now)},
            }
            for arm, weight in model.split
        ],
    }


def _arm_counts(counts: Sequence[float]) -> dict[str, object]:
    offered, good, errors = counts[ArmFacts.OFFERED], counts[ArmFacts.GOOD], counts[ArmFacts.ERRORS]
    return {
        "offered": offered,
        "finished": counts[ArmFacts.FINISHED],
        "good": good,
        "errors": errors,
        "goodput": good / offered if offered else None,
        "error_rate": errors / offered if offered else None,
    }


def _counts(counts: Sequence[float]) -> dict[str, object]:
    good, finished, offered = counts[TierFacts.GOOD], counts[TierFacts.FINISHED], counts[TierFacts.OFFERED]
    return {"offered": offered, "finished": finished, "good": good, "goodput": good / offered if offered else None}


def _stages(seconds: Sequence[float]) -> dict[str, float | None]:
    """The share (0-1) of each stage in the time of streamed requests; None without any."""
    total = sum(seconds)
    return {stage: part / total if total else None for stage, part in zip(STAGES, seconds, strict=True)}


def _admissions(counts: Sequence[float]) -> dict[str, object]:
    """First tries and retries of clients: number of requests, and the share (0-1) that was sent to a replica."""
    parts = {"newcomers": counts[:2], "comebacks": counts[2:]}
    return {
        name: {"offered": sum(part), "admitted": part[1] / sum(part) if sum(part) else None}
        for name, part in parts.items()
    }


def _quantiles(parts: Sequence[Quantiles], now: float) -> dict[str, object]:
    """Quantiles of the sum of several histograms, which must have equal edges."""
    counts = [sum(column) for column in zip(*(part.read(now) for part in parts), strict=True)]
    edges = parts[0].histogram.edges if parts else ()
    return {
        "count": sum(counts),
        "p50_s": quantile(edges, counts, 0.5),
        "p95_s": quantile(edges, counts, 0.95),
        "p99_s": quantile(edges, counts, 0.99),
    }


def _objectives(facts: TierFacts, tier: Tier, now: float) -> list[dict[str, object]]:
    """For each objective: its counts over all requests (refused ones too), and whether the answers keep it."""
    rows: list[dict[str, object]] = []
    for metric, objective in tier.slo.objectives():
        attainment = facts.slo.get((metric, objective.percentile)) or Attainment(objective.quantile)
        good, total, answered = attainment.recent.read(now)
        kept = attainment.kept(now)
        rows.append(
            {
                "metric": metric,
                "percentile": objective.percentile,
                "target": objective.quantile,
                "threshold_s": objective.threshold_s,
                "window": {
                    "good": good,
                    "total": total,
                    "attainment": good / total if total else None,
                    "kept": attainment.kept_for_all(now),
                },
                "total": {"good": attainment.counts[Attainment.GOOD], "total": attainment.counts[Attainment.TOTAL]},
                "answered": {"total": answered, "attainment": good / answered if answered else None},
                "kept": kept,
                "broken_s": attainment.broken_s(now) if kept is False else None,
            }
        )
    return rows


def _reasons(counts: Sequence[float]) -> dict[str, float]:
    return {why.value: count for why, count in zip(WHYS, counts, strict=True) if count}


def load_of(pool: PoolView) -> dict[str, object]:
    """The load of a pool, for a gateway or an autoscaler above this one. It names no tenants."""
    return {
        "pool": pool.name,
        "replicas": sum(replica.state is ReplicaState.UP for replica in pool.replicas),
        "slots": pool.slots,
        "in_flight": pool.in_flight,
        "free": max(0, pool.slots - pool.in_flight),
        "waiting": pool.queued,
        "held": pool.on_hold,
        "demand_replicas": None if pool.demand is None else pool.demand.replicas,
    }
