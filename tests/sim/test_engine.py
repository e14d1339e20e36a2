"""The simulation between decider and replicas."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from gateway.core.commands import Command, Dispatch
from gateway.core.controller import Controller
from gateway.core.policy import Caps, Policy
from gateway.core.pool_spec import Health, Timeouts
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import DEFAULT, PROFILES
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Poisson
from tests.interpreted import interpreted
from tests.sim.made import Spy, arrival, policy, tier

TEST = FleetSpec({"p": PROFILES["test"]})


def spied(rules: Policy, arrivals: Any, **more: Any) -> tuple[Spy, Result]:
    spy = Spy(Controller(rules, Random(1)))
    return spy, simulate(rules, arrivals, decider=spy, **more)


CONTEXT = Sample(context_tokens=DEFAULT.max_model_len, longest_tokens=DEFAULT.max_model_len)


class Short(Controller):
    """A controller that always grants three tokens."""

    def arrive(self, request: Request, now: float) -> list[Command]:
        out = super().arrive(request, now)
        return [Dispatch(c.request_id, c.attempt, c.replica, 3) if isinstance(c, Dispatch) else c for c in out]


class TestAnswers:
    @pytest.mark.parametrize(
        ("more", "tokens"),
        [({}, 40), ({"max_tokens": 7}, 7), ({"max_tokens": 30}, 20), ({"output_tokens": 3}, 3)],
    )
    def test_answer_ends_at_its_own_length_or_its_cap(self, more: dict[str, int], tokens: int) -> None:
        caps = Caps(max_tokens_default=40, max_tokens_limit=20 if more.get("max_tokens") == 30 else 60)
        spy, found = spied(policy(tier(caps=caps)), [arrival(0.0, **{"output_tokens": 50, **more})])
        (record,) = spy.records()
        assert record.output_tokens == tokens
        assert found.good == 1
        assert found.tiers["default"].tokens == found.tiers["default"].good_tokens == 100 + tokens

    @interpreted
    def test_answer_cut_by_the_gateway_is_never_good(self) -> None:
        rules = policy()
        found = simulate(rules, [arrival(0.0, output_tokens=10)], decider=Short(rules, Random(1)))
        assert (found.finished, found.good) == (1, 0)

    @interpreted
    def test_answer_shorter_than_its_reduced_cap_is_good(self) -> None:
        rules = policy()
        found = simulate(rules, [arrival(0.0, output_tokens=3)], decider=Short(rules, Random(1)))
        assert (found.finished, found.good) == (1, 1)

    def test_default_cap_reduced_to_the_context_cuts_no_answer(self) -> None:
        caps = Caps(max_tokens_default=4000, max_tokens_limit=5000)
        spy, found = spied(policy(tier(caps=caps)), [arrival(0.0, 4000, 200)], fleet=TEST)
        assert spy.dispatches()[0].max_tokens == 96
        assert found.good == 1

    @pytest.mark.parametrize(("faults", "tokens"), [((), 50), ((Fault(0.0, "r1", Harm.BALLOON),), 4000)])
    def test_uncapped_answer_ends_at_its_own_length_or_the_context(
        self, faults: tuple[Fault, ...], tokens: int
    ) -> None:
        caps = Caps(max_tokens_default=0)
        room = PROFILES["test"].max_model_len - 4000
        arrivals = [arrival(0.5, room, output_tokens=50)]
        spy, found = spied(policy(tier(caps=caps)), arrivals, fleet=replace(TEST, faults=faults))
        assert spy.dispatches()[0].max_tokens == 0
        assert [record.output_tokens for record in spy.records()] == [tokens]
        assert found.tiers["default"].outcomes == {Outcome.OK: 1}

    def test_engine_rejects_a_request_beyond_its_context(self) -> None:
        caps = Caps(max_tokens_limit=4000)
        spy, found = spied(policy(tier(caps=caps)), [arrival(0.0, 4000, 10, max_tokens=200)], fleet=TEST)
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.REJECTED]
        assert (found.offered, found.counted) == (1, 0)

    def test_whole_answer_has_no_first_token(self) -> None:
        spy, _ = spied(policy(), [arrival(0.0, stream=False)])
        (record,) = spy.records()
        assert (record.ttft_s, record.outcome) == (None, Outcome.OK)
        assert not spy.calls("first_token", "progress")

    def test_the_simulator_reports_the_progress_of_streams(self) -> None:
        options = Options(progress_s=0.25, watched=False)
        spy, _ = spied(policy(), [arrival(0.1, output_tokens=200), arrival(0.1, output_tokens=200)], options=options)
        told = spy.calls("progress")
        assert {heard.at for heard in told} <= {0.25 * i for i in range(100)}
        mine = [heard.args[1] for heard in told if heard.args[0] == 1]
        assert mine == sorted(mine)
        assert len(mine) >= 5
        assert mine[0] == pytest.approx((0.25 - 0.1) / 0.0105, abs=2)


class TestClients:
    def test_client_without_a_patience_limit_stays(self) -> None:
        _, found = spied(policy(slots=1), [arrival(0.0, output_tokens=500), arrival(0.0)])
        assert found.finished == 2

    def test_client_past_its_patience_leaves_and_frees_the_engine(self) -> None:
        arrivals = [arrival(0.0, 4000), arrival(0.01, 4000), arrival(0.2, 100)]
        waited, _ = spied(policy(), arrivals)
        spy, found = spied(policy(), arrivals, options=Options(patience_s=0.3))
        first, second, third = sorted(spy.records(), key=lambda record: record.request.id)
        assert first.outcome is third.outcome is Outcome.OK
        assert (second.outcome, second.why) == (Outcome.ABANDONED, Reason.CLIENT_GONE)
        assert second.e2e_s == pytest.approx(0.3)
        assert third.e2e_s < next(record for record in waited.records() if record.request.id == 3).e2e_s - 0.05
        assert (found.offered, found.counted) == (3, 2)

    def test_client_that_reads_tokens_does_not_leave(self) -> None:
        spy, found = spied(policy(), [arrival(0.0, 10, 500)], options=Options(patience_s=0.3))
        assert found.finished == 1
        assert not spy.calls("leave")


def test_a_cancelled_request_frees_slot_and_cache() -> None:
    # A deadline ends the first, which holds the only slot of the engine; the second then takes as long as if alone.
    patient, hasty = tier("patient"), tier("hasty", timeouts=Timeouts(total_s=1.0))
    rules = policy(patient, hasty, slots=None)
    one_slot = FleetSpec({"p": PROFILES["slow"]})
    alone, _ = spied(rules, [arrival(1.0, tier="patient")], fleet=one_slot, options=Options(watched=False))
    both = [arrival(0.0, 8000, 1000, tier="hasty"), arrival(0.9, 8000, 1000, tier="hasty")]
    spy, _ = spied(rules, [*both, arrival(2.5, tier="patient")], fleet=one_slot, options=Options(watched=False))
    assert [finish.end for finish in spy.finishes()] == [
        AttemptOutcome.CANCELLED,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.COMPLETE,
    ]
    assert len(spy.cancels()) == 2
    assert spy.records()[-1].e2e_s == pytest.approx(alone.records()[0].e2e_s)


class TestNetworkDelay:
    """The time of a request outside of steps."""

    FAR = FleetSpec({"p": replace(PROFILES["test"], path_s=0.5)})

    def test_network_delay_is_added_to_each_first_token_without_queueing(self) -> None:
        asked = [arrival(0.1 * n, 100) for n in range(3)]
        near, _ = spied(policy(), asked, fleet=TEST)
        far, _ = spied(policy(), asked, fleet=self.FAR)
        for here, there in zip(near.records(), far.records(), strict=True):
            assert here.ttft_s is not None
            assert there.ttft_s == pytest.approx(here.ttft_s + 0.5)
            assert there.e2e_s == pytest.approx(here.e2e_s + 0.5)

    def test_seed_chooses_the_network_delay_among_the_measured_ones(self) -> None:
        seen_s = (0.1, 0.2, 0.4)
        asked = [arrival(10.0 * n, 100) for n in range(50)]
        near, _ = spied(policy(), asked, fleet=TEST)
        options = Options(ways_s=seen_s)
        runs = (spied(policy(), asked, fleet=self.FAR, options=options, seed=seed) for seed in (1, 1, 2))
        far, again, other = (spy for spy, _ in runs)
        for here, there in zip(near.records(), far.records(), strict=True):
            assert here.ttft_s is not None
            assert any(there.ttft_s == pytest.approx(here.ttft_s + 0.5 + way_s) for way_s in seen_s)
        took_s = [[round(record.ttft_s or 0.0, 6) for record in spy.records()] for spy in (far, again, other)]
        assert len(set(took_s[0])) == 3, "all of them, in time"
        assert took_s[0] == took_s[1] != took_s[2]

    def test_requests_in_transit_do_not_overtake_each_other(self) -> None:
        """An engine serves simultaneous requests in the order of sending, even if a later one has a shorter way."""
        asked = [arrival(0.001 * n, 2000, output_tokens=1) for n in range(20)]
        spy, _ = spied(policy(replicas=2), asked, options=Options(ways_s=(0.0, 0.01, 0.05, 0.2)))
        sent = [
            (record.replica, record.request.id)
            for record in sorted(spy.records(), key=lambda record: record.request.id)
        ]
        begun = sorted(spy.records(), key=lambda record: record.request.head_at + (record.ttft_s or 0.0))
        names = {name for name, _ in sent}
        assert len(names) == 2
        for name in names:
            assert [r.request.id for r in begun if r.replica == name] == [id for replica, id in sent if replica == name]
        assert [r.request.id for r in begun] != [id for _, id in sent], "those to different engines may"

    def test_request_cancelled_in_transit_never_reaches_the_engine(self) -> None:
        hasty = tier(timeouts=Timeouts(total_s=0.3))
        options = Options(watched=False, duration_s=2.0)  # longer than the request's way
        spy, found = spied(policy(hasty), [arrival(0.0)], fleet=self.FAR, options=options)
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.CANCELLED]
        assert found.finished == 0

    def test_request_in_transit_to_a_dying_replica_is_reset(self) -> None:
        dies = replace(self.FAR, faults=(Fault(0.2, "r1", Harm.DEAD),))
        spy, _ = spied(policy(), [arrival(0.0)], fleet=dies, options=Options(duration_s=1.0))
        assert spy.finishes()[0].end is AttemptOutcome.RESET


class TestFaults:
    @staticmethod
    def with_faults(*faults: Fault, output_tokens: int = 100, at: float = 1.0, **more: Any) -> tuple[Spy, Result]:
        fleet = FleetSpec(faults=faults)
        return spied(policy(**more), [arrival(at, output_tokens=output_tokens)], fleet=fleet)

    def test_simulated_slow_replica_takes_its_factor_longer(self) -> None:
        healthy, _ = self.with_faults()
        slow, _ = self.with_faults(Fault(0.0, "r1", Harm.SLOW, 3.0))
        assert slow.records()[0].e2e_s == pytest.approx(3 * healthy.records()[0].e2e_s)

    def test_recovered_replica_is_no_longer_slow(self) -> None:
        healthy, _ = self.with_faults()
        again, _ = self.with_faults(Fault(0.0, "r1", Harm.SLOW, 3.0), Fault(0.9, "r1", Harm.RECOVER))
        assert again.records()[0].e2e_s == pytest.approx(healthy.records()[0].e2e_s)

    def test_down_replica_refuses_connections_and_fails_its_checks(self) -> None:
        down = Fault(0.0, "r1", Harm.DOWN)
        spy, found = self.with_faults(down, at=20.0, health=Health(interval_s=1.0, failures=3, open_s=1000.0))
        checks = [heard for heard in spy.calls("observe") if heard.args[1] == Sample(healthy=False)]
        assert len(checks) >= 15
        assert [refusal.why for refusal in spy.refusals()] == [Reason.NO_REPLICAS]
        assert (found.counted, found.good) == (1, 0)

    def test_request_refused_by_an_undetected_down_replica_is_retried(self) -> None:
        spy, found = self.with_faults(Fault(0.99, "r1", Harm.DOWN), replicas=2, router="round-robin")
        assert [dispatch.replica for dispatch in spy.dispatches()] == ["r1", "r2"]
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.UNREACHABLE, AttemptOutcome.COMPLETE]
        assert found.good == 1

    def test_request_running_on_a_down_replica_completes(self) -> None:
        spy, _ = self.with_faults(Fault(1.5, "r1", Harm.DOWN))
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.COMPLETE]

    @pytest.mark.parametrize(("at", "end"), [(1.005, AttemptOutcome.RESET), (1.5, AttemptOutcome.TRUNCATED)])
    def test_dying_replica_breaks_off_its_running_request(self, at: float, end: AttemptOutcome) -> None:
        spy, found = self.with_faults(Fault(at, "r1", Harm.DEAD))
        assert [(heard.at, heard.args[1].end) for heard in spy.calls("finish")] == [(at, end)]
        assert (found.counted, found.finished) == (1, 0)

    def test_hung_replica_answers_nothing_while_its_checks_pass(self) -> None:
        spy, found = self.with_faults(Fault(0.5, "r1", Harm.HUNG), Fault(60.0, "r1", Harm.RECOVER))
        assert {heard.args[1] for heard in spy.calls("observe") if heard.args[1].healthy is False} == set()
        assert [(heard.at, heard.args[1].end) for heard in spy.calls("finish")] == [(60.0, AttemptOutcome.RESET)]
        assert found.finished == 0

    def test_hung_replica_sends_no_more_tokens_of_a_begun_answer(self) -> None:
        spy, _ = self.with_faults(Fault(1.5, "r1", Harm.HUNG), Fault(60.0, "r1", Harm.RECOVER))
        told = [heard.at for heard in spy.calls("progress")]
        assert told
        assert max(told) < 2.0
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.TRUNCATED]

    def test_busy_replica_refuses_requests_until_it_recovers(self) -> None:
        faults = (Fault(0.5, "r1", Harm.BUSY), Fault(5.0, "r1", Harm.RECOVER))
        spy, found = spied(policy(), [arrival(1.0), arrival(6.0)], fleet=FleetSpec(faults=faults))
        assert [finish.end for finish in spy.finishes()] == [AttemptOutcome.BUSY, AttemptOutcome.COMPLETE]
        assert found.good == 1

    def test_ballooning_answers_run_to_their_cap(self) -> None:
        """Requests that began before the fault, or after the recovery, end normally."""
        faults = (Fault(1.1, "r1", Harm.BALLOON), Fault(3.0, "r1", Harm.RECOVER))
        caps = Caps(max_tokens_limit=300)
        arrivals = [arrival(at, output_tokens=20, max_tokens=asked) for at, asked in self.ASKED]
        spy, found = spied(policy(tier(caps=caps)), arrivals, fleet=FleetSpec(faults=faults))
        assert {record.request.head_at: record.output_tokens for record in spy.records()} == self.GIVEN
        assert found.good == len(self.ASKED)

    ASKED = ((1.0, 200), (1.2, 200), (1.3, 2000), (2.9, 200), (3.1, 200))
    GIVEN: Final = {1.0: 20, 1.2: 200, 1.3: 300, 2.9: 200, 3.1: 20}

    @pytest.mark.parametrize("stream", [True, False], ids=["streamed", "put together"])
    def test_ballooning_answers_are_cut_by_the_length_watch(self, stream: bool) -> None:
        lengths = Poisson(40.0, 60.0, output_tokens=20)
        fleet = FleetSpec({"p": PROFILES["test"]}, (Fault(30.0, "r1", Harm.BALLOON), Fault(40.0, "r1", Harm.RECOVER)))
        cuts = {}
        for watch in (False, True):
            rules = policy(tier(caps=Caps(max_tokens_default=2000, watch=watch, aggregate=not stream)), slots=8)
            arrivals = [replace(arrival, stream=stream) for arrival in lengths.arrivals(1)]
            spy, _ = spied(rules, arrivals, fleet=fleet)
            cuts[watch] = [record for record in spy.records() if record.outcome is Outcome.CUT]
        assert cuts[False] == []
        assert {record.why for record in cuts[True]} == {Reason.OUTPUT_LENGTH}
        assert all(record.output_tokens > 20 and 30.0 < record.request.head_at < 40.0 for record in cuts[True])

    def test_recovered_replica_starts_without_requests(self) -> None:
        arrivals = [*(arrival(1.0, 8000, 500) for _ in range(3)), arrival(20.0)]
        faults = (Fault(5.0, "r1", Harm.DEAD), Fault(6.0, "r1", Harm.RECOVER))
        alone, _ = spied(policy(), [arrival(20.0)])
        spy, _ = spied(policy(), arrivals, fleet=FleetSpec(faults=faults))
        assert spy.records()[-1].e2e_s == pytest.approx(alone.records()[0].e2e_s)

    def test_fault_of_an_unknown_replica_is_refused(self) -> None:
        with pytest.raises(ValueError, match="names r9, but the replicas are r1, r2"):
            simulate(policy(replicas=2), [], fleet=FleetSpec(faults=(Fault(0.0, "r9", Harm.DOWN),)))


class TestChecksAndScrapes:
    def test_replicas_are_checked_and_scraped_at_the_policys_intervals(self) -> None:
        health = Health(interval_s=2.0, scrape_interval_s=0.5)
        workload = Poisson(20.0, 30.0)
        spy, _ = spied(policy(replicas=2, health=health), workload.arrivals(1), options=Options(duration_s=30.0))
        seen = [(heard.args[0], heard.args[1]) for heard in spy.calls("observe")]
        checks = [name for name, sample in seen if sample == Sample(healthy=True)]
        scrapes = [sample for name, sample in seen if name == "r2" and isinstance(sample, Sample) and sample.running]
        assert checks.count("r1") == pytest.approx(16, abs=2)
        assert len(scrapes) == pytest.approx(62, abs=6)
        assert all(sample.kv_fraction is not None and sample.waiting is not None for sample in scrapes)

    def test_a_scrape_sees_the_cache_as_it_is_in_the_middle_of_a_long_answer(self) -> None:
        spy, _ = spied(policy(health=Health(scrape_interval_s=1.0)), [arrival(0.0, 100, 900)])
        seen = [heard.args[1] for heard in spy.calls("observe")]
        filled = [s.kv_fraction for s in seen if isinstance(s, Sample) and s.running and s.kv_fraction is not None]
        assert len(filled) >= 6
        assert filled == sorted(set(filled))

    def test_context_length_is_the_first_observation(self) -> None:
        spy, _ = spied(policy(), [arrival(1.0)])
        seen = [(heard.args[0], heard.args[1]) for heard in spy.calls("observe")]
        assert seen[0] == ("r1", CONTEXT)

    def test_unwatched_replica_is_observed_for_its_context_only(self) -> None:
        spy, _ = spied(policy(), [arrival(5.0)], options=Options(watched=False))
        assert [heard.args[1] for heard in spy.calls("observe")] == [CONTEXT]


class TestInvalidInput:
    def test_tiers_and_models_missing_from_the_policy_are_all_named(self) -> None:
        told = r"what the workload asks for: tier gold, lead \(it has default\); model gpt \(it has default\)"
        with pytest.raises(ValueError, match=told):
            simulate(policy(), [arrival(0.0, tier="gold"), arrival(1.0, tier="lead", model="gpt")])

    def test_arrivals_after_the_duration_may_name_unknown_tiers(self) -> None:
        left_out = [arrival(5.0, tier="gold"), arrival(6.0, tier="lead")]
        assert simulate(policy(), [arrival(0.0), *left_out], options=Options(duration_s=5.0)).good == 1
        with pytest.raises(ValueError, match=r"tier gold \(it has default\)$"):
            simulate(policy(), [arrival(0.0), *left_out], options=Options(duration_s=6.0))

    def test_run_that_is_all_warm_up_is_refused(self) -> None:
        with pytest.raises(ValueError, match="--duration is 10 s"):
            simulate(policy(), [arrival(0.0)], options=Options(warmup_s=10.0, duration_s=10.0))
        with pytest.raises(ValueError, match="--warmup is 10 s, requests arrive for 1 s"):
            simulate(policy(), [arrival(0.0)], options=Options(warmup_s=10.0))
