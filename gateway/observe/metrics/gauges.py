"""The present state of the process as Prometheus families: queues, slots, replicas, policy, build."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import InfoMetricFamily

from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.sample import Sample
from gateway.core.snapshot import PoolView, ReplicaState, ReplicaView, Snapshot
from gateway.observe.build_info import kind
from gateway.observe.metrics.families import counter, gauge, histogram
from gateway.observe.metrics.forecasts import admission_families
from gateway.observe.metrics.hedging import hedging_families
from gateway.observe.metrics.kept import kept_families
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.metrics.planning import planning_families
from gateway.observe.snapshots import REPLICAS_AT_ONCE
from gateway.observe.sources import Sources

POOL_GAUGES: tuple[tuple[str, str, str, Callable[[PoolView], float | None]], ...] = (
    ("tailgate_pool_in_flight", "Requests that hold a slot.", "", lambda p: p.in_flight),
    ("tailgate_pool_slots", "Slots of the replicas that get requests.", "", lambda p: p.slots),
    ("tailgate_queue_depth", "Requests in the queue.", "", lambda p: p.queued),
    ("tailgate_pool_on_hold", "Requests that wait until the pool has a replica.", "", lambda p: p.on_hold),
    ("tailgate_queue_limit", "Requests that may be in the queue.", "", lambda p: p.queue_limit),
    ("tailgate_queue_bytes", "Bytes of request bodies in the queue.", "bytes", lambda p: p.queued_bytes),
    (
        "tailgate_queue_drain_rate",
        "Requests per second that find room while newcomers have to wait; absent until one had to.",
        "",
        lambda p: p.drain_rate,
    ),
    (
        "tailgate_pool_panic",
        "1 while so few replicas are healthy that ejected ones are used as well.",
        "",
        lambda p: p.panic,
    ),
    (
        "tailgate_pool_prefill_limit_tokens",
        "Unread prompt tokens from which on a replica of the pool gets no further request.",
        "",
        lambda p: p.prefill_limit_tokens,
    ),
)

REPLICA_GAUGES: tuple[tuple[str, str, str, Callable[[ReplicaView], float | None]], ...] = (
    ("tailgate_replica_in_flight", "Requests that hold a slot.", "", lambda r: r.in_flight),
    (
        "tailgate_replica_unprefilled_tokens",
        "Prompt tokens of sent requests that have no first token yet.",
        "",
        lambda r: r.unprefilled_tokens,
    ),
    ("tailgate_replica_slots", "Requests it may be sent at once: written or learned.", "", lambda r: r.slots),
    (
        "tailgate_replica_step_seconds",
        "Mean step of the replica with its present requests, as forecast.",
        "seconds",
        lambda r: r.step_s,
    ),
    (
        "tailgate_replica_step_limit_seconds",
        "Longest mean step that keeps the TPOT objectives in use.",
        "seconds",
        lambda r: r.step_limit_s,
    ),
    (
        "tailgate_replica_preemption_ratio",
        "Preemptions in the engine per request sent, over about the last minute.",
        "ratio",
        lambda r: r.preemption_ratio,
    ),
    (
        "tailgate_replica_slow_start_ratio",
        "Share of its slots that slow start gives the replica.",
        "ratio",
        lambda r: r.health.share,
    ),
    (
        "tailgate_replica_rest_seconds",
        "Backoff that is left since the replica refused with 429 or 503.",
        "seconds",
        lambda r: r.rests_s,
    ),
    ("tailgate_replica_waiting", "Requests waiting in the engine, as it says.", "", lambda r: _sample(r).waiting),
    ("tailgate_replica_running", "Requests running in the engine, as it says.", "", lambda r: _sample(r).running),
    (
        "tailgate_replica_kv_usage_ratio",
        "Share of the engine's KV cache in use, as the engine reports.",
        "ratio",
        lambda r: _sample(r).kv_fraction,
    ),
    (
        "tailgate_replica_cache_hit_ratio",
        "Share of recent prompt tokens that the engine found in its prefix cache.",
        "ratio",
        lambda r: r.cache.hit_rate,
    ),
    (
        "tailgate_replica_cache_kept_ratio",
        "Share of the tokens expected in the prefix cache that the engine finds there.",
        "ratio",
        lambda r: r.cache.kept,
    ),
    (
        "tailgate_scrape_age_seconds",
        "Age of the last scrape that the replica answered; +Inf if it never did.",
        "seconds",
        lambda r: math.inf if r.sample_age_s is None else r.sample_age_s,
    ),
)


class ProcessFamilies:
    """A prometheus-client collector over the process's `Sources`."""

    def __init__(self, sources: Sources, metrics: Metrics) -> None:
        self._sources = sources
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """All families, with their present values."""
        snapshot, readings = self._sources.snapshot(), self._sources.watched()
        yield from _pools(snapshot)
        yield from planning_families(snapshot, self._sources.little(snapshot))
        yield from _replicas(snapshot)
        yield from admission_families(snapshot)
        yield from kept_families(self._metrics, snapshot, self._sources.now())
        yield from hedging_families(snapshot)
        yield from self._policy()
        yield counter(
            "tailgate_fleet_failures",
            "Readings of a replica that failed, by what was read and how.",
            ("pool", "replica", "reading", "fault"),
            [
                ((watched.pool, watched.name, reading, fault), n)
                for watched in readings
                for (reading, fault), n in watched.failures.items()
            ],
        )
        yield gauge(
            "tailgate_client_connections", "Client connections that are open.", (), _one(self._sources.connections())
        )
        relays = self._sources.relays()
        if relays:
            label = ("relay",)
            yield gauge(
                "tailgate_relay_connections",
                "Client connections of each relay.",
                label,
                [((str(relay.number),), relay.connections) for relay in relays],
            )
            yield gauge(
                "tailgate_relay_requests",
                "Requests of each relay that are not over.",
                label,
                [((str(relay.number),), relay.requests) for relay in relays],
            )
            yield gauge(
                "tailgate_relay_loop_lag_seconds",
                "Longest wait of anything ready to run on the event loop of each relay, during the last 15 to 30 s.",
                label,
                [((str(relay.number),), relay.lag_s) for relay in relays],
                "seconds",
            )
        store = self._sources.store()
        if store is not None:
            yield gauge(
                "tailgate_store_up",
                "1 while the store, and every limit in it, can be used.",
                (),
                _one(not (store.error or store.limit_error)),
            )
            yield gauge("tailgate_store_gateways", "Other gateways that tell their loads.", (), _one(store.gateways))
        yield gauge(
            "tailgate_loop_lag_seconds",
            "Longest wait of anything ready to run on the event loop of any process, during the last 15 to 30 s.",
            (),
            _one(self._sources.loop_lag_s()),
            "seconds",
        )
        yield histogram(
            "tailgate_loop_wait_seconds",
            "Waits on the event loop, sampled ten times a second.",
            (),
            [((), self._sources.loop_waits)],
        )
        yield counter(
            "tailgate_dropped",
            "Calls missing in the journal, lines in the access log, sampled requests without a trace: the disk or the "
            "collector was slow or away.",
            ("writer",),
            [((writer,), dropped) for writer, dropped in self._sources.dropped().items()],
        )
        build = {"version": self._sources.version, "python": platform.python_version(), "build": kind()}
        yield InfoMetricFamily("tailgate_build", "What is running.", value=build)

    def _policy(self) -> Iterator[Metric]:
        policy, reload = self._sources.policy(), self._sources.reload()
        yield gauge("tailgate_policy_generation", "Policies loaded by this process.", (), _one(policy.generation))
        yield InfoMetricFamily("tailgate_policy", "The policy in force.", value={"digest": policy.digest})
        yield gauge(
            "tailgate_config_last_reload_successful",
            "1 if the last load of the policy succeeded, 0 if an older one is still in force.",
            (),
            _one(not reload.error),
        )
        sources = self._sources.discovered()
        yield gauge(
            "tailgate_discovery_ok",
            "1 if the last answer of the source of replicas could be read, 0 if what it said before is still in use.",
            ("pool", "source"),
            [((each.pool, each.source), not each.error) for each in sources],
        )
        yield gauge(
            "tailgate_discovery_addresses",
            "Addresses in the last listing of the source.",
            ("pool", "source"),
            [((each.pool, each.source), each.addresses) for each in sources if each.addresses is not None],
        )
        yield gauge(
            "tailgate_discovery_held",
            "Replicas that are no longer listed, and that are not removed yet.",
            ("pool",),
            [((pool,), held) for pool, held in {each.pool: each.held for each in sources}.items()],
        )


