"""Counters agree with a recount of the records; labels stay within the policy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway.core.history import EarlyRefusal
from gateway.core.policy import Model, Tier
from gateway.core.request import Affinity
from gateway.core.results import AttemptOutcome, Outcome, Reason, Record
from gateway.core.slo import Metric, Objective, Slo
from gateway.observe.metrics.facts import REFUSAL_EDGES, Attainment
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.metrics import (
    ADAPTER_LABEL_LIMIT,
    OTHER,
    REPLICA_LABEL_LIMIT,
    Metrics,
    early_outcome,
)
from tests.footprint import footprint

from .made import ASK, FREE, OK, POLICY, PREMIUM, REFUSED, a_request, policy

seconds = st.sampled_from([0.0, 0.001, 0.05, 0.12, 0.3, 0.31, 2.2, 2.3, 6.5, 31.0, 40.0])
places = st.sampled_from([(None, None), ("short", None), ("short", "r0"), ("short", "r1"), ("long", "far")])


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any possible record, and some impossible ones."""
    tier = draw(st.sampled_from([PREMIUM, FREE]))
    outcome = draw(st.sampled_from(Outcome))
    pool, replica = draw(places)
    stream = draw(st.booleans())
    return Record(
        request=a_request(tier, stream=stream, body_at=draw(st.floats(0, 300)), comeback=draw(st.booleans())),
        outcome=outcome,
        why=None if outcome is Outcome.OK else draw(st.sampled_from(Reason)),
        pool=pool,
        replica=replica,
        queue_s=draw(seconds),
        ttft_s=draw(st.none() | seconds) if stream else None,
        tpot_s=draw(st.none() | seconds) if stream else None,
        e2e_s=draw(seconds),
        prompt_tokens=draw(st.integers(0, 5000)),
        output_tokens=draw(st.sampled_from([0, 1, 1000, 1001])),
        tokens_exact=draw(st.booleans()),
        good=outcome is Outcome.OK and draw(st.booleans()),
        attempts=draw(st.integers(0, 2)),
        waited=draw(st.booleans()),
    )


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by name and label values, in the order of the label names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in RequestFamilies(metrics).collect()
        for sample in family.samples
    }


def series(metrics: Metrics) -> int:
    return len(samples(metrics))


def applies(record: Record, metric: Metric) -> bool:
    """Whether an objective on `metric` judges `record`, by the rules of docs/reference/metrics.md."""
    if not record.outcome.counts:
        return False
    if metric is Metric.E2E:
        up_to = record.request.tier.slo.e2e_up_to_tokens
        return up_to is None or record.output_tokens <= up_to
    value = record.ttft_s if metric is Metric.TTFT else record.tpot_s
    return record.request.stream and (record.outcome is not Outcome.OK or value is not None)


def meets(record: Record, metric: Metric, threshold_s: float) -> bool:
    values = {Metric.TTFT: record.ttft_s, Metric.TPOT: record.tpot_s, Metric.E2E: record.e2e_s}
    value = values[metric]
    return record.outcome is Outcome.OK and value is not None and value <= threshold_s


@given(st.lists(records(), max_size=30))
def test_counters_of_ended_requests_equal_a_recount_of_their_records(past: list[Record]) -> None:
    metrics = Metrics(POLICY)
    for record in past:
        metrics.ended(record)
    found = samples(metrics)
    expected: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for r in past:
        tier, pool, why = r.request.tier.name, r.pool or "", r.why or ""
        expected["tailgate_requests_total", ("llama", r.outcome, pool, why, tier)] += 1
        exact = "true" if r.tokens_exact else "false"
        expected["tailgate_prompt_tokens_total", (exact, pool, tier)] += r.prompt_tokens
        expected["tailgate_output_tokens_total", (exact, pool, tier)] += r.output_tokens
        expected["tailgate_attempts_total", (pool, tier)] += r.attempts
        comeback, decision = "yes" if r.request.comeback else "no", "admitted" if r.attempts else "refused"
        expected["tailgate_admissions_total", (comeback, decision, tier)] += r.outcome.counts
        expected["tailgate_waits_total", ("sent" if r.attempts else why or "sent", tier)] += r.waited
        expected["tailgate_offered_requests_total", (tier,)] += r.outcome.counts
        expected["tailgate_finished_requests_total", (tier,)] += r.outcome is Outcome.OK
        expected["tailgate_good_requests_total", (tier,)] += r.good
        for metric, objective in r.request.tier.slo.objectives():
            labels = (metric, objective.percentile, tier)
            if applies(r, metric):
                expected["tailgate_slo_total", labels] += 1
                expected["tailgate_slo_good_total", labels] += meets(r, metric, objective.threshold_s)
    found = {key: value for key, value in found.items() if "_stage_" not in key[0]}
    totals = {key: value for key, value in found.items() if key[0].endswith("_total") and value}
    assert totals == {key: value for key, value in expected.items() if value}


