"""The metrics page parses in both formats, follows the naming rules, and does not block the event loop."""

from __future__ import annotations

import asyncio
import math
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client import exposition as classic
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gateway.core.history import EarlyRefusal
from gateway.core.request import Affinity
from gateway.core.results import AttemptOutcome, MirrorResult, Reason
from gateway.core.snapshot import ReplicaState
from gateway.observe.build_info import kind
from gateway.observe.metrics.exposition import CLASSIC, OPENMETRICS, SAMPLES_AT_ONCE, Format, chosen, registry, render
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.snapshots import REPLICAS_AT_ONCE
from gateway.observe.sources import Reload
from gateway.wire.answers.oddity import Oddity

from .made import FREE, OK, POLICY, REFUSED, SNAPSHOT, SOURCES, a_request, policy

FORMATS = [pytest.param(CLASSIC, parse_classic, id="classic"), pytest.param(OPENMETRICS, parse_openmetrics, id="om")]
Parse = Callable[[str], Iterable[Metric]]


def filled(replicas: int = 2) -> Metrics:
    """Metrics with a series in every family."""
    metrics = Metrics(policy(replicas=replicas))
    for number in range(replicas):
        metrics.ended(replace(OK, replica=f"r{number}", ttft_s=0.01 * number))
    metrics.ended(replace(OK, breach=0.9, would_shed=True))
    metrics.ended(replace(REFUSED, waited=True))
    metrics.ended(replace(REFUSED, request=a_request(FREE, comeback=True), pool=None))
    metrics.ended(replace(OK, request=replace(a_request(FREE), fallback_of="large")))
    metrics.gaps("premium", "short").add(0.02)
    metrics.refused_early(EarlyRefusal(100.0, Reason.NOT_FOUND.value))
    metrics.upstream_error("short", "r1", AttemptOutcome.RESET)
    metrics.ended(replace(OK, request=replace(a_request(), affinity=Affinity(adapter="sql"))))
    metrics.copied("llama", "short", MirrorResult.FULL)
    metrics.oddity("short", "r1", Oddity.LONG_EVENT)
    return metrics


async def page(form: Format, metrics: Metrics | None = None) -> str:
    pieces = [piece async for piece in render(registry(metrics or filled(), SOURCES), form)]
    return b"".join(pieces).decode()


async def families(form: Format = OPENMETRICS, parse: Parse = parse_openmetrics) -> dict[str, Metric]:
    return {family.name: family for family in parse(await page(form))}


@pytest.mark.parametrize(("form", "parse"), FORMATS)
async def test_metrics_page_parses_back_to_the_counts(form: Format, parse: Parse) -> None:
    metrics = filled()
    parsed = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(await page(form, metrics))
        for sample in family.samples
    }
    for family in RequestFamilies(metrics).collect():
        for sample in family.samples:
            assert parsed[sample.name, *sorted(sample.labels.items())] == sample.value


@pytest.mark.parametrize(
    ("form", "whole"), [(CLASSIC, classic.generate_latest), (OPENMETRICS, openmetrics.generate_latest)]
)
async def test_metrics_page_written_in_pieces_equals_that_of_prometheus_client(
    form: Format, whole: Callable[[object], bytes]
) -> None:
    collector = RequestFamilies(filled(replicas=40))
    assert max(len(family.samples) for family in collector.collect()) > 2 * SAMPLES_AT_ONCE
    pieces = [piece async for piece in render(collector, form)]
    assert b"".join(pieces) == whole(collector)


