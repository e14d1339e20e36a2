"""The hour of figures: which points are taken, how they are told, and that they are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.history import EarlyRefusal
from gateway.core.results import Reason
from gateway.core.sample import GatewayLoad, PoolLoad
from gateway.core.snapshot import Snapshot
from gateway.observe.console.history import SPAN_S, STEP_S, LastHour, ReplicaCaches
from gateway.observe.metrics.metrics import Metrics
from tests.observe.made import FREE, OK, POLICY, PREMIUM, REFUSED, SNAPSHOT, a_request, policy

LOAD = GatewayLoad(5.0, pools=(PoolLoad("short", (("premium", 3),), ((0, 2), (2, 1))), PoolLoad("long", (), ((0, 4),))))


class Rig:
    """A history of metrics that the test writes."""

    def __init__(self, snapshot: Snapshot = SNAPSHOT) -> None:
        self.metrics = Metrics(POLICY)
        self.snapshot = snapshot
        self.history = LastHour(self.metrics, lambda _: LOAD, self._caches)
        self.history.sample(100.0)

    def _caches(self) -> Iterator[ReplicaCaches]:
        for pool in self.snapshot.pools:
            for view in pool.replicas:
                yield pool.name, view.name, view.sample and view.sample.kv_fraction, view.cache.hit_rate

    def told(self, since: float = 0.0) -> dict[str, Any]:
        found: dict[str, Any] = self.history.since(since, 1000.0)
        return found


def test_point_of_history_counts_its_own_step_and_has_the_latencies_of_the_last_minute() -> None:
    rig = Rig()
    rig.metrics.ended(replace(OK, request=a_request(body_at=101.0), e2e_s=1.0))
    rig.metrics.ended(replace(REFUSED, request=a_request(body_at=102.0)))
    rig.history.sample(105.0)
    rig.history.sample(110.0)
    told = rig.told()
    assert told["at_unix_s"] == [1105.0, 1110.0]
    premium = told["tiers"]["premium"]
    assert (premium["offered"], premium["finished"], premium["good"]) == ([2, 0], [1, 0], [1, 0])
    assert premium["ttft"]["p99"] == [pytest.approx(0.2, rel=0.02)] * 2
    assert told["tiers"]["free"]["tpot"]["p50"] == [None, None]
    assert told["reasons"] == {Reason.QUEUE_FULL.value: [1, 0]}


def test_point_of_history_has_queue_and_requests_under_way_of_all_pools() -> None:
    rig = Rig()
    rig.history.sample(105.0)
    told = rig.told()
    assert told["waiting"] == {"premium": [6], "free": [1]}
    assert told["tiers"]["premium"]["in_flight"] == [3]


def test_tiers_of_one_priority_share_a_queue_in_the_history() -> None:
    rig = Rig()
    rig.metrics.configure(policy(PREMIUM, replace(FREE, priority=PREMIUM.priority)))
    rig.history.sample(105.0)
    assert rig.told()["waiting"] == {"premium, free": [6]}


def test_reader_of_the_history_gets_only_points_that_are_new_to_it() -> None:
    rig = Rig()
    for at in (105.0, 110.0, 115.0):
        rig.history.sample(at)
    assert rig.told(since=105.0)["at_unix_s"] == [1110.0, 1115.0]
    assert rig.told(since=115.0)["tiers"] == {}


def test_history_takes_no_point_before_it_is_due_and_keeps_an_hour() -> None:
    rig = Rig()
    rig.history.sample(101.0)
    assert rig.told()["at_unix_s"] == []
    for number in range(int(SPAN_S / STEP_S) + 10):
        rig.history.sample(105.0 + STEP_S * number)
    told = rig.told()["at_unix_s"]
    assert told[-1] - told[0] == SPAN_S - STEP_S


def test_tier_that_a_reload_adds_has_nothing_in_earlier_points() -> None:
    rig = Rig()
    rig.history.sample(105.0)
    rig.metrics.configure(policy(PREMIUM, FREE, replace(FREE, name="new")))
    rig.history.sample(110.0)
    assert rig.told()["tiers"]["new"]["ttft"]["p50"] == [None, None]


def test_refusal_of_an_unread_request_is_a_reason_in_the_history() -> None:
    rig = Rig()
    rig.metrics.refused_early(EarlyRefusal(101.0, Reason.UNAUTHORIZED.value))
    rig.history.sample(105.0)
    assert rig.told()["reasons"] == {Reason.UNAUTHORIZED.value: [1]}


def test_replica_has_its_mean_ttft_of_each_step_and_the_shares_of_its_caches() -> None:
    rig = Rig()
    for ttft_s, at in ((0.2, 101.0), (0.4, 102.0), (0.9, 125.0)):
        if at > 120.0:
            rig.history.sample(120.0)
        rig.metrics.ended(replace(OK, request=a_request(body_at=at), ttft_s=ttft_s))
    rig.history.sample(140.0)
    told = dict(rig.history.of_replicas("short"))
    assert told["r0"] == {"ttft_s": [None, 0.3, 0.9], "kv": [0.25] * 3, "hit_rate": [0.7] * 3}
    assert told["r1"]["kv"] == [None] * 3


def test_history_forgets_replicas_that_are_gone_and_keeps_an_hour_of_the_others() -> None:
    rig = Rig()
    for number in range(400):
        rig.history.sample(120.0 + 20.0 * number)
    assert {len(values) for _, found in rig.history.of_replicas("short") for values in found.values()} == {180}
    short, _ = SNAPSHOT.pools
    rig.snapshot = replace(SNAPSHOT, pools=(replace(short, replicas=short.replicas[:1]),))
    rig.history.sample(9000.0)
    assert [*rig.history.replicas] == [("short", "r0")]