@given(st.lists(records(), max_size=30))
def test_histograms_agree_with_a_recount(past: list[Record]) -> None:
    metrics = Metrics(POLICY)
    for record in past:
        metrics.ended(record)
    found = samples(metrics)
    expected: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for r in past:
        queued = r.attempts > 0 or r.waited
        values = {
            "ttft": (r.ttft_s, metrics.edges.ttft),
            "tpot": (r.tpot_s, metrics.edges.tpot),
            "e2e": (r.e2e_s if r.outcome is Outcome.OK else None, metrics.edges.e2e),
            "queue": (r.queue_s if queued else None, metrics.edges.queue),
        }
        place = (r.pool or "", r.replica or "", r.request.tier.name)
        for name, (value, edges) in values.items():
            if value is None:
                continue
            expected[f"tailgate_{name}_seconds_count", place] += 1
            expected[f"tailgate_{name}_seconds_sum", place] += value
            for edge in edges:
                expected[f"tailgate_{name}_seconds_bucket", (str(edge), *place)] += value <= edge
            expected[f"tailgate_{name}_seconds_bucket", ("+Inf", *place)] += 1
        if r.outcome in (Outcome.REFUSED, Outcome.TIMEOUT, Outcome.ERROR):
            for_want = r.outcome is not Outcome.ERROR and r.why not in (Reason.NO_REPLICAS, Reason.SHUTTING_DOWN)
            family = "failure" if r.attempts or not for_want else "waited" if r.waited else "at-once"
            expected["tailgate_refusal_seconds_count", (family, r.request.tier.name)] += 1
            expected["tailgate_refusal_seconds_sum", (family, r.request.tier.name)] += r.e2e_s
            for bucket in (*map(str, REFUSAL_EDGES), "+Inf"):
                within = r.e2e_s <= float(bucket)
                expected["tailgate_refusal_seconds_bucket", (family, bucket, r.request.tier.name)] += within
    found = {key: value for key, value in found.items() if "_stage_" not in key[0]}
    seconds = {key: value for key, value in found.items() if "_seconds_" in key[0] and "slo" not in key[0] and value}
    assert seconds == pytest.approx({key: value for key, value in expected.items() if value})


def test_time_of_a_streamed_request_is_split_by_stage_and_a_refused_one_adds_none() -> None:
    metrics = Metrics(POLICY)
    for record in (OK, REFUSED):
        metrics.ended(record)
    found = samples(metrics)
    told = {"receive": 0.1, "queue": 0.002, "first-token": 0.198, "rest": 2.8}
    stages = {"engine-queue": 0.0, "prefill": 0.0, **told}
    for stage, seconds in stages.items():
        assert found["tailgate_stage_seconds_total", (stage, "premium")] == pytest.approx(seconds), stage


def test_a_refused_streamed_request_misses_every_objective() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(REFUSED)
    slo = metrics.tiers["premium"].slo
    assert [a.counts for a in slo.values()] == [[0, 1, 0]] * 4