@pytest.mark.parametrize(("form", "parse"), FORMATS)
async def test_families_of_a_large_fleet_come_in_parts_and_have_one_head(form: Format, parse: Parse) -> None:
    pool = SNAPSHOT.pools[0]
    replicas = tuple(replace(pool.replicas[0], name=f"r{number}") for number in range(1000))
    snapshot = replace(SNAPSHOT, pools=(replace(pool, replicas=replicas),))
    pages = registry(Metrics(policy(replicas=1000)), replace(SOURCES, snapshot=lambda: snapshot))
    assert max(len(family.samples) for family in pages.collect()) == REPLICAS_AT_ONCE * len(ReplicaState)
    text = b"".join([piece async for piece in render(pages, form)]).decode()
    assert text.count("# HELP tailgate_replica_state ") == 1
    states = [family for family in parse(text) if family.name == "tailgate_replica_state"]
    assert [len(family.samples) for family in states] == [len(replicas) * len(ReplicaState)]


async def test_other_tasks_run_while_the_metrics_page_is_written() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces = [piece async for piece in render(RequestFamilies(filled(replicas=40)), OPENMETRICS)]
    counting.cancel()
    assert turns >= len(pieces) - 1
    assert max(piece.count(b"\n") for piece in pieces) <= SAMPLES_AT_ONCE + 3


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", CLASSIC),
        ("*/*", CLASSIC),
        ("text/plain;version=0.0.4", CLASSIC),
        ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5", OPENMETRICS),
        ("application/openmetrics-text; version=junk", OPENMETRICS),
    ],
)
def test_client_that_accepts_openmetrics_gets_it(accept: str, form: Format) -> None:
    assert chosen(accept) is form


# The checks of `promtool check metrics` (Prometheus' util/promlint) that can concern these families.


async def test_every_metric_of_the_gateway_has_help_and_a_prefix() -> None:
    for name, family in (await families()).items():
        assert name.startswith(("tailgate_", "process_", "python_")), name
        assert not name.startswith("tailgate_") or family.documentation, name


async def test_metric_names_follow_the_rules_of_promlint() -> None:
    abbreviated = re.compile(r"(^|_)(s|ms|us|ns|sec|b|kb|mb|gb|m|h|d)(_|$)")
    other_units = re.compile(r"(milliseconds|microseconds|minutes|hours|days|kilobytes|megabytes|percent)")
    for name, family in (await families()).items():
        if not name.startswith("tailgate_"):
            continue
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert not re.search(r"(^|_)(counter|gauge|histogram|summary)(_|$)", name), name
        assert not abbreviated.search(name), name
        assert not other_units.search(name), name
        if family.type != "counter":
            assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info")), name
        for sample in family.samples:
            assert family.type == "histogram" or "le" not in sample.labels, name
            assert "quantile" not in sample.labels, name


async def test_names_of_exported_counters_end_in_total() -> None:
    for family in (await families()).values():
        if family.type == "counter" and family.name.startswith("tailgate_"):
            assert all(sample.name == f"{family.name}_total" for sample in family.samples), family.name


async def test_a_metric_whose_name_ends_with_a_unit_declares_it() -> None:
    for name, family in (await families()).items():
        unit = next((unit for unit in ("seconds", "bytes", "ratio") if name.endswith(f"_{unit}")), "")
        if name.startswith("tailgate_"):
            assert family.unit == unit, name


@pytest.mark.parametrize(("form", "parse"), FORMATS)
async def test_the_metrics_page_has_no_family_and_no_series_twice(form: Format, parse: Parse) -> None:
    text = await page(form)
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads))


async def test_histogram_buckets_are_cumulative_and_end_at_the_count() -> None:
    for family in (await families()).values():
        if family.type != "histogram":
            continue
        rows: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
        counts = {}
        for sample in family.samples:
            key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith("_bucket"):
                rows[key].append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        assert rows, family.name
        for key, buckets in rows.items():
            assert buckets == sorted(buckets), family.name
            assert [count for _, count in buckets] == sorted(count for _, count in buckets), family.name
            assert buckets[-1] == (math.inf, counts[key]), family.name


async def test_every_objective_threshold_is_a_histogram_edge() -> None:
    found = await families()
    edges = {
        name: {float(s.labels["le"]) for s in found[f"tailgate_{name}_seconds"].samples if "le" in s.labels}
        for name in ("ttft", "tpot", "e2e", "itl")
    }
    for tier in POLICY.tiers.values():
        for metric, objective in tier.slo.objectives():
            assert objective.threshold_s in edges[metric.value]
    assert {o.threshold_s for o in POLICY.tiers["premium"].slo.tpot} <= edges["itl"]


