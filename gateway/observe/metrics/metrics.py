"""Counts all facts about requests, in plain counters that are cheap enough for the request path.

Nothing is formatted here: `families` turns the counters into Prometheus families when the page is read. The edges of
histograms include the SLO thresholds of the first policy; a reload does not change them. Exact attainment comes from
the `slo` counters, which follow every reload. Counters are never reset. Labels come only from policies and enums. A
name that is in no policy is counted under "".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.history import EarlyRefusal
from gateway.core.policy import Policy
from gateway.core.results import LIMITS, AttemptOutcome, Callback, CountSource, MirrorResult, Outcome, Reason, Record
from gateway.core.scheduling.lifecycle import COUNTED
from gateway.observe.metrics.arms import Arms
from gateway.observe.metrics.facts import Edges, Lane, LatencyCell, TierFacts, decided, family_of
from gateway.observe.metrics.stages import add_stages
from gateway.observe.metrics.tenant_demand import TenantDemand
from gateway.observe.metrics.window import EDGES, NEVER, Quantiles, Sliding
from gateway.observe.requests.ring import RequestRing
from gateway.wire.answers.oddity import Oddity

REPLICA_LABEL_LIMIT: Final = 64
"""With more replicas than this, histograms have no replica label, because histograms are the largest part of the
page.
"""

ADAPTER_LABEL_LIMIT: Final = 64
OTHER: Final = "other"
"""Label that all LoRA adapters beyond the first few share."""

WHYS: Final = tuple(Reason)
_WHY_INDEX: Final = {why: index for index, why in enumerate(WHYS)}

_EARLY: Final = {
    Reason.RECEIVING_FULL: Outcome.REFUSED,
    Reason.QUEUE_FULL: Outcome.REFUSED,
    Reason.NO_REPLICAS: Outcome.REFUSED,
    Reason.SHUTTING_DOWN: Outcome.REFUSED,
    Reason.LIMIT_REQUESTS: Outcome.QUOTA,
    Reason.LIMIT_TOKENS: Outcome.QUOTA,
    Reason.LIMIT_CONCURRENCY: Outcome.QUOTA,
    Reason.LIMIT_QUOTA: Outcome.QUOTA,
    Reason.CLIENT_GONE: Outcome.ABANDONED,
    Reason.CLIENT_STALLED: Outcome.ABANDONED,
    Reason.INTERNAL: Outcome.ERROR,
}


def early_outcome(why: Reason) -> Outcome:
    """The outcome of a request that never became a `Request`: invalid, unless `why` says otherwise."""
    return _EARLY.get(why, Outcome.INVALID)


class Metrics:
    """Counts facts about requests. One per process; every method is called on the event loop's thread."""

    def __init__(self, policy: Policy, requests: RequestRing | None = None) -> None:
        """`requests`: keeps a record of each request; None: nothing is kept."""
        self.requests = requests
        self.demand: TenantDemand | None = None
        """Counts requests of tenants; None where no limits are shared."""
        self.engine_share: Callable[[str, float], float | None] | None = None
        """Returns the part of `add_stages` called `engine`, for a replica now. None: no engine is read."""
        self.edges = Edges.of(policy)
        self.tiers: dict[str, TierFacts] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}
        """Counters by (tier, pool)."""
        self.cells: dict[tuple[str, str, str], LatencyCell] = {}
        """Histograms by (tier, pool, replica label)."""
        self.arms = Arms(self.edges)
        self.adapters: dict[tuple[str, str, Outcome], int] = {}
        """Number of requests for LoRA adapters, by (base model, adapter, outcome)."""
        self._named_adapters: set[str] = set()
        self.fallbacks: dict[tuple[str, str, str, Outcome], int] = {}
        """Number of requests that a fallback served, by (tier, requested model, fallback, outcome)."""
        self.itl: dict[tuple[str, str], Quantiles] = {}
        """ITL histograms, by (tier, pool). They have more buckets than the page. Their edges include all edges of the
        page.
        """
        self.early: dict[Reason, int] = {}
        self.upstream_errors: dict[tuple[str, str, AttemptOutcome], int] = {}
        """Number of failed attempts, by (pool, replica label, outcome)."""
        self.oddities: dict[tuple[str, str, Oddity], int] = {}
        """Number of answers that were complete but odd, by (pool, replica label, kind)."""
        self.mirrored: dict[tuple[str, str, MirrorResult], int] = {}
        """Number of copies that were due, by (model, shadow pool, result)."""
        self.token_counts: dict[CountSource, int] = dict.fromkeys(CountSource, 0)
        """Number of answers of `count_tokens`, by source of the count."""
        self.bugs: dict[Callback, int] = dict.fromkeys(Callback, 0)
        self.whys: list[float] = [0] * len(WHYS)
        """Numbers of refusals and failures by reason, in the order of `WHYS`."""
        self.recent_whys = Sliding(self.whys)
        self.itl_edges = tuple(sorted(set(EDGES) | set(self.edges.itl)))
        self._pools: dict[str, set[str]] = {}
        self._by_name: dict[tuple[str, str | None, str | None], LatencyCell] = {}
        self._due = NEVER
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Apply a policy. All counts are kept, even those of removed tiers and pools."""
        self.policy = policy
        self.arms.configure(policy)
        for tier in policy.tiers.values():
            if tier.name in self.tiers:
                self.tiers[tier.name].follow(tier)
            else:
                self.tiers[tier.name] = TierFacts(tier)
        for pool in policy.pools.values():
            self._pools.setdefault(pool.name, set()).update(replica.name for replica in pool.replicas)
        replicas = sum(len(pool.replicas) for pool in policy.pools.values())
        self._label_replicas = replicas <= REPLICA_LABEL_LIMIT
        self._by_name.clear()

    def ended(self, record: Record) -> None:
        """Count one request that is over."""
        request, outcome, why = record.request, record.outcome, record.why
        now = request.body_at + record.e2e_s
        if now >= self._due:
            self.roll(now)
        cell = self._by_name.get((request.tier.name, record.pool, record.replica)) or self._cell(record)
        facts, lane = cell.facts, cell.lane

        key = (request.model.name, outcome, why)
        number = lane.requests.get(key)
        if number is None:
            lane.requests[key] = [1]
        else:
            number[0] += 1
        lane.attempts += record.attempts
        lane.dispatched += record.queue_s < record.e2e_s  # they are equal if no replica was reached
        lane.held_s += record.e2e_s - record.queue_s
        lane.prompt_tokens[record.tokens_exact] += record.prompt_tokens
        lane.output_tokens[record.tokens_exact] += record.output_tokens
        if request.affinity.adapter:
            self._adapter(request.model.name, request.affinity.adapter, outcome)
        if request.fallback_of:
            fell = request.tier.name, request.fallback_of, request.model.name, outcome
            self.fallbacks[fell] = self.fallbacks.get(fell, 0) + 1
        if request.split:
            self.arms.ended(record)
        if why is not None:
            self.whys[_WHY_INDEX[why]] += 1

        engine = None
        if self.engine_share is not None and record.replica is not None:
            engine = self.engine_share(record.replica, now)
        if record.ttft_s is not None:
            cell.ttft.add(record.ttft_s)
            facts.ttft.histogram.add(record.ttft_s)
            receive_s = request.body_at - request.head_at
            add_stages(facts.stages, receive_s, record.queue_s, record.ttft_s, record.e2e_s, engine)
        if record.tpot_s is not None:
            cell.tpot.add(record.tpot_s)
            facts.tpot.histogram.add(record.tpot_s)
        if record.waited:
            end = None if record.attempts else why
            facts.waits[end] = facts.waits.get(end, 0) + 1
        if record.attempts or record.waited:
            cell.queue.add(record.queue_s)
            facts.queue.histogram.add(record.queue_s)
        if outcome is Outcome.OK:
            cell.e2e.add(record.e2e_s)
            facts.e2e.histogram.add(record.e2e_s)
            facts.counts[TierFacts.FINISHED] += 1
            facts.counts[TierFacts.GOOD] += record.good
        if outcome in COUNTED:
            facts.counts[TierFacts.OFFERED] += 1
            facts.admissions[record.admission] += 1
            if facts.tier is not request.tier:
                facts.follow(request.tier)
            facts.judge(record)
            family = family_of(record)
            if family is not None:
                facts.refused(family, record.e2e_s, now)
            if record.breach is not None and (record.attempts or record.waited):
                said = decided(record), record.good
                forecasts = facts.forecasts.get(said)
                if forecasts is None:
                    facts.forecasts[said] = [1]
                else:
                    forecasts[0] += 1
        if self.requests is not None:
            self.requests.ended(record, engine)
        if self.demand is not None:
            self.demand.ended(record.request.tenant, record.request.tier.name)

    def gaps(self, tier: str, pool: str) -> LogHistogram:
        """The histogram to which an exchange adds the seconds between content events of a stream: `add(gap_s)`."""
        found = self.itl.get((tier, pool))
        if found is None:
            key = (tier if tier in self.tiers else "", pool if pool in self._pools else "")
            found = self.itl.get(key)
            if found is None:
                found = self.itl[key] = Quantiles(self.itl_edges)
        return found.histogram

    def refused_early(self, refusal: EarlyRefusal) -> None:
        """Count one request that was refused before it was parsed. No tier and no model is counted."""
        why = Reason(refusal.why)
        self.early[why] = self.early.get(why, 0) + 1
        self.whys[_WHY_INDEX[why]] += 1
        if self.requests is not None:
            self.requests.refused_early(refusal)
        if self.demand is not None and why in LIMITS:
            self.demand.asked(refusal.tenant, refusal.tier)

    def token_count(self, source: CountSource) -> None:
        """Count one answer of `count_tokens`."""
        self.token_counts[source] += 1

    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        """Count one attempt that failed."""
        key = (*self._place(pool, replica), end)
        self.upstream_errors[key] = self.upstream_errors.get(key, 0) + 1

    def oddity(self, pool: str, replica: str, kind: Oddity) -> None:
        """Count one answer, or one event, that was proper HTTP but had odd content."""
        key = (*self._place(pool, replica), kind)
        self.oddities[key] = self.oddities.get(key, 0) + 1

    def copied(self, model: str, pool: str, result: MirrorResult) -> None:
        """Count one copy that was due. `model` and `pool` are names in the policy."""
        key = model, pool, result
        self.mirrored[key] = self.mirrored.get(key, 0) + 1

    def bug(self, callback: Callback) -> None:
        """Count one exception (a bug) that a callback of the gateway raised."""
        self.bugs[callback] += 1

    def roll(self, now: float) -> None:
        """Advance the sliding windows to `now`. Must be called once a second, because `gaps` and `refused_early` get no
        time.
        """
        if now < self._due:
            return
        self.recent_whys.roll(now)
        self._due = self.recent_whys.due
        for facts in self.tiers.values():
            facts.roll(now)
        for quantiles in self.itl.values():
            quantiles.roll(now)
        self.arms.roll(now)

    def _adapter(self, model: str, adapter: str, outcome: Outcome) -> None:
        """Count a request for an adapter. The names come from replicas, so only the first few become labels."""
        if adapter not in self._named_adapters:
            if len(self._named_adapters) >= ADAPTER_LABEL_LIMIT:
                adapter = OTHER
            else:
                self._named_adapters.add(adapter)
        key = model, adapter, outcome
        self.adapters[key] = self.adapters.get(key, 0) + 1

    def _cell(self, record: Record) -> LatencyCell:
        tier = record.request.tier
        pool, replica = self._place(record.pool or "", record.replica or "")
        facts = self.tiers.get(tier.name) or self.tiers.setdefault(tier.name, TierFacts(tier))
        lane = self.lanes.setdefault((tier.name, pool), Lane())
        labels = tier.name, pool, replica
        cell = self.cells.get(labels) or self.cells.setdefault(labels, LatencyCell(self.edges, facts, lane))
        if record.replica is None or record.replica in self._pools.get(pool, ()):
            self._by_name[tier.name, record.pool, record.replica] = cell
        return cell

    def _place(self, pool: str, replica: str) -> tuple[str, str]:
        """The labels of a pool and a replica."""
        replicas = self._pools.get(pool)
        if replicas is None:
            return "", ""
        return pool, replica if self._label_replicas and replica in replicas else ""
