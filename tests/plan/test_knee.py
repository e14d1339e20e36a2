"""The search for the knee: on its own with a made-up goodput, and in the simulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.core.policy import Policy
from gateway.plan.knee import MAX_TIMES, Knee, Search, Tried, fewest, scaled
from gateway.policy import load_text
from gateway.sim.analysis.report import Interval
from gateway.sim.engine.fleet import fleet_of
from gateway.sim.engine.profiles import DEFAULT
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.workload.load import load_text as load_workload_text
from gateway.sim.workload.synthetic import Synthetic

POLICY = """\
apiVersion: tailgate/v1
models: {default: {pools: [short, long]}}
pools:
  short: {replicas: [http://127.0.0.1:1, http://127.0.0.1:2], max_prompt_tokens: 400, slots: 2, queue: {limit: 20}}
  long: {replicas: [http://127.0.0.1:3], slots: 2}
tiers:
  default: {slo: {ttft: {p99: 60ms}, e2e: {p99: 90ms}}}
"""
WORKLOAD = """\
apiVersion: tailgate/v1
kind: Workload
rate: 400/s
duration: 2s
prompt_tokens: {least: 100, most: 600}
output_tokens: 40
tiers:
  default: {share: 100%}
"""


def tried(n: int, goodput: float, in_system: float, target: float = 0.99) -> Tried:
    return Tried(
        {"p": n}, None, 1.0, Interval(goodput, None, None, 1), 0, 0, 0, 0, in_system, 0, target, goodput >= target
    )


def counting(goodput: Callable[[int], float], in_system: float = 0.0) -> tuple[list[int], Callable[[int], Tried]]:
    asked: list[int] = []

    def attempt(n: int) -> Tried:
        asked.append(n)
        return tried(n, goodput(n), in_system)

    return asked, attempt


@pytest.mark.parametrize("start", [1, 3, 4, 64])
@pytest.mark.parametrize("enough", [1, 2, 3, 37, 40])
def test_search_finds_the_fewest_replicas_from_any_start(enough: int, start: int) -> None:
    asked, attempt = counting(lambda n: min(1.0, n / enough))
    assert fewest(attempt, start) == enough
    assert len(asked) == len(set(asked))
    assert len(asked) <= 14


def test_search_tries_no_replica_count_below_the_minimum() -> None:
    asked, attempt = counting(lambda n: float(n >= 9))
    assert fewest(attempt, 6, least=6) == 9
    assert min(asked) == 6


@pytest.mark.parametrize("before", [0.0, 0.93])
@pytest.mark.parametrize("start", [1, 3, 4, 64])
def test_search_continues_past_a_full_fleet_since_more_replicas_may_help(start: int, before: float) -> None:
    """Without admission control almost nothing is good until everything fits."""
    asked, attempt = counting(lambda n: 1.0 if n >= 37 else before, in_system=300.0)
    assert fewest(attempt, start) == 37
    assert len(asked) <= 14


@pytest.mark.parametrize(("in_system", "most"), [(0.5, 16), (4.0, 16), (60.0, 128)])
def test_plan_says_when_more_replicas_do_not_help(in_system: float, most: int) -> None:
    asked, attempt = counting(lambda n: 0.93 if n >= 4 else n / 5, in_system)
    told = rf"goodput stays at 0\.930, even with {most} replicas for {in_system:.3g} requests.* than --target 0\.99"
    with pytest.raises(ValueError, match=told):
        fewest(attempt, 1)
    assert max(asked) == most


def test_pool_full_at_the_replica_limit_is_not_called_impossible() -> None:
    _, attempt = counting(lambda n: 0.0, in_system=1e6)
    with pytest.raises(ValueError, match=r"goodput is 0\.000 with 4096 replicas of a pool, and more are not tried"):
        fewest(attempt, 1)


def test_scaled_pool_has_proportionally_more_replicas_and_queue() -> None:
    policy = scaled(load_text(POLICY, "policy.yaml"), {"short": 5, "long": 1})
    names = [replica.name for pool in policy.pools.values() for replica in pool.replicas]
    assert len(names) == len(set(names)) == 6
    assert policy.pools["short"].queue_limit == 50
    assert policy.pools["long"].queue_limit == load_text(POLICY, "policy.yaml").pools["long"].queue_limit


def search(policy: Policy, target: float = 0.98, jobs: int = 1) -> Search:
    workload = load_workload_text(WORKLOAD, "workload.yaml")
    options = Options(warmup_s=0.5)
    return Search(policy, workload, fleet_of("test", policy), target, (1, 2), options, jobs)


@pytest.fixture(scope="module")
def found() -> Knee:
    return search(load_text(POLICY, "policy.yaml")).run()


def test_each_planned_pool_is_as_small_as_possible(found: Knee) -> None:
    tried = {(tuple(t.replicas.values()), t.lost): t for t in found.tried if t.rate_per_s == found.needed.rate_per_s}
    short, long = found.needed.replicas.values()
    assert found.needed.reached
    assert found.needed.goodput.value >= 0.98
    assert short == 1 or not tried[(short - 1, long), None].reached
    assert long == 1 or not tried[(short, long - 1), None].reached
    assert short + long > 2


def test_planned_knee_is_at_or_above_the_wanted_rate(found: Knee) -> None:
    assert found.limit.reached
    assert found.limit.replicas == found.needed.replicas
    assert found.limit.rate_per_s >= found.needed.rate_per_s
    assert found.per_replica_per_s == found.limit.rate_per_s / found.needed.total
    above = [t for t in found.tried if t.replicas == found.needed.replicas and t.rate_per_s > found.limit.rate_per_s]
    assert above
    assert not any(t.reached for t in above)


ONE_POOL = """\
apiVersion: tailgate/v1
models: {default: {pools: [p]}}
pools: {p: {replicas: [http://127.0.0.1:1], slots: 24}}
tiers: {default: {slo: {e2e: {p99: 2s}}}}
"""


def test_plan_shows_the_arithmetic_of_the_found_fleet() -> None:
    """Little's law: the sampled requests in slots equal the rate times the time from the queue to the end."""
    made, results = search(load_text(ONE_POOL, "policy.yaml")), list[Result]()
    made.profiles = {"p": DEFAULT}
    made.workload = load_workload_text(WORKLOAD.replace("400/s", "20/s").replace("2s", "20s"), "workload.yaml")
    made.on_run = results.append
    found = made.run()
    needed, by_slots = found.needed, found.by_slots
    assert by_slots is not None
    assert by_slots.load.slots == 24  # the policy's slots; the engine has more
    assert by_slots.load.latency_s is not None
    first = [result.tiers["default"] for result in results[:2]]  # one replica is enough, and is tried first
    assert needed.total == 1
    held_s = sum((tier.e2e.p50 or 0.0) - (tier.queue.p50 or 0.0) for tier in first) / 2
    assert by_slots.load.latency_s == pytest.approx(held_s, rel=0.15)
    assert by_slots.in_flight == pytest.approx(needed.rate_per_s * held_s, rel=0.15)
    assert by_slots.replicas == needed.total >= (by_slots.replicas_needed or 0) >= 1
    assert needed.total in [row.replicas for row in by_slots.curve]


def test_plan_of_several_pools_shows_no_arithmetic(found: Knee) -> None:
    assert found.by_slots is None


def test_knee_search_ends_where_tenant_limits_bind(found: Knee) -> None:
    """Requests over a limit are not counted, so any rate reaches the target."""
    limited = ONE_POOL.replace("{slo:", "{limits: {concurrency: 2}, slo:")
    endless = search(load_text(limited, "policy.yaml")).run()
    assert not endless.limit_is_known
    assert endless.limit.rate_per_s >= MAX_TIMES * 0.9 * 400
    assert found.limit_is_known


def test_plan_says_how_many_more_replicas_a_loss_needs(found: Knee) -> None:
    assert [t.lost for t in found.when_lost] == ["short", "long"]
    for lost in found.when_lost:
        assert lost.replicas == found.needed.replicas
        assert lost.goodput.value < found.needed.goodput.value
    assert all(found.replicas_one_lost[pool] > n for pool, n in found.needed.replicas.items())


@pytest.mark.long
def test_plan_for_a_pool_that_can_lose_a_replica_needs_no_more() -> None:
    made = search(load_text(POLICY, "policy.yaml"))
    made.workload = load_workload_text(WORKLOAD.replace("most: 600", "most: 300"), "workload.yaml")
    found = made.run()
    assert found.needed.replicas["long"] == 1  # no prompt goes to this pool
    assert found.replicas_one_lost == {"short": found.needed.replicas["short"] + 1, "long": 1}


def test_unreachable_goodput_gives_no_plan() -> None:
    policy = load_text(POLICY.replace("e2e: {p99: 90ms}", "e2e: {p99: 5ms}"), "policy.yaml")
    with pytest.raises(ValueError, match=r"some requests cannot be good on these engines"):
        search(policy).run()


def test_workload_at_another_rate_has_the_same_requests_at_denser_times() -> None:
    workload = load_workload_text(WORKLOAD, "workload.yaml")
    assert isinstance(workload, Synthetic)
    once, twice = list(workload.arrivals(1)), list(workload.faster(2.0).arrivals(1))
    assert len(twice) == pytest.approx(2 * len(once), rel=0.1)
    assert [a.prompt_tokens for a in twice[: len(once)]] == [a.prompt_tokens for a in once]


def test_highest_rate_of_a_fleet_is_found_from_a_rate_that_is_too_high() -> None:
    rules = load_text(POLICY, "policy.yaml")
    found = search(rules).limit({"short": 1, "long": 1})
    assert found.reached
    assert found.replicas == {"short": 1, "long": 1}
    assert 150 < found.rate_per_s < 402  # at 402/s neither one short nor one long is enough


def test_fleet_that_reaches_the_target_at_no_rate_has_no_highest_rate() -> None:
    policy = load_text(POLICY.replace("e2e: {p99: 90ms}", "e2e: {p99: 5ms}"), "policy.yaml")
    with pytest.raises(ValueError, match=r"goodput is below 0\.98 at any rate"):
        search(policy).limit({"short": 1, "long": 1})
