"""Broken objectives of a tier: since when, and at which bound of its replicas."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.snapshot import CapacityBound, Snapshot
from gateway.observe.metrics.facts import Attainment
from gateway.observe.metrics.kept import binds, kept_families
from gateway.observe.metrics.metrics import Metrics

from .made import OK, POLICY, SNAPSHOT


def test_objective_counts_as_broken_since_the_first_look_that_found_it_broken() -> None:
    promise = Attainment(0.9)
    for second in range(60):
        promise.roll(float(second))
        promise.counts[Attainment.ANSWERED] += 2
        promise.counts[Attainment.GOOD] += 2 if second < 20 else 1
    assert promise.kept(60.0) is False
    assert promise.broken_since is not None
    assert 20.0 < promise.broken_since < 40.0
    assert promise.broken_s(60.0) == 60.0 - promise.broken_since
    for second in range(60, 125):
        promise.roll(float(second))
        promise.counts[Attainment.ANSWERED] += 2
        promise.counts[Attainment.GOOD] += 2
    assert (promise.kept(125.0), promise.broken_since, promise.broken_s(125.0)) == (True, None, 0.0)


def test_tier_names_the_bound_that_most_of_its_replicas_are_at() -> None:
    metrics = Metrics(POLICY)
    short, long = SNAPSHOT.pools

    def at(*bounds: CapacityBound | None) -> Snapshot:
        replicas = tuple(replace(short.replicas[0], slots=4, bound=bound) for bound in bounds)
        return replace(SNAPSHOT, pools=(replace(short, replicas=replicas), long))

    busy = at(CapacityBound.KV, CapacityBound.SLOTS, CapacityBound.KV, None)
    assert binds(metrics, busy, "premium") == ""
    metrics.ended(OK)
    assert binds(metrics, busy, "premium") == "KV cache"
    assert binds(metrics, at(None, None), "premium") == ""
    for number in range(300):
        metrics.ended(replace(OK, ttft_s=3.0, request=replace(OK.request, body_at=OK.request.body_at + 0.1 * number)))
    (family,) = kept_families(metrics, busy, OK.request.body_at + 40.0)
    broken = {sample.labels["binds"]: sample.value for sample in family.samples if sample.value}
    assert list(broken) == ["KV cache"]
