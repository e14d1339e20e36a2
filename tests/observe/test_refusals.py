"""Times to refusals: at once, after a wait, or after a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.results import Outcome, Reason, Record
from gateway.observe.metrics.facts import RefusalFamily, family_of
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.state import state

from .made import OK, POLICY, REFUSED, SOURCES

FAILED = replace(REFUSED, outcome=Outcome.ERROR, why=Reason.UPSTREAM_ERROR, attempts=2, e2e_s=0.02)


@pytest.mark.parametrize(
    ("record", "family"),
    [
        (REFUSED, RefusalFamily.AT_ONCE),
        (replace(REFUSED, why=Reason.PREDICTED, e2e_s=0.1), RefusalFamily.AT_ONCE),
        (replace(REFUSED, why=Reason.PREDICTED, e2e_s=0.2, waited=True), RefusalFamily.WAITED),
        (replace(REFUSED, why=Reason.EVICTED, e2e_s=0.2, waited=True), RefusalFamily.WAITED),
        (
            replace(REFUSED, outcome=Outcome.TIMEOUT, why=Reason.QUEUE_TIMEOUT, e2e_s=2.0, waited=True),
            RefusalFamily.WAITED,
        ),
        (replace(REFUSED, why=Reason.NO_REPLICAS), RefusalFamily.FAILURE),
        (replace(REFUSED, why=Reason.SHUTTING_DOWN, e2e_s=2.0), RefusalFamily.FAILURE),
        (replace(REFUSED, outcome=Outcome.TIMEOUT, why=Reason.TTFT_TIMEOUT, attempts=1), RefusalFamily.FAILURE),
        (FAILED, RefusalFamily.FAILURE),
        (OK, None),
        (replace(REFUSED, outcome=Outcome.QUOTA, why=Reason.LIMIT_TOKENS), None),
        (replace(REFUSED, outcome=Outcome.ABANDONED, why=Reason.CLIENT_GONE), None),
    ],
)
def test_each_refusal_reason_belongs_to_one_family(record: Record, family: RefusalFamily | None) -> None:
    assert family_of(record) is family


async def test_state_and_metrics_show_refusal_times_apart_from_failures() -> None:
    metrics = Metrics(POLICY)
    for number in range(20):
        metrics.ended(replace(REFUSED, e2e_s=2.0, waited=True) if number < 4 else REFUSED)
        metrics.ended(FAILED)
    metrics.ended(OK)
    shown: Any = await state(metrics, SOURCES, 0.0)
    premium, free = shown["tiers"]
    told = premium["refusals"]
    assert {name: told[name]["count"] for name in told} == {
        "at-once": 16,
        "waited": 4,
        "failure": 20,
        "all-but-failures": 20,
    }
    assert told["all-but-failures"]["p95_s"] == pytest.approx(2.0, rel=0.02)
    assert told["all-but-failures"]["p50_s"] <= 0.005
    assert not any(of["count"] for of in free["refusals"].values())
    (family,) = (one for one in RequestFamilies(metrics).collect() if one.name == "tailgate_refusal_seconds")
    counts = {s.labels["family"]: s.value for s in family.samples if s.name.endswith("_count") and s.value}
    assert counts == {"at-once": 16, "waited": 4, "failure": 20}
