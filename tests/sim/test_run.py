"""Whole runs: nothing is lost, results are reproducible, and queueing theory holds."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.results import Outcome
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import PROFILES, Profile
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Poisson
from tests.sim.made import ENFORCE, Spy, arrival, policy, tier, timeless

TEST = PROFILES["test"]


def spied(rules: Policy, arrivals: Any, **more: Any) -> tuple[Spy, Result]:
    """One run of the production controller, with recorded calls."""
    spy = Spy(Controller(rules, Random(1)))
    return spy, simulate(rules, arrivals, decider=spy, **more)


def test_simulated_request_takes_as_long_as_its_engine() -> None:
    engine = TEST
    spy, found = spied(policy(), [arrival(1.0, 100, 3)], fleet=FleetSpec({"p": engine}))
    (record,) = spy.records()
    step_s = engine.step_base_s
    first_s = step_s + 100 * engine.prefill_s_per_token
    rest_s = 2 * (step_s + engine.decode_s_per_sequence) + (100 + 101) * engine.kv_s_per_token
    assert record.ttft_s == pytest.approx(first_s)
    assert record.e2e_s == pytest.approx(first_s + rest_s)
    assert (record.prompt_tokens, record.output_tokens, record.good) == (100, 3, True)
    assert [(heard.call, heard.at) for heard in spy.calls("arrive", "sent", "first_token", "finish")] == [
        ("arrive", 1.0),
        ("sent", 1.0),
        ("first_token", pytest.approx(1.0 + first_s)),
        ("finish", pytest.approx(1.0 + first_s + rest_s)),
    ]
    assert (found.offered, found.good, found.unfinished) == (1, 1, 0)


def test_answer_granted_too_many_tokens_by_an_estimate_is_trimmed_to_the_context() -> None:
    crowd = [arrival(at, TEST.max_model_len - 50, 20) for at in range(40)]
    spy, _ = spied(policy(), crowd, fleet=FleetSpec({"p": TEST}), options=Options(noise=0.6))
    assert {record.outcome for record in spy.records() if record.attempts} == {Outcome.OK}


def test_noise_changes_costs_and_estimated_prompts_but_not_the_sent_requests() -> None:
    crowd = [arrival(at, 100, 20) for at in range(400)]
    plain, noisy = (spied(policy(), crowd, fleet=FleetSpec({"p": TEST}), options=Options(noise=n)) for n in (0.0, 0.6))
    believed = [heard.args[0].prompt_exact for heard in noisy[0].calls("arrive")]
    assert len(set(believed)) > 50
    assert sum(believed) / len(believed) == pytest.approx(100, rel=0.1)  # the mean is kept
    assert {record.prompt_tokens for record in noisy[0].records()} == {100}
    assert {record.outcome for record in noisy[0].records()} == {Outcome.OK}
    times = [record.e2e_s for record in noisy[0].records()]
    (same,) = {round(record.e2e_s, 9) for record in plain[0].records()}
    assert len(set(times)) > 300
    assert sum(times) / len(times) == pytest.approx(same, rel=0.05)
    again, _ = spied(policy(), crowd, fleet=FleetSpec({"p": TEST}), options=Options(noise=0.6))
    assert [record.e2e_s for record in again.records()] == times


class TestConservation:
    """Every arrival ends exactly once."""

    ROUGH = FleetSpec(
        faults=(
            Fault(5.0, "r1", Harm.SLOW, 6.0),
            Fault(8.0, "r2", Harm.DEAD),
            Fault(12.0, "r2", Harm.RECOVER),
            Fault(14.0, "r3", Harm.DOWN),
            Fault(20.0, "r3", Harm.RECOVER),
        )
    )

    @pytest.mark.parametrize("rate", [30.0, 90.0])
    @pytest.mark.parametrize("patience_s", [math.inf, 0.5])
    def test_every_simulated_arrival_ends_once(self, rate: float, patience_s: float) -> None:
        timeouts = Timeouts(queue_s=1.0, ttft_s=4.0, idle_s=2.0, total_s=12.0)
        rules = policy(tier(timeouts=timeouts, admission=ENFORCE), replicas=3, slots=48, queue_limit=40)
        options = Options(patience_s=patience_s)
        arrivals = list(Poisson(rate, 30.0).arrivals(3))
        spy, found = spied(rules, arrivals, fleet=self.ROUGH, options=options)
        ids = [record.request.id for record in spy.records()]
        assert sorted(ids) == list(range(1, len(arrivals) + 1))
        opened = [dispatch.attempt for dispatch in spy.dispatches()]
        assert sorted(opened) == sorted(heard.args[0] for heard in spy.calls("finish"))
        (row,) = found.tiers.values()
        assert found.offered == len(arrivals) == sum(row.outcomes.values())
        assert row.counted == row.finished + sum(row.misses.values())
        assert len({finish.end for finish in spy.finishes()}) >= 4

    def test_request_that_never_ends_is_a_miss(self) -> None:
        stuck = FleetSpec(faults=(Fault(0.0, "r1", Harm.SLOW, 1e9),))
        found = simulate(policy(), [arrival(0.0), arrival(1.0)], fleet=stuck, options=Options(give_up_s=100.0))
        assert (found.unfinished, found.counted, found.good) == (2, 2, 0)
        assert found.tiers["default"].misses == {"unfinished": 2}


class TestDeterminism:
    def run(self, seed: int) -> Result:
        workload = Poisson(90.0, 20.0)
        faults = FleetSpec(faults=TestConservation.ROUGH.faults[:3])
        found = simulate(policy(replicas=3), workload.arrivals(seed), seed=seed, fleet=faults)
        return timeless(found)

    def test_same_seed_gives_the_same_run(self) -> None:
        assert self.run(1) == self.run(1)

    def test_another_seed_gives_another_run(self) -> None:
        assert self.run(1) != self.run(2)


class TestQueueingTheory:
    @pytest.mark.parametrize("rate", [40.0, 120.0])
    def test_simulated_run_obeys_littles_law(self, rate: float) -> None:
        found = simulate(
            policy(tier(timeouts=Timeouts(queue_s=2.0)), replicas=4),
            Poisson(rate, 100.0).arrivals(1),
            options=Options(warmup_s=20.0),
        )
        assert found.in_system == pytest.approx(found.little, rel=0.04)

    @pytest.mark.long
    @pytest.mark.parametrize("load", [0.5, 0.8])
    def test_mean_wait_of_one_server_is_that_of_pollaczek_khinchine(self, load: float) -> None:
        # One slot, each request one step of fixed length: M/D/1, whose mean wait is load / (2 (1 - load)) services.
        server = replace(TEST, step_base_s=0.1, prefill_s_per_token=0.0, kv_s_per_token=0.0)
        rules = policy(tier(), slots=1)
        workload = Poisson(load / 0.1, 8000.0 * 0.1 / load, prompt_tokens=1, output_tokens=1)
        spy, _ = spied(rules, workload.arrivals(5), fleet=FleetSpec({"p": server}), options=Options(watched=False))
        waits = [record.queue_s for record in spy.records()]
        assert all(record.e2e_s == pytest.approx(record.queue_s + 0.1) for record in spy.records())
        assert sum(waits) / len(waits) == pytest.approx(0.1 * load / (2 * (1 - load)), rel=0.1)

    def test_mean_wait_inside_the_engine_is_that_of_pollaczek_khinchine(self) -> None:
        # The same queue inside the engine, which serves one sequence at a time.
        server: Profile = replace(TEST, max_num_seqs=1, step_base_s=0.1, prefill_s_per_token=0.0, kv_s_per_token=0.0)
        rules = policy(tier(), slots=None)
        workload = Poisson(8.0, 1000.0, prompt_tokens=1, output_tokens=1)
        spy, found = spied(rules, workload.arrivals(5), fleet=FleetSpec({"p": server}), options=Options(watched=False))
        ttfts = [record.ttft_s or 0.0 for record in spy.records()]
        assert sum(ttfts) / len(ttfts) == pytest.approx(0.1 + 0.1 * 0.8 / (2 * 0.2), rel=0.1)
        assert found.busy == pytest.approx(0.8, rel=0.03)