async def test_process_metrics_show_the_present_values() -> None:
    sources = replace(SOURCES, reload=lambda: Reload(1_700_000_000.0, "line 3: no such tier"))
    own = registry(filled(), sources)

    def value(name: str, **labels: str) -> float | None:
        return own.get_sample_value(name, labels)

    assert value("tailgate_queue_depth", pool="short") == 2
    assert value("tailgate_queue_bytes", pool="short") == 1000
    assert value("tailgate_pool_in_flight", pool="short") == 5
    assert value("tailgate_pool_slots", pool="short") == 16
    assert value("tailgate_pool_slots", pool="long") == 1
    assert value("tailgate_pool_prefill_limit_tokens", pool="long") is None
    assert value("tailgate_pool_demand_replicas", pool="short") == 1.5
    assert value("tailgate_pool_replicas_serving", pool="short") == 2.0
    assert value("tailgate_pool_prompt_token_rate", pool="short") == 12000.0
    assert value("tailgate_pool_output_token_rate", pool="short") == 2400.0
    assert value("tailgate_pool_demand_replicas", pool="long") is None  # before it knows
    assert value("tailgate_little_gap_ratio", pool="short") == 0.004
    assert value("tailgate_little_gap_ratio", pool="long") is None
    assert value("tailgate_replica_preemption_ratio", pool="short", replica="r0") == 0.002
    assert value("tailgate_forecast_state", pool="short", state="trusted") == 1
    assert value("tailgate_forecast_state", pool="short", state="cold") == 0
    assert value("tailgate_forecast_state", pool="long", state="cold") == 1
    assert value("tailgate_forecast_calibration_error", pool="short") == 0.015
    assert value("tailgate_forecast_calibration_error", pool="long") is None  # too few labels
    assert value("tailgate_replica_in_flight", pool="short", replica="r0") == 4
    assert value("tailgate_replica_unprefilled_tokens", pool="short", replica="r0") == 900
    assert value("tailgate_replica_state", pool="short", replica="r1", state="down") == 1
    assert value("tailgate_replica_state", pool="short", replica="r1", state="up") == 0
    assert value("tailgate_replica_kv_usage_ratio", pool="short", replica="r0") == 0.25
    assert value("tailgate_replica_kv_usage_ratio", pool="short", replica="r1") is None
    assert value("tailgate_scrape_age_seconds", pool="short", replica="r0") == 0.4
    assert value("tailgate_scrape_age_seconds", pool="short", replica="r1") == math.inf
    assert value("tailgate_config_last_reload_successful") == 0
    assert value("tailgate_policy_generation") == 1
    assert value("tailgate_policy_info", digest="digest-1") == 1
    assert value("tailgate_build_info", version="1.2.3", python=platform.python_version(), build=kind()) == 1
    assert value("tailgate_client_connections") == 7
    assert value("tailgate_loop_lag_seconds") == 0.004
    assert value("tailgate_loop_wait_seconds_bucket", le="0.0005") == 1
    assert value("tailgate_loop_wait_seconds_bucket", le="0.005") == 2
    assert value("tailgate_loop_wait_seconds_count") == 2


async def test_metrics_page_contains_no_key() -> None:
    assert "canary" not in await page(CLASSIC)


async def test_metrics_reference_lists_each_metric_with_its_type_and_labels() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(tailgate_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", text, re.MULTILINE)
    documented = {name: (kind, {label for label in labels.split(", ") if label}) for name, kind, labels in rows}
    suffix = {"counter": "_total", "info": "_info"}
    shown = {
        name + suffix.get(family.type, ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for name, family in (await families()).items()
        if name.startswith("tailgate_")
    }
    assert documented == shown