def _pools(snapshot: Snapshot) -> Iterator[Metric]:
    for name, text, unit, read in POOL_GAUGES:
        rows = [((pool.name,), read(pool)) for pool in snapshot.pools]
        yield gauge(name, text, ("pool",), [(key, value) for key, value in rows if value is not None], unit)


def _replicas(snapshot: Snapshot) -> Iterator[Metric]:
    """Families come in parts, one after the other, so that the samples of a large fleet are never in memory at once."""
    replicas = [replica for pool in snapshot.pools for replica in pool.replicas]
    parts = [replicas[at : at + REPLICAS_AT_ONCE] for at in range(0, len(replicas) or 1, REPLICAS_AT_ONCE)]
    states = [(state, state.value) for state in ReplicaState]
    for part in parts:
        yield gauge(
            "tailgate_replica_state",
            "1 for the state that the replica is in.",
            ("pool", "replica", "state"),
            [((r.pool, r.name, name), r.state is state) for r in part for state, name in states],
        )
    reasons = [out.value for out in EjectionReason]
    for part in parts:
        yield counter(
            "tailgate_replica_ejections",
            "Ejections of the replica, by reason. Each extension for a replica that is still slow counts again.",
            ("pool", "replica", "reason"),
            [
                ((r.pool, r.name, name), ejected.get(name, 0))
                for r, ejected in [(r, dict(r.health.ejections)) for r in part]
                for name in reasons
            ],
        )
    score = "Latency of the replica over what its pool takes for the same requests, against the pool's median."
    for part in parts:
        yield gauge(
            "tailgate_replica_score",
            score,
            ("pool", "replica", "latency"),
            [
                ((r.pool, r.name, latency), math.exp(excess))
                for r in part
                for latency, excess in (("ttft", r.health.ttft_excess), ("itl", r.health.itl_excess))
            ],
        )
    for name, text, unit, read in REPLICA_GAUGES:
        for part in parts:
            rows = [((r.pool, r.name), read(r)) for r in part]
            told = [(key, value) for key, value in rows if value is not None]
            yield gauge(name, text, ("pool", "replica"), told, unit)


def _sample(replica: ReplicaView) -> Sample:
    return replica.sample or Sample()


def _one(value: float) -> list[tuple[tuple[str, ...], float]]:
    return [((), value)]
