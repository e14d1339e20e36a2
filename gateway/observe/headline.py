"""Headlines: the state of the last minute in a sentence, for whoever opens the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.redundancy.retries import FAILURES
from gateway.core.results import Reason
from gateway.core.snapshot import PoolView, ReplicaState, ReplicaView, Snapshot, usual
from gateway.observe.metrics.facts import RefusalFamily, Streak, TierFacts
from gateway.observe.metrics.kept import binds
from gateway.observe.metrics.metrics import WHYS, Metrics
from gateway.observe.metrics.stages import AT_REPLICA, ENGINE_QUEUE, QUEUE
from gateway.observe.metrics.window import SPAN_S
from gateway.observe.sources import Discovered, StoreView, Watched

Unhealthy = Mapping[tuple[str, str], str]
"""Error of the last health check, by (pool, replica); empty if it passed."""

FAILED: Final = frozenset(
    (*FAILURES.values(), Reason.NO_REPLICAS, Reason.TTFT_TIMEOUT, Reason.IDLE_TIMEOUT, Reason.TOTAL_TIMEOUT)
)
"""Reasons of requests that the gateway took, or would have taken, and that a replica failed."""
OUT: Final = (ReplicaState.DOWN, ReplicaState.PROBING, ReplicaState.EJECTED)
REFUSALS: Final = (RefusalFamily.AT_ONCE, RefusalFamily.WAITED)
FAILURES_ONLY: Final = (RefusalFamily.FAILURE,)
HALF: Final = 0.5
UNUSED: Final = (ReplicaState.ABSENT, ReplicaState.DRAINED)


class Level(StrEnum):
    """How much it matters."""

    BAD = "bad"
    """Requests are lost or late now."""
    WARN = "warn"
    GOOD = "good"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Headline:
    """One fact: `what` in a few words, seconds since when, and the details. `since_s`: None if that is not known."""

    level: Level
    what: str
    since_s: float | None = None
    details: str = ""


def headlines(
    metrics: Metrics,
    snapshot: Snapshot,
    watched: Sequence[Watched],
    now: float,
    store: StoreView | None = None,
    discovered: Sequence[Discovered] = (),
) -> tuple[Headline, ...]:
    """All that is wrong now, the worst first; or that nothing is. Never empty."""
    tiers = [facts for name in metrics.policy.tiers if (facts := metrics.tiers.get(name)) is not None]
    unhealthy = {(one.pool, one.name): one.errors.get("health", "") for one in watched}
    found = (
        *_unserved(snapshot, unhealthy, tiers, now),
        *_lost_requests(metrics, snapshot, tiers, now),
        *_late(metrics, snapshot, tiers, now),
        *_out(snapshot, unhealthy),
        *_store_away(store),
        *_not_found(discovered),
    )
    return found or (_well(snapshot, tiers, now),)


def _store_away(store: StoreView | None) -> Iterator[Headline]:
    if store is not None and store.error:
        what = "this gateway has an equal share of each limit, and knows no loads of others"
        yield Headline(Level.WARN, "the store is away", None, f"{store.address}: {store.error}; {what}")
    elif store is not None and store.limit_error:
        what = "its tenant has an equal share of it at each gateway; loads and other limits are shared"
        yield Headline(Level.WARN, "a limit is not shared", None, f"{store.address}: {store.limit_error}; {what}")


def _not_found(discovered: Sequence[Discovered]) -> Iterator[Headline]:
    for one in discovered:
        if one.error:
            what = f"new replicas of pool {one.pool} are not found"
            stays = "it has found none yet" if one.addresses is None else "its last answer stays in use"
            yield Headline(Level.WARN, what, None, f"{one.source}: {one.error}; {stays}")


def _unserved(snapshot: Snapshot, unhealthy: Unhealthy, tiers: Sequence[TierFacts], now: float) -> Iterator[Headline]:
    """Pools without a replica that serves. A pool whose replicas are all absent or drained lacks one only if requests
    fail for it.
    """
    since_s = _since_s([facts.failing for facts in tiers], now)
    for pool in snapshot.pools:
        if any(_serves(replica) for replica in pool.replicas):
            continue
        held = (f"on hold: {pool.on_hold}",) if pool.on_hold else ()
        details = "; ".join(filter(None, (*held, _states(pool.replicas, unhealthy))))
        if since_s is not None or any(replica.state not in UNUSED for replica in pool.replicas):
            yield Headline(Level.BAD, f"nobody serves pool {pool.name}", since_s, details)
        elif held:
            yield Headline(Level.WARN, f"pool {pool.name} waits for a replica", None, details)


def _states(replicas: Sequence[ReplicaView], unhealthy: Unhealthy) -> str:
    """Each replica with its state, and why if that is known."""
    whys = [replica.health.why or unhealthy.get((replica.pool, replica.name), "") for replica in replicas]
    return ", ".join(
        f"{replica.name} is {replica.state}{f' ({why})' if why else ''}"
        for replica, why in zip(replicas, whys, strict=True)
    )


def _serves(replica: ReplicaView) -> bool:
    """Whether it gets requests, and not only single ones that test it."""
    return replica.slots > 0 and replica.state in (ReplicaState.UP, ReplicaState.EJECTED)


def _lost_requests(
    metrics: Metrics, snapshot: Snapshot, tiers: Sequence[TierFacts], now: float
) -> tuple[Headline, ...]:
    """Refusals and failures; first those that are more. A pool that hangs makes a few refusals, and the reverse."""
    refused, failed = _told(tiers, REFUSALS, now), _told(tiers, FAILURES_ONLY, now)
    overload, failure = _overloaded(snapshot, tiers, refused, now), _failing(metrics, tiers, failed, now)
    return (*failure, *overload) if failed > refused else (*overload, *failure)


def _overloaded(snapshot: Snapshot, tiers: Sequence[TierFacts], refused: float, now: float) -> Iterator[Headline]:
    since_s = _since_s([facts.refusing for facts in tiers], now)
    if since_s is None:
        return
    serving = [pool for pool in snapshot.pools if any(_serves(replica) for replica in pool.replicas)]
    bound = usual([r.bound for pool in serving for r in pool.replicas if r.bound is not None and r.slots])
    parts = [_lost(refused, tiers, since_s, now, "refused") + (f", bound by {bound}" if bound else "")]
    parts += [_demand(pool, len(snapshot.pools) > 1) for pool in serving]
    yield Headline(Level.BAD, "overloaded", since_s, "; ".join(filter(None, parts)))


def _demand(pool: PoolView, is_named: bool) -> str:
    """The work that comes to a pool, and the replicas that serve it; empty until it is known."""
    if pool.demand is None:
        return ""
    serving = sum(_serves(replica) for replica in pool.replicas)
    to = f" to pool {pool.name}" if is_named else ""
    return f"work for {pool.demand.replicas:.1f} fully busy replicas comes{to}, {serving} serve{'s' * (serving == 1)}"


def _failing(metrics: Metrics, tiers: Sequence[TierFacts], failed: float, now: float) -> Iterator[Headline]:
    since_s = _since_s([facts.failing for facts in tiers], now)
    if since_s is None:
        return
    counts = [(count, why) for why, count in zip(WHYS, metrics.recent_whys.read(now), strict=True) if why in FAILED]
    most, why = max(counts)
    mostly = f", most of them {why}" if most else ""
    yield Headline(Level.BAD, "requests fail", since_s, _lost(failed, tiers, since_s, now, "fail") + mostly)


def _lost(count: float, tiers: Sequence[TierFacts], since_s: float, now: float, verb: str) -> str:
    """The rate of lost requests since the first, and their share of the offered once they fill the window."""
    offered = sum(facts.recent.read(now)[TierFacts.OFFERED] for facts in tiers) if since_s > 0.9 * SPAN_S else 0.0
    part = count / offered if offered else 0.0
    share = f" ({f'{part:.0%}' if part >= 0.01 else 'under 1%'} of all)" if offered else ""
    return f"{count / max(1.0, min(SPAN_S, since_s)):.2g}/s {verb}{share}"


def _late(metrics: Metrics, snapshot: Snapshot, tiers: Sequence[TierFacts], now: float) -> Iterator[Headline]:
    """Objectives that answers break, whatever is refused, with what holds the answers back."""
    since_s, parts = 0.0, []
    for facts in tiers:
        broken = [key for key, attainment in facts.slo.items() if attainment.kept(now) is False]
        if broken:
            since_s = max(since_s, *(facts.slo[key].broken_s(now) for key in broken))
            names = ", ".join(f"{metric.value} {percentile}" for metric, percentile in broken)
            parts.append(f"{facts.tier.name} {names}{_held_back(metrics, snapshot, facts, now)}")
    if parts:
        yield Headline(Level.BAD, "answers are late", since_s, "; ".join(parts))


def _held_back(metrics: Metrics, snapshot: Snapshot, facts: TierFacts, now: float) -> str:
    """The place where most of the TTFT of the last minute was spent, and the bound that replicas have reached."""
    seconds = facts.recent_stages.read(now)
    queue_s, first_s = seconds[QUEUE], sum(seconds[stage] for stage in AT_REPLICA)
    ttft_s = queue_s + first_s or 1.0
    if queue_s > HALF * ttft_s:
        where = f"{queue_s / ttft_s:.0%} of TTFT waiting here"
    elif seconds[ENGINE_QUEUE] > HALF * ttft_s:
        where = f"{seconds[ENGINE_QUEUE] / ttft_s:.0%} of TTFT in the queues of the engines"
    else:
        where = f"{first_s / ttft_s:.0%} of TTFT at the replicas"
    bound = binds(metrics, snapshot, facts.tier.name)
    return f" ({where}{f', bound by {bound}' if bound else ''})"


def _out(snapshot: Snapshot, unhealthy: Unhealthy) -> Iterator[Headline]:
    """Pools of which some replicas are out, and others serve."""
    for pool in snapshot.pools:
        out = [replica for replica in pool.replicas if replica.state in OUT]
        meant = sum(replica.state not in UNUSED for replica in pool.replicas)
        if out and any(_serves(replica) for replica in pool.replicas):
            what = f"{len(out)} of {meant} replicas of pool {pool.name} out"
            yield Headline(Level.WARN, what, None, _states(out, unhealthy))


def _well(snapshot: Snapshot, tiers: Sequence[TierFacts], now: float) -> Headline:
    if not any(_serves(replica) for pool in snapshot.pools for replica in pool.replicas):
        return Headline(Level.IDLE, "idle", None, "no replica serves")
    good = sum(facts.recent.read(now)[TierFacts.GOOD] for facts in tiers)
    offered = sum(facts.recent.read(now)[TierFacts.OFFERED] for facts in tiers)
    if not offered:
        running = sum(pool.in_flight for pool in snapshot.pools)
        what = f"{running} under way" if running else "idle"
        return Headline(Level.IDLE, what, None, "no request ended in the last minute")
    return Headline(Level.GOOD, "all is well", None, f"{offered / SPAN_S:.2g}/s served, {good / offered:.0%} good")


def _told(tiers: Sequence[TierFacts], families: Sequence[RefusalFamily], now: float) -> float:
    return sum(sum(facts.refusals[family].read(now)) for facts in tiers for family in families)


def _since_s(streaks: Sequence[Streak], now: float) -> float | None:
    """Age of the oldest streak that goes on; None if there is none."""
    return max((age_s for streak in streaks if (age_s := streak.age_s(now)) is not None), default=None)
