"""The sentence at the top of the console: what is wrong, since when, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.results import Outcome, Reason
from gateway.core.snapshot import CapacityBound, HealthView, PoolView, ReplicaState, Snapshot
from gateway.observe.headline import Headline, Level, headlines
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.sources import Discovered, StoreView, Watched

from .made import OK, POLICY, REFUSED, SNAPSHOT, a_request

AT = 130.0
SHORT, LONG = SNAPSHOT.pools
FAILED = replace(REFUSED, outcome=Outcome.ERROR, why=Reason.UPSTREAM_ERROR, attempts=1, replica="r0")


def of(metrics: Metrics, *pools: PoolView, watched: tuple[Watched, ...] = (), now: float = AT) -> list[Headline]:
    return [*headlines(metrics, Snapshot(1, pools, ()), watched, now)]


def pool(*states: ReplicaState, bound: CapacityBound | None = None) -> PoolView:
    """The pool "short" with one replica in each of these states."""
    first = SHORT.replicas[0]
    replicas = tuple(
        replace(first, name=f"r{n}", state=state, bound=bound, slots=8 if state is ReplicaState.UP else 0)
        for n, state in enumerate(states)
    )
    return replace(SHORT, replicas=replicas, in_flight=0)


WELL = pool(ReplicaState.UP, ReplicaState.UP)


def test_headline_of_an_idle_gateway_says_so() -> None:
    (found,) = of(Metrics(POLICY), WELL)
    assert (found.level, found.what) == (Level.IDLE, "idle")
    assert of(Metrics(POLICY), replace(WELL, in_flight=2)) == [
        Headline(Level.IDLE, "2 under way", None, "no request ended in the last minute")
    ]


def test_headline_of_a_healthy_gateway_has_rate_and_goodput() -> None:
    metrics = Metrics(POLICY)
    for _ in range(120):
        metrics.ended(OK)
    assert of(metrics, WELL) == [Headline(Level.GOOD, "all is well", None, "2/s served, 100% good")]


def test_headline_of_an_overload_says_since_when_how_much_by_what_and_what_is_wanted() -> None:
    metrics = Metrics(POLICY)
    for number in range(60):
        metrics.ended(replace(REFUSED, request=a_request(body_at=70.0 + number)))
        metrics.ended(replace(OK, request=a_request(body_at=70.0 + number)))
    (found,) = of(metrics, pool(ReplicaState.UP, ReplicaState.UP, bound=CapacityBound.PROMPTS))
    assert (found.level, found.what) == (Level.BAD, "overloaded")
    assert found.since_s == pytest.approx(60.0, abs=0.1)
    assert (
        found.details
        == "1/s refused (50% of all), bound by unread prompts; work for 1.5 fully busy replicas comes, 2 serve"
    )


def test_headline_of_an_overload_counts_from_its_first_refusal_and_ends_after_a_minute_without_one() -> None:
    metrics = Metrics(POLICY)
    for at in (10.0, 100.0, 120.0):
        metrics.ended(replace(REFUSED, request=a_request(body_at=at)))
    assert of(metrics, WELL)[0].since_s == pytest.approx(30.0, abs=0.1)
    assert of(metrics, WELL, now=186.0)[0].what == "idle"


def test_headline_of_failures_names_the_usual_reason() -> None:
    metrics = Metrics(POLICY)
    for _ in range(6):
        metrics.ended(replace(FAILED, request=a_request(body_at=120.0)))
    (found,) = of(metrics, WELL)
    assert found.what == "requests fail"
    assert found.details == "0.6/s fail, most of them upstream-error"


def test_headline_of_few_failures_does_not_say_that_none_of_all_fail() -> None:
    metrics = Metrics(POLICY)
    for number in range(60):
        for _ in range(4):
            metrics.ended(replace(OK, request=a_request(body_at=70.0 + number)))
    metrics.ended(replace(FAILED, request=a_request(body_at=70.0)))
    assert of(metrics, WELL)[0].details == "0.017/s fail (under 1% of all), most of them upstream-error"


def test_headlines_of_failures_and_refusals_begin_with_those_that_are_more() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(replace(REFUSED, request=a_request(body_at=120.0)))
    for _ in range(3):
        metrics.ended(replace(FAILED, request=a_request(body_at=120.0)))
    assert [one.what for one in of(metrics, WELL)] == ["requests fail", "overloaded"]
    for _ in range(3):
        metrics.ended(replace(REFUSED, request=a_request(body_at=121.0)))
    assert [one.what for one in of(metrics, WELL)] == ["overloaded", "requests fail"]


def test_headline_of_late_answers_names_the_objectives() -> None:
    metrics = Metrics(POLICY)
    for _ in range(100):
        metrics.ended(replace(OK, ttft_s=3.0, good=False))
    assert of(metrics, WELL)[0].what == "answers are late"
    assert of(metrics, WELL)[0].details == "premium ttft p50, ttft p99 (100% of TTFT at the replicas)"


def test_headline_of_a_pool_that_nobody_serves_comes_first_and_says_why() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(replace(FAILED, request=a_request(body_at=120.0), why=Reason.NO_REPLICAS, attempts=0))
    hung = Watched("r0", "short", {"health": "no complete answer within 2 s"}, {})
    found = of(metrics, pool(ReplicaState.PROBING), watched=(hung,))
    assert [one.what for one in found] == ["nobody serves pool short", "requests fail"]
    assert found[0].details == "r0 is probing (no complete answer within 2 s)"


def test_headline_of_a_replica_that_is_out_has_its_reason() -> None:
    out = pool(ReplicaState.UP, ReplicaState.EJECTED)
    slow = replace(out.replicas[1], health=HealthView(out="slow-ttft", why="3.1 times as slow as its pool"))
    (found,) = of(Metrics(POLICY), replace(out, replicas=(out.replicas[0], slow)))
    assert found.level is Level.WARN
    assert found.what == "1 of 2 replicas of pool short out"
    assert found.details == "r1 is ejected (3.1 times as slow as its pool)"


@pytest.mark.parametrize("state", [ReplicaState.ABSENT, ReplicaState.DRAINED])
def test_headline_is_silent_about_replicas_that_are_not_meant_to_serve(state: ReplicaState) -> None:
    assert of(Metrics(POLICY), pool(ReplicaState.UP, state))[0].what == "idle"
    assert of(Metrics(POLICY), pool(state))[0].what == "idle"


def test_headline_of_a_gateway_without_a_serving_replica_is_not_that_all_is_well() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(OK)
    assert of(metrics, WELL)[0].what == "all is well"
    assert of(metrics, pool(ReplicaState.ABSENT)) == [Headline(Level.IDLE, "idle", None, "no replica serves")]


def test_headline_of_a_pool_whose_replicas_are_all_absent_tells_once_requests_fail_for_it() -> None:
    metrics = Metrics(POLICY)
    metrics.ended(replace(FAILED, request=a_request(body_at=129.0), why=Reason.NO_REPLICAS, attempts=0))
    assert of(metrics, pool(ReplicaState.ABSENT))[0].what == "nobody serves pool short"


def test_headline_of_a_pool_whose_requests_wait_for_a_replica_counts_them() -> None:
    waits = replace(pool(), on_hold=7)
    assert of(Metrics(POLICY), waits) == [Headline(Level.WARN, "pool short waits for a replica", None, "on hold: 7")]
    (found,) = of(Metrics(POLICY), replace(pool(ReplicaState.DOWN), on_hold=7))
    assert found.what == "nobody serves pool short"
    assert found.details.startswith("on hold: 7; r0 is down")


def test_headline_of_a_store_that_is_away_names_its_error_and_what_follows() -> None:
    store = StoreView("valkey:6379", 0, 3, "Connection refused")
    (found,) = headlines(Metrics(POLICY), Snapshot(1, (WELL,), ()), (), AT, store)
    assert (found.level, found.what) == (Level.WARN, "the store is away")
    assert found.details.startswith("valkey:6379: Connection refused; this gateway has an equal share of each limit")
    one_limit = replace(store, error="", limit_error="limit x: WRONGTYPE")
    (found,) = headlines(Metrics(POLICY), Snapshot(1, (WELL,), ()), (), AT, one_limit)
    assert (found.level, found.what) == (Level.WARN, "a limit is not shared")
    assert found.details.startswith("valkey:6379: limit x: WRONGTYPE; its tenant has an equal share of it at each")
    (found,) = headlines(Metrics(POLICY), Snapshot(1, (WELL,), ()), (), AT, replace(store, error=""))
    assert found.level is Level.IDLE


def test_headline_of_a_source_of_replicas_that_fails_names_its_pool_and_its_error() -> None:
    sources = Discovered("long", "file", 2, "", 0), Discovered("short", "dns", 2, "vllm: no answer within 5 s", 0)
    (found,) = headlines(Metrics(POLICY), Snapshot(1, (WELL,), ()), (), AT, None, sources)
    assert (found.level, found.what) == (Level.WARN, "new replicas of pool short are not found")
    assert found.details == "dns: vllm: no answer within 5 s; its last answer stays in use"
    never = (replace(sources[1], addresses=None),)
    (found,) = headlines(Metrics(POLICY), Snapshot(1, (WELL,), ()), (), AT, None, never)
    assert found.details == "dns: vllm: no answer within 5 s; it has found none yet"
