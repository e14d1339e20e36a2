"""Rules and dashboard use only metrics and labels that the gateway exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.results import Outcome
from gateway.core.snapshot import ReplicaState, Trust
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.gauges import ProcessFamilies
from gateway.observe.metrics.metrics import Metrics
from tests.observe.made import POLICY, SOURCES

from .files import DEPLOY, Document, read_yaml

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
RULES: list[Document] = [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]]
DASHBOARD: Document = json.loads((DEPLOY / "grafana" / "tailgate.json").read_text())
TARGETS: list[Document] = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
QUERIES = [rule["expr"] for rule in RULES] + [target["expr"] for target in TARGETS]

# Labels that Prometheus itself adds to every series.
FROM_PROMETHEUS = {"instance", "pod", "job", "le"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}


def exported() -> dict[str, set[str]]:
    """Every series name on the metrics page, with its labels."""
    metrics = Metrics(POLICY)
    families = [*RequestFamilies(metrics).collect(), *ProcessFamilies(SOURCES, metrics).collect()]
    return {
        family.name + suffix: set(vars(family)["_labelnames"]) | {key for s in family.samples for key in s.labels}
        for family in families
        for suffix in SUFFIXES[family.type]
    }


EXPORTED = exported()


def names(query: str) -> set[str]:
    """The tailgate metrics of a query."""
    return set(re.findall(r"(?<![\w:])tailgate_\w+", query))


def labels(query: str) -> set[str]:
    """The labels that a query selects or groups by."""
    grouped = re.findall(r"(?:by|without|on) \(([^)]*)\)", query)
    selected = re.findall(r"\{([^}]*)\}", query)
    return {name.strip() for group in grouped for name in group.split(",")} | {
        name for selector in selected for name in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector)
    }


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_dashboards_and_alerts_use_exported_metrics(query: str) -> None:
    asked = names(query)
    assert asked <= set(EXPORTED)
    if asked:
        known = FROM_PROMETHEUS.union(*(EXPORTED[name] for name in asked))
        assert labels(query) <= known


PAGES = [page for folder in ("guides", "operations") for page in (DEPLOY.parent / "docs" / folder).glob("*.md")]


def without_use(series: set[str], texts: list[str]) -> set[str]:
    """Metrics that no text mentions. Any of its three series mentions a histogram."""
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for text in texts for name in names(text)}
    return {name for name in series if re.sub(r"_(bucket|sum|count)$", "", name) not in families}


def test_each_metric_has_a_use_in_a_guide_the_runbook_an_alert_or_the_dashboard() -> None:
    own = {name for name in EXPORTED if name.startswith("tailgate_")}
    assert without_use(own, QUERIES + [page.read_text("utf-8") for page in PAGES]) == set()


def test_metric_that_only_begins_like_a_used_one_is_found() -> None:
    used = ["rate(tailgate_ttft_seconds_bucket[5m])", "see `tailgate_queue_depth`"]
    series = {"tailgate_ttft_seconds_sum", "tailgate_queue_depth", "tailgate_queue", "tailgate_queue_depth_total"}
    assert without_use(series, used) == {"tailgate_queue", "tailgate_queue_depth_total"}


def test_queries_of_dashboards_and_alerts_are_found_and_their_names_are_read() -> None:
    assert len(QUERIES) > 40
    assert names('sum by (tier) (rate(tailgate_x_total{reason=~"a|b"}[5m])) > tailgate:y:1h') == {"tailgate_x_total"}
    assert labels('sum by (tier, le) (x{reason=~"a|b", pool="c"}) unless on (replica) y') == {
        "tier",
        "le",
        "reason",
        "pool",
        "replica",
    }


def test_label_values_in_queries_exist() -> None:
    text = " ".join(QUERIES)
    outcomes = {name for group in re.findall(r'outcome=~?"([^"]*)"', text) for name in group.split("|")}
    assert outcomes
    assert outcomes <= set(Outcome)
    states = set(re.findall(r'state="(\w+)"', text))
    assert states
    assert states <= set(ReplicaState) | set(Trust)


def test_every_recording_rule_is_used() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    used = {name for rule in RULES for name in re.findall(r"tailgate:[\w:]+", rule["expr"])}
    assert recorded == used


def test_the_burn_rate_alerts_are_those_of_the_sre_workbook() -> None:
    burns = r"slo_burn_rate:(\w+) > ([\d.]+)"
    burning = rf"{burns} and tailgate:{burns} and tailgate:slo_missed:(\w+) >= 10"
    found = {match for rule in RULES for match in re.findall(burning, " ".join(rule["expr"].split()))}
    assert found == {("1h", "14.4", "5m", "14.4", "1h"), ("6h", "6", "30m", "6", "6h"), ("3d", "1", "6h", "1", "3d")}


def test_every_alert_has_a_severity_and_a_summary() -> None:
    for rule in RULES:
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"page", "ticket"}
            assert rule["annotations"]["summary"]


def test_alerts_cover_stale_scrapes_dead_replicas_and_failed_reloads() -> None:
    alerts = {rule.get("alert") for rule in RULES}
    assert {"TailgateScrapeStale", "TailgateReplicaDown", "TailgatePoolDown", "TailgateReloadFailed"} <= alerts


def test_every_alert_has_a_test_case_in_which_it_fires() -> None:
    cases = [
        case
        for test in read_yaml(Path(__file__).parent / "alerts_test.yaml")["tests"]
        for case in test["alert_rule_test"]
    ]
    assert {rule["alert"] for rule in RULES if "alert" in rule} == {"TailgatePoolDown"} | {
        case["alertname"] for case in cases if case["exp_alerts"]
    }, "the recorded incidents raise TailgatePoolDown (test_alerts.py)"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) evaluates the rules")
def test_the_alerts_fire_when_they_should() -> None:
    subprocess.run(["promtool", "test", "rules", str(Path(__file__).parent / "alerts_test.yaml")], check=True)


def test_dashboard_shows_every_required_metric() -> None:
    shown = {name for target in TARGETS for name in names(target["expr"])}
    assert {
        "tailgate_good_requests_total",
        "tailgate_finished_requests_total",
        "tailgate_offered_requests_total",
    } <= shown
    assert {f"tailgate_{m}_seconds_bucket" for m in ("ttft", "tpot", "itl", "e2e", "queue")} <= shown
    assert {"tailgate_queue_depth", "tailgate_replica_state", "tailgate_requests_total"} <= shown


def test_dashboard_legends_name_labels_that_their_query_keeps() -> None:
    for target in TARGETS:
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels(target["expr"])


def test_dashboard_variables_are_filled_from_exported_metrics() -> None:
    filled = [re.fullmatch(r"label_values\((\w+), (\w+)\)", query) for query in _variable_queries()]
    assert len(filled) == 2
    for match in filled:
        assert match
        assert match[2] in EXPORTED[match[1]]


def test_dashboard_panels_have_unique_ids_and_positions() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) <= 23


def _variable_queries() -> Iterator[str]:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y