def test_finished_unstreamed_request_counts_only_for_e2e_objectives() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(replace(OK, request=a_request(stream=False), ttft_s=None, tpot_s=None))
    totals = {metric: a.counts[Attainment.TOTAL] for (metric, _), a in metrics.tiers["premium"].slo.items()}
    assert totals == {Metric.TTFT: 0, Metric.TPOT: 0, Metric.E2E: 1}


def test_requests_refused_early_have_no_tier_and_an_outcome() -> None:
    metrics = Metrics(POLICY)
    for why in (Reason.UNAUTHORIZED, Reason.UNAUTHORIZED, Reason.SHUTTING_DOWN, Reason.CLIENT_GONE):
        metrics.refused_early(EarlyRefusal(100.0, why.value))
    found = samples(metrics)
    assert found["tailgate_requests_total", ("", "invalid", "", "unauthorized", "")] == 2
    assert found["tailgate_requests_total", ("", "refused", "", "shutting-down", "")] == 1
    assert found["tailgate_requests_total", ("", "abandoned", "", "client-gone", "")] == 1


@pytest.mark.parametrize("why", Reason)
def test_every_reason_has_an_early_outcome_that_is_not_success(why: Reason) -> None:
    assert early_outcome(why) is not Outcome.OK


def test_upstream_errors_are_counted_by_kind() -> None:
    metrics = Metrics(POLICY)
    metrics.upstream_error("short", "r1", AttemptOutcome.RESET)
    metrics.upstream_error("short", "r1", AttemptOutcome.RESET)
    metrics.upstream_error("long", "far", AttemptOutcome.BUSY)
    found = samples(metrics)
    assert found["tailgate_upstream_errors_total", ("reset", "short", "r1")] == 2
    assert found["tailgate_upstream_errors_total", ("busy", "long", "far")] == 1


def test_inter_token_gaps_are_counted_by_tier_and_pool() -> None:
    metrics = Metrics(POLICY)
    metrics.gaps("premium", "short").add(0.12)
    metrics.gaps("premium", "short").add(0.1201)
    found = samples(metrics)
    assert found["tailgate_itl_seconds_bucket", ("0.12", "short", "premium")] == 1
    assert found["tailgate_itl_seconds_count", ("short", "premium")] == 2
    assert found["tailgate_itl_seconds_sum", ("short", "premium")] == pytest.approx(0.2401)


def test_counters_of_every_tier_and_objective_exist_from_the_start() -> None:
    found = samples(Metrics(POLICY))
    assert found["tailgate_offered_requests_total", ("free",)] == 0
    assert found["tailgate_slo_total", ("ttft", "p99.9", "free")] == 0
    assert found["tailgate_slo_objective_ratio", ("ttft", "p99.9", "free")] == 0.999
    assert found["tailgate_slo_threshold_seconds", ("ttft", "p99.9", "free")] == 6.5
    assert found["tailgate_tier_weight", ("premium",)] == 4


def test_reload_resets_no_counter_and_changes_no_bucket_edge() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(OK)
    before = samples(metrics)
    stricter = Tier("premium", slo=Slo(ttft=(Objective(0.5, 0.1),)))
    metrics.configure(policy(stricter, Tier("new"), generation=2))
    after = samples(metrics)
    policy_gauges = ("tailgate_tier_weight", "tailgate_slo_objective_ratio", "tailgate_slo_threshold_seconds")
    kept = {key: value for key, value in before.items() if key[0] not in policy_gauges}
    assert kept.items() <= after.items()
    assert after["tailgate_offered_requests_total", ("new",)] == 0
    assert after["tailgate_slo_threshold_seconds", ("ttft", "p50", "premium")] == 0.1
    assert ("tailgate_slo_threshold_seconds", ("ttft", "p99", "premium")) not in after


def test_request_is_judged_by_the_tier_of_the_policy_it_arrived_under() -> None:
    metrics = Metrics(POLICY)
    stricter = Tier("premium", slo=Slo(ttft=(Objective(0.5, 0.1),)))
    metrics.configure(policy(stricter, generation=2))
    metrics.ended(OK)
    metrics.ended(replace(OK, request=a_request(stricter)))
    metrics.ended(OK)
    assert metrics.tiers["premium"].slo[Metric.TTFT, "p50"].counts == [2, 3, 3]


