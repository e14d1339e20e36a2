"""Alerts of real incidents: series that were recorded from a gateway (record.py), played through the rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deployment.files import DEPLOY, Document, read_yaml
from tests.deployment.played import ONCE, Expected, Play, values_of
from tests.deployment.record import ALERTS, INCIDENTS, SERIES, compact, names_in_rules

NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) evaluates the rules"
)
ALERTMANAGER: Document = read_yaml(DEPLOY / "prometheus" / "alertmanager.yaml")
POOL_DOWN, REPLICA_DOWN = ("TailgatePoolDown", "page"), ("TailgateReplicaDown", "ticket")
BURN = ("TailgateSloBurn", "page")
LONG = Play(before=120, during=4, calm=27)
"""Two hours of recorded minutes, 20 minutes of the incident, and half an hour after it."""


def check(expected: Expected, folder: Path) -> None:
    """Play the series through the rules."""
    written = expected.write(folder / "played.json")
    done = subprocess.run(["promtool", "test", "rules", str(written)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS_PROMTOOL
def test_hung_pool_pages_within_two_minutes_and_as_long_as_it_hangs(tmp_path: Path) -> None:
    begins, ends = ONCE.begins_s, ONCE.ends_s
    expected = Expected("hung", ONCE).never(0, begins)
    expected.at(begins + 120, POOL_DOWN)
    for time_s in range(begins + 180, ends, 60):
        expected.at(time_s, POOL_DOWN, REPLICA_DOWN)
    check(expected.never(ends + 60, ONCE.over_s), tmp_path)


@NEEDS_PROMTOOL
def test_long_outage_burns_one_alert_for_each_tier_and_none_a_while_after_its_end(tmp_path: Path) -> None:
    expected = Expected("hung", LONG)
    expected.at(LONG.ends_s - 15, POOL_DOWN, REPLICA_DOWN, BURN, BURN)
    check(expected.never(LONG.ends_s + 720, LONG.over_s), tmp_path)


@NEEDS_PROMTOOL
def test_slow_replica_among_three_alerts_nobody(tmp_path: Path) -> None:
    check(Expected("slow", ONCE).never(0, ONCE.over_s), tmp_path)


@NEEDS_PROMTOOL
def test_failing_replica_is_a_ticket_and_no_page(tmp_path: Path) -> None:
    begins, ends = ONCE.begins_s, ONCE.ends_s
    expected = Expected("failing", ONCE).never(0, begins + 60)
    for time_s in range(begins + 180, ends, 60):
        expected.at(time_s, REPLICA_DOWN)
    check(expected.never(ends + 60, ONCE.over_s), tmp_path)


@NEEDS_PROMTOOL
def test_absent_replicas_of_an_idle_pool_alert_nobody_however_long(tmp_path: Path) -> None:
    play = Play(during=12)
    check(Expected("absent", play).never(0, play.over_s), tmp_path)


@NEEDS_PROMTOOL
def test_pool_that_was_never_seen_alive_pages_once_requests_are_refused_for_it(tmp_path: Path) -> None:
    expected = Expected("unstarted", ONCE).at(0)
    for time_s in range(120, ONCE.over_s, 60):
        expected.at(time_s, POOL_DOWN)
    check(expected, tmp_path)


# ---- the recording


@pytest.mark.parametrize("name", INCIDENTS)
def test_recorded_series_have_every_metric_that_the_pool_and_burn_alerts_read(name: str) -> None:
    recorded = {one["series"].partition("{")[0] for one in read_yaml(SERIES / f"{name}.yaml")["input_series"]}
    assert {
        "tailgate_replica_state",
        "tailgate_slo_total",
        "tailgate_slo_good_total",
        "tailgate_pool_panic",
    } <= recorded
    assert recorded <= names_in_rules()


def test_compact_notation_is_read_back() -> None:
    row = [None, None, "1", "1", "1", "0.25", "+Inf", "+Inf"]
    assert compact(row) == "_x2 1x2 0.25 Infx1"
    assert values_of(compact(row)) == [None, None, 1.0, 1.0, 1.0, 0.25, float("inf"), float("inf")]


# ---- Alertmanager


def test_alertmanager_names_only_alerts_that_exist() -> None:
    alerts = {rule["alert"] for group in read_yaml(ALERTS)["groups"] for rule in group["rules"] if "alert" in rule}
    matchers = [
        text
        for rule in ALERTMANAGER["inhibit_rules"]
        for key in ("source", "target")
        for text in rule[f"{key}_matchers"]
    ]
    named = {name for text in matchers for name in re.findall(r"Tailgate\w+", text)}
    assert named
    assert named <= alerts


def test_alertmanager_groups_by_what_all_alerts_of_an_incident_share() -> None:
    assert ALERTMANAGER["route"]["group_by"] == ["job", "severity"]


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool (Debian: prometheus-alertmanager) reads the file")
def test_alertmanager_reads_its_configuration() -> None:
    path = DEPLOY / "prometheus" / "alertmanager.yaml"
    subprocess.run(["amtool", "check-config", str(path)], check=True, capture_output=True)
