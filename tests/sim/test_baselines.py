"""Baselines do what their names say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from gateway.core.policy import Limits, Policy
from gateway.core.pool_spec import Health, Timeouts
from gateway.core.results import Outcome, Reason
from gateway.sim.analysis.compare import Comparison, Contender
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival, Poisson
from tests.sim.made import ENFORCE, Spy, arrival, policy, tier, timeless

TIERS = (
    tier("gold", 0, ttft_s=1.0, weight=4.0, admission=ENFORCE, timeouts=Timeouts()),
    tier("bulk", 1, ttft_s=4.0, admission=ENFORCE, timeouts=Timeouts()),
)


@dataclass(frozen=True)
class Mixed:
    """A fifth of the requests are gold, the others bulk. Lengths differ, so that slots are not freed in waves."""

    rate_per_s: float
    duration_s: float = 40.0

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        draw = Random(seed)
        at = draw.expovariate(self.rate_per_s)
        while at < self.duration_s:
            lengths = draw.randint(100, 1100), draw.randint(1, 240)
            yield arrival(at, *lengths, tier="gold" if draw.random() < 0.2 else "bulk")
            at += draw.expovariate(self.rate_per_s)


def spied(text: str, rules: Policy, workload: Mixed, **more: Any) -> tuple[Spy, Result]:
    found = baselines.setup(text, rules)
    spy = Spy(found.decider(found.policy, Random(1)))
    return spy, simulate(found.policy, workload.arrivals(1), decider=spy, **more)


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_every_baseline_has_full_goodput_at_low_load(name: str) -> None:
    _, found = spied(name, policy(*TIERS, replicas=2), Mixed(8.0))
    assert found.goodput > 0.99


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_tier_without_pools_is_refused_by_every_baseline(name: str) -> None:
    rules = policy(*TIERS, tier("barred", pools=()))
    found = baselines.setup(name, rules)
    spy = Spy(found.decider(found.policy, Random(1)))
    simulate(found.policy, [arrival(0.0, tier="barred")], decider=spy)
    assert [refusal.why for refusal in spy.refusals()] == [Reason.FORBIDDEN_MODEL]


@pytest.mark.parametrize("name", ["round-robin", "least-requests"])
def test_no_control_baseline_sends_all_at_once_and_goodput_collapses(name: str) -> None:
    spy, found = spied(name, policy(*TIERS, replicas=2, slots=4), Mixed(60.0))
    assert all(record.queue_s == 0.0 for record in spy.records())
    assert found.goodput < 0.4
    sent = Counter(dispatch.replica for dispatch in spy.dispatches())
    assert sent["r1"] == pytest.approx(sent["r2"], rel=0.05)


def test_round_robin_baseline_picks_replicas_in_turn() -> None:
    spy, _ = spied("round-robin", policy(*TIERS, replicas=3), Mixed(8.0, 10.0))
    replicas = [dispatch.replica for dispatch in spy.dispatches()]
    assert replicas == (["r1", "r2", "r3"] * len(replicas))[: len(replicas)]


def test_static_cap_baseline_never_exceeds_its_cap_and_ignores_tiers() -> None:
    spy, found = spied("static-cap:slots=16,wait=0.4", policy(*TIERS, replicas=2), Mixed(60.0))
    open_attempts, most = 0, 0
    for heard in spy.heard:
        open_attempts += sum(type(command).__name__ == "Dispatch" for command in heard.out)
        open_attempts -= heard.call == "finish"
        most = max(most, open_attempts)
    assert most == 32
    order = [d.request_id for d in spy.dispatches()]
    assert order == sorted(order)
    assert max(r.queue_s for r in spy.records() if r.outcome is Outcome.OK) <= 0.4
    gold, bulk = (row.attainment or 0.0 for row in found.tiers.values())
    assert gold == pytest.approx(bulk, abs=0.1)


def test_strict_tiers_baseline_serves_the_most_urgent_first() -> None:
    _, found = spied("static-cap-tiers:slots=16", policy(*TIERS, replicas=2), Mixed(60.0))
    gold, bulk = (row.attainment or 0.0 for row in found.tiers.values())
    assert gold > 0.98
    assert bulk < 0.8


class TestSaturationRule:
    def test_llm_d_baseline_sheds_the_least_urgent_and_holds_others_while_full(self) -> None:
        spy, found = spied("llm-d", policy(*TIERS, replicas=2), Mixed(80.0))
        shed = Counter((r.request.tier.name, r.why) for r in spy.records() if r.outcome is not Outcome.OK)
        assert shed["bulk", Reason.QUEUE_FULL] > 500
        assert not shed["gold", Reason.QUEUE_FULL]
        assert any(r.queue_s > 0.0 for r in spy.records() if r.request.tier.name == "gold")
        assert (found.tiers["gold"].attainment or 0.0) > 0.8

    def test_llm_d_baseline_has_lower_goodput_with_one_second_scrapes(self) -> None:
        _, fresh = spied("llm-d", policy(*TIERS, replicas=2), Mixed(30.0))
        _, stale = spied("llm-d:scrape=1", policy(*TIERS, replicas=2), Mixed(30.0))
        assert stale.goodput < fresh.goodput - 0.2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("random", "random is not a baseline; known: round-robin"),
        ("static-cap:slot=3", "static-cap has no slot; it has slots, wait"),
        ("round-robin:slots=3", "it has no numbers"),
        ("static-cap:slots=many", "slots must be a number, as in slots=64"),
        ("static-cap:slots=0", "slots must be above 0"),
    ],
)
def test_unknown_baseline_name_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        baselines.setup(text, policy())


class TestComparisons:
    @staticmethod
    def comparison() -> Comparison:
        rules, fleet = policy(*TIERS), FleetSpec()
        return Comparison(
            candidates=(Contender("ours", rules, fleet), Contender("static-cap", rules, fleet, "static-cap")),
            workload=Poisson(30.0, 10.0, tier="bulk"),
            seeds=(4, 5),
            options=Options(warmup_s=1.0),
        )

    def test_comparison_runs_each_candidate_with_each_seed(self) -> None:
        told: list[tuple[str, int]] = []
        found = self.comparison().run_all(on_done=lambda result: told.append((result.policy, result.seed)))
        assert [[(r.policy, r.seed) for r in runs] for runs in found] == [
            [("ours", 4), ("ours", 5)],
            [("static-cap", 4), ("static-cap", 5)],
        ]
        assert sorted(told) == [("ours", 4), ("ours", 5), ("static-cap", 4), ("static-cap", 5)]
        ours, theirs = found
        assert [r.offered for r in ours] == [r.offered for r in theirs]
        assert ours[0].offered != ours[1].offered

    def test_error_in_a_worker_process_is_raised(self) -> None:
        broken = replace(self.comparison(), workload=Poisson(30.0, 10.0, tier="silver"))
        with pytest.raises(ValueError, match="asks for: tier silver"):
            broken.run_all(jobs=2)

    def test_several_processes_give_the_same_results(self) -> None:
        alone, together = self.comparison().run_all(), self.comparison().run_all(jobs=2)
        assert [[timeless(r) for r in runs] for runs in together] == [[timeless(r) for r in runs] for runs in alone]


def test_static_cap_that_never_binds_equals_least_requests() -> None:
    rules = policy(*TIERS)
    _, gated = spied("static-cap:slots=100000,wait=1000", rules, Mixed(30.0))
    _, alone = spied("least-requests", rules, Mixed(30.0))
    assert gated.tiers["gold"].ttft == alone.tiers["gold"].ttft


class TestBalancer:
    """Common behaviour of all baselines."""

    @staticmethod
    def run(rules: Policy, *arrivals: Arrival, faults: tuple[Fault, ...] = (), **more: Any) -> Spy:
        found = baselines.setup("least-requests", rules)
        spy = Spy(found.decider(found.policy, Random(1)))
        fleet = FleetSpec(faults=faults)
        simulate(found.policy, arrivals, decider=spy, fleet=fleet, options=Options(**more))
        return spy

    def test_balancer_retries_a_refused_connection_elsewhere(self) -> None:
        crowd = [arrival(1.0) for _ in range(8)]
        spy = self.run(policy(replicas=2), *crowd, faults=(Fault(0.9, "r1", Harm.DOWN),))
        assert {record.outcome for record in spy.records()} == {Outcome.OK}
        assert {dispatch.replica for dispatch in spy.dispatches()} == {"r1", "r2"}
        assert len(spy.dispatches()) > 8

    def test_balancer_passes_over_a_replica_known_to_be_down(self) -> None:
        crowd = [arrival(20.0) for _ in range(8)]
        spy = self.run(policy(replicas=2, health=Health(open_s=100.0)), *crowd, faults=(Fault(0.0, "r1", Harm.DOWN),))
        assert [dispatch.replica for dispatch in spy.dispatches()] == ["r2"] * 8

    def test_balancer_without_a_living_replica_refuses(self) -> None:
        spy = self.run(policy(health=Health(open_s=100.0)), arrival(20.0), faults=(Fault(0.0, "r1", Harm.DOWN),))
        assert [refusal.why for refusal in spy.refusals()] == [Reason.NO_REPLICAS]

    def test_request_over_its_timeout_is_ended_and_leaves_the_engine(self) -> None:
        spy = self.run(policy(tier(timeouts=Timeouts(total_s=2.0))), arrival(0.0, 100, 900))
        assert [(r.outcome, r.why, r.e2e_s) for r in spy.records()] == [(Outcome.TIMEOUT, Reason.TOTAL_TIMEOUT, 2.0)]
        assert len(spy.cancels()) == 1

    def test_balancer_enforces_tenant_limits(self) -> None:
        spy = self.run(policy(tier(limits=Limits(concurrency=2))), *(arrival(0.0) for _ in range(3)), arrival(10.0))
        assert Counter(record.outcome for record in spy.records()) == {Outcome.OK: 3, Outcome.QUOTA: 1}

    def test_balancer_refuses_prompts_that_no_pool_takes(self) -> None:
        spy = self.run(policy(max_prompt_tokens=500), arrival(0.0, 501), arrival(0.0, 500))
        assert [refusal.why for refusal in spy.refusals()] == [Reason.CONTEXT_LENGTH]

    def test_client_of_a_balancer_past_its_patience_frees_the_engine(self) -> None:
        spy = self.run(policy(), arrival(0.0, 8000), patience_s=0.1)
        assert [record.outcome for record in spy.records()] == [Outcome.ABANDONED]
        assert len(spy.cancels()) == 1