def test_ten_thousand_junk_names_add_at_most_one_series_each_family() -> None:
    metrics = Metrics(POLICY)
    catch_all = Model("*", ("short",), any_name=True)

    def junk(number: int) -> None:
        metrics.ended(replace(OK, pool=f"pool-{number}", replica=f"replica-{number}"))
        metrics.ended(replace(OK, replica=f"replica-{number}"))
        metrics.ended(replace(OK, request=replace(ASK, model=catch_all)))
        metrics.gaps(f"tier-{number}", f"pool-{number}").add(0.01)
        metrics.upstream_error(f"pool-{number}", f"replica-{number}", AttemptOutcome.RESET)
        metrics.refused_early(EarlyRefusal(100.0, Reason.MODEL_NOT_FOUND.value))

    junk(0)
    before, held = series(metrics), footprint(metrics)
    for number in range(1, 10_000):
        junk(number)
    assert series(metrics) == before
    assert footprint(metrics) <= 1.2 * held


@pytest.mark.parametrize(("replicas", "label"), [(REPLICA_LABEL_LIMIT - 1, "r0"), (REPLICA_LABEL_LIMIT, "")])
def test_metrics_have_replica_labels_only_for_small_fleets(replicas: int, label: str) -> None:
    metrics = Metrics(policy(replicas=replicas))  # and one more in the pool "long"
    metrics.ended(OK)
    metrics.upstream_error("short", "r0", AttemptOutcome.RESET)
    found = samples(metrics)
    assert found["tailgate_ttft_seconds_count", ("short", label, "premium")] == 1
    assert found["tailgate_upstream_errors_total", ("reset", "short", label)] == 1


def test_reload_to_many_replicas_ends_their_replica_labels() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(OK)
    metrics.configure(policy(replicas=REPLICA_LABEL_LIMIT, generation=2))
    metrics.ended(OK)
    found = samples(metrics)
    assert found["tailgate_ttft_seconds_count", ("short", "r0", "premium")] == 1
    assert found["tailgate_ttft_seconds_count", ("short", "", "premium")] == 1


def test_sliding_window_forgets_what_the_counters_keep() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(OK)  # ends at 103
    metrics.gaps("premium", "short").add(0.02)
    metrics.refused_early(EarlyRefusal(100.0, Reason.BAD_REQUEST.value))
    facts, itl = metrics.tiers["premium"], metrics.itl["premium", "short"]
    assert facts.recent.read(110.0) == [1, 1, 1]
    assert sum(facts.ttft.read(110.0)) == sum(itl.read(110.0)) == 1
    for second in range(104, 175):
        metrics.roll(float(second))
    assert facts.recent.read(175.0) == [0, 0, 0]
    assert sum(facts.ttft.read(175.0)) == sum(itl.read(175.0)) == 0
    assert sum(metrics.recent_whys.read(175.0)) == 0
    assert metrics.early == {Reason.BAD_REQUEST: 1}
    assert facts.counts == [1, 1, 1]


def test_prometheus_registry_accepts_the_request_collector() -> None:
    registry = CollectorRegistry()
    registry.register(RequestFamilies(Metrics(POLICY)))
    assert {family.name for family in registry.collect()} >= {"tailgate_ttft_seconds", "tailgate_requests"}


def test_adapters_beyond_the_limit_share_a_label() -> None:
    metrics = Metrics(POLICY)
    for number in range(ADAPTER_LABEL_LIMIT + 3):
        for _ in range(2):
            metrics.ended(replace(OK, request=replace(ASK, affinity=Affinity(adapter=f"adapter-{number}"))))
    assert len(metrics.adapters) == ADAPTER_LABEL_LIMIT + 1
    assert metrics.adapters["llama", "adapter-0", Outcome.OK] == 2
    assert metrics.adapters["llama", OTHER, Outcome.OK] == 6
