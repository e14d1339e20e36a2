"""Broken objectives of a tier, and the capacity bound that most of its replicas have reached."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.core.snapshot import Snapshot, usual
from gateway.observe.metrics.families import gauge
from gateway.observe.metrics.metrics import Metrics

ENGINE = "engine"
"""Label if no bound is reached: the engines are slower than the objective allows, or than the forecast says."""


def binds(metrics: Metrics, snapshot: Snapshot, tier: str) -> str:
    """The bound that most replicas of a tier's pools have reached: slots, unread prompts, KV cache or TPOT. Empty if
    they have reached no bound.

    The bound on unread prompts follows from TTFT objectives.
    """
    used = {pool for name, pool in metrics.lanes if name == tier}
    bounds = [
        replica.bound
        for pool in snapshot.pools
        if pool.name in used
        for replica in pool.replicas
        if replica.bound is not None and replica.slots
    ]
    return usual(bounds) or ""


def kept_families(metrics: Metrics, snapshot: Snapshot, now: float) -> Iterator[Metric]:
    """Seconds for which each objective of the current policy has been broken."""
    rows = []
    for tier in metrics.policy.tiers.values():
        bound = binds(metrics, snapshot, tier.name) or ENGINE
        for metric, objective in tier.slo.objectives():
            name = objective.percentile
            broken_s = metrics.tiers[tier.name].slo[metric, name].broken_s(now)
            rows.append(((tier.name, metric.value, name, bound if broken_s else ""), broken_s))
    yield gauge(
        "tailgate_slo_broken_seconds",
        "Time for which answers have missed an objective more often than it allows, beyond chance; 0 if it is kept.",
        ("tier", "metric", "percentile", "binds"),
        rows,
        "seconds",
    )
