"""Requests are kept while their pool has no replica, and sent in order of urgency when one is back."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.policy import Model, Policy, Retry
from gateway.core.pool_spec import Hold, Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import ReplicaState
from tests.footprint import footprint

from .made import NEVER_TOO_LATE, policy, pool, tier
from .playbook import Story, cancel, commit, dispatch, ended, play, refuse
from .test_sessions import home_of, session

HOLD = Hold(time_s=60.0, limit=3, bytes=3500)
TIERS = (tier("urgent", 0), tier("std", 1))


def rules(*replicas: str, slots: int = 1, hold: Hold | None = HOLD) -> Policy:
    return replace(policy(pool("p", *replicas, slots=slots, hold=hold), *TIERS), default_tier="std")


def found(*replicas: str, slots: int = 1, hold: Hold | None = HOLD) -> Policy:
    """A policy whose replicas were found by discovery."""
    made = rules(*replicas, slots=slots, hold=hold)
    specs = tuple(replace(spec, is_found=True) for spec in made.pools["p"].replicas)
    return replace(made, pools={"p": replace(made.pools["p"], replicas=specs)})


def empty() -> Story:
    return play(rules())


def test_request_without_a_replica_is_refused_at_once_unless_the_pool_holds() -> None:
    story = play(rules(hold=None)).arrives("a")
    story.expect(refuse(Reason.NO_REPLICAS, of="a"), ended(Outcome.REFUSED, of="a"))
    empty().arrives("a").expect()


def test_requests_on_hold_are_sent_by_urgency_and_then_arrival_within_the_slots() -> None:
    story = empty().arrives("a").after(1.0).arrives("b").after(1.0).arrives("c", tier="urgent")
    assert story.pool("p").on_hold == 3
    story.at(20.0).configured(rules("r1", slots=2)).expect(dispatch("r1", of="c"), dispatch("r1", of="a"))
    assert story.pool("p").on_hold == 1
    story.sent("a").first_token("a").finishes("a").whatever()
    assert story.pool("p").in_flight == 2
    assert story.pool("p").on_hold == 0


def test_new_requests_wait_behind_those_on_hold() -> None:
    story = empty().arrives("a").arrives("b").configured(rules("r1")).expect(dispatch("r1", of="a"))
    story.arrives("new").expect()
    story.sent("a").first_token("a").finishes("a").expect(commit("a"), ended(Outcome.OK, "a"), dispatch("r1", of="b"))


def test_hold_is_bounded_in_requests_and_in_bytes() -> None:
    story = empty().arrives("a").arrives("b").expect()
    story.arrives("large", body_bytes=2000)
    story.expect(refuse(Reason.NO_REPLICAS, of="large"), ended(Outcome.REFUSED, of="large"))
    story.arrives("small", body_bytes=100).expect()
    story.arrives("more", body_bytes=100).expect(refuse(Reason.NO_REPLICAS, "more"), ended(Outcome.REFUSED, "more"))


def test_request_on_hold_is_refused_when_its_time_is_over() -> None:
    story = empty().arrives("a").at(59.9).expect()
    story.at(60.0).expect(refuse(Reason.NO_REPLICAS, of="a"), ended(Outcome.REFUSED, of="a"))
    assert story.pool("p").on_hold == 0


def test_reload_that_holds_for_a_shorter_time_counts_for_those_on_hold() -> None:
    story = empty().arrives("a").at(5.0).configured(rules(hold=replace(HOLD, time_s=20.0))).expect()
    story.at(19.9).expect()
    story.at(20.0).expect(refuse(Reason.NO_REPLICAS, of="a"), ended(Outcome.REFUSED, of="a"))


def test_total_timeout_ends_a_hold() -> None:
    timeouts = Timeouts(NEVER_TOO_LATE.queue_s, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, 5.0)
    story = play(policy(pool("p", hold=HOLD), tier("std", timeouts=timeouts))).arrives("a")
    story.at(5.0).expect(refuse(Reason.NO_REPLICAS, of="a"), ended(Outcome.REFUSED, of="a"))


def test_client_that_leaves_frees_its_place_on_hold() -> None:
    story = empty().arrives("a").leaves("a").expect(ended(Outcome.ABANDONED, of="a"))
    assert story.controller.holdings().is_empty
    assert story.pool("p").on_hold == 0
    story.configured(rules("r1")).expect()


def test_timeout_of_the_queue_does_not_count_on_hold() -> None:
    timeouts = Timeouts(1.0, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    tiers = tier("std", timeouts=timeouts)
    story = play(policy(pool("p", hold=HOLD), tiers)).arrives("a").at(30.0).expect()
    story.configured(policy(pool("p", "r1", hold=HOLD), tiers)).expect(dispatch("r1", of="a"))


def test_requests_that_were_queued_when_their_pool_lost_its_replica_are_put_on_hold() -> None:
    timeouts = Timeouts(1.0, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    tiers = tier("std", timeouts=timeouts)
    story = play(policy(pool("p", "r1", slots=1, hold=Hold(60.0, 2, 3500)), tiers)).arrives("a").sent("a")
    story.first_token("a").whatever()
    story.arrives("b").arrives("c").arrives("no-room").expect().fails("r1").whatever()
    assert story.replica("r1").state is ReplicaState.DOWN
    assert (story.pool("p").on_hold, story.pool("p").queued) == (2, 1)
    story.at(30.0).expect(refuse(Reason.QUEUE_TIMEOUT, "no-room"), ended(Outcome.TIMEOUT, "no-room"))
    story.finishes("a", AttemptOutcome.TRUNCATED).whatever()
    story.recovers("r1").expect(dispatch("r1", of="b"))
    story.sent("b").first_token("b").finishes("b").expect(commit("b"), ended(Outcome.OK, "b"), dispatch("r1", of="c"))
    story.sent("c").first_token("c").finishes("c").whatever()
    assert story.controller.holdings().is_empty


def test_found_replica_gets_requests_only_after_a_check_has_passed() -> None:
    story = empty().arrives("a").configured(found("r1")).expect()
    assert story.replica("r1").state is not ReplicaState.UP
    story.at(30.0).expect()
    story.recovers("r1").expect(dispatch("r1", of="a"))


def test_found_replica_that_fails_its_first_checks_comes_into_use_later() -> None:
    story = play(found("r1"), alive=False).fails("r1").after(20.0)
    assert story.replica("r1").state is ReplicaState.ABSENT
    story.recovers("r1").arrives("a").expect(dispatch("r1"))


def test_request_that_cannot_reach_the_only_replica_is_kept_until_it_is_back() -> None:
    story = play(rules("r1")).arrives("a").expect(dispatch("r1"))
    for _ in range(2):
        story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("r1"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect()
    assert story.replica("r1").state is ReplicaState.DOWN
    assert story.pool("p").on_hold == 1
    story.recovers("r1").expect(dispatch("r1"))
    story.sent("a").first_token("a").finishes("a").expect(commit(), ended(Outcome.OK))
    assert story.controller.holdings().is_empty


def test_request_that_can_reach_none_of_several_replicas_is_kept_until_one_is_back() -> None:
    names = "r1", "r2", "r3"
    story = play(rules(*names)).arrives("a")
    for _ in range(9):
        story.whatever().finishes("a", AttemptOutcome.UNREACHABLE)
    story.expect()
    assert {story.replica(name).state for name in names} == {ReplicaState.DOWN}
    assert story.pool("p").on_hold == 1
    story.recovers("r2").expect(dispatch("r2"))


def test_time_until_a_replica_can_be_reached_is_time_in_the_queue() -> None:
    story = play(rules("r1", "r2")).arrives("a").whatever()
    for _ in range(2):
        story.after(2.0).finishes("a", AttemptOutcome.CONNECT_TIMEOUT).whatever()
        assert story.controller.held(story.now) == {"p": (1, 0.0)}
    for _ in range(4):
        story.finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    assert story.pool("p").on_hold == 1
    assert story.controller.held(story.now) == {"p": (0, 0.0)}
    story.after(4.0).recovers("r1").expect(dispatch("r1"))
    story.after(3.0).sent("a").first_token("a").finishes("a").expect(
        commit(), ended(Outcome.OK, queue_s=8.0, e2e_s=11.0)
    )
    assert story.controller.holdings().is_empty


def test_time_at_a_replica_that_broke_off_is_not_time_in_the_queue() -> None:
    story = play(rules("r1", "r2")).arrives("a").whatever()
    story.sent("a").after(9.0).finishes("a", AttemptOutcome.RESET).expect(dispatch("r2"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    assert story.controller.held(story.now) == {"p": (1, 9.0)}
    story.sent("a").after(1.0).first_token("a").finishes("a").expect(
        commit(), ended(Outcome.OK, queue_s=0.0, e2e_s=10.0)
    )


def test_request_that_reached_no_replica_was_in_the_queue_to_its_end() -> None:
    story = play(rules("r1", hold=replace(HOLD, time_s=5.0))).arrives("a").whatever()
    for _ in range(3):
        story.finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    story.after(5.0).expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED, queue_s=5.0, e2e_s=5.0))


def test_request_that_was_cancelled_before_it_was_sent_was_in_the_queue() -> None:
    story = play(rules("r1")).arrives("a").whatever()
    story.after(2.0).fails("r1").expect(cancel()).cancelled("a").expect()
    assert story.controller.held(story.now) == {"p": (0, 0.0)}
    story.after(4.0).recovers("r1").expect(dispatch("r1"))
    story.after(1.0).served("a").expect(commit(), ended(Outcome.OK, queue_s=6.0, e2e_s=7.0))


def test_request_whose_client_left_before_it_was_sent_was_at_its_replica() -> None:
    story = play(rules("r1")).arrives("a").after(2.0).leaves("a").whatever()
    story.after(1.0).finishes("a", AttemptOutcome.UNREACHABLE).expect(ended(Outcome.ABANDONED, queue_s=0.0, e2e_s=2.0))


def test_requests_on_hold_of_a_removed_pool_go_to_another_pool_of_their_model() -> None:
    std = tier("std")
    story = play(policy(pool("p", hold=HOLD), pool("q"), std)).arrives("a").expect()
    story.configured(policy(pool("q", "r2"), std)).expect(dispatch("r2"))


def test_shutdown_ends_requests_on_hold() -> None:
    story = empty().arrives("a")
    commands = story.controller.shut(story.now)
    assert len(commands) == 2
    assert story.controller.holdings().is_empty


def test_request_that_was_on_hold_takes_back_no_turn_of_the_queue_when_its_replica_refuses_it() -> None:
    """It never took one. On a machine that is up for a day, the share that is left of such a turn was no number."""
    once = replace(rules("r1"), tiers={each.name: replace(each, retry=Retry(0.0)) for each in TIERS})
    without = replace(rules(), tiers=once.tiers)
    story = play(without).at(100_000.0).arrives("a").configured(once).expect(dispatch("r1", of="a"))
    story.sent("a").finishes("a", AttemptOutcome.REJECTED, status=400)
    story.expect(commit("a"), ended(Outcome.INVALID, of="a"))
    (found,) = story.controller.state.fleet
    assert found.queue.of_tier(once.tiers["std"]).turns.per_s(story.now) is None


def test_requests_on_hold_in_one_pool_get_each_slot_that_another_pool_of_their_model_frees() -> None:
    def both(*replicas: str) -> Policy:
        return policy(pool("p", hold=HOLD), pool("q", *replicas), tier("std"))

    story = play(both()).arrives("a").arrives("b").expect()
    story.configured(both("r1")).expect(dispatch("r1", of="a"))
    story.sent("a").first_token("a").finishes("a")
    story.expect(commit("a"), ended(Outcome.OK, "a"), dispatch("r1", of="b"))


def test_request_whose_replica_stays_away_lets_requests_for_other_models_pass() -> None:
    models = Model("x", ("p",)), Model("y", ("p",))
    story = play(policy(pool("p", "rx", "ry", hold=HOLD), tier("std"), models=models))
    story.observes("rx", Sample(models=("x",))).observes("ry", Sample(models=("y",))).fails("rx").fails("ry")
    story.arrives("a", model="x").arrives("b", model="y").arrives("c", model="x").expect()
    story.recovers("ry").expect(dispatch("ry", of="b"))
    story.recovers("rx").expect(dispatch("rx", of="a"))
    assert story.pool("p").on_hold == 1


def test_request_whose_home_stays_away_lets_requests_of_other_sessions_pass() -> None:
    def strict(*replicas: str) -> Policy:
        made = found(*replicas)
        return replace(made, pools={"p": replace(made.pools["p"], strict_sessions=True)})

    names = {home_of(name, ("r1", "r2")): name for name in map(str, range(9))}
    story = play(strict()).arrives("a", session=session(names["r1"])).arrives("b", session=session(names["r2"]))
    story.configured(strict("r1", "r2")).expect()
    story.recovers("r2").expect(dispatch("r2", of="b"))
    story.recovers("r1").expect(dispatch("r1", of="a"))


def test_request_that_has_run_for_longer_than_the_hold_fails_with_its_replica() -> None:
    story = play(rules("r1")).arrives("a", stream=False).expect(dispatch("r1"))
    story.sent("a").at(100.0).fails("r1").expect(cancel("a"))
    story.cancelled("a").expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR, queue_s=0.0))


def test_requests_that_left_while_on_hold_take_no_memory() -> None:
    story = empty().arrives("waits")
    (found,) = story.controller.state.fleet
    before = footprint(found.held)
    for number in range(1000):
        story.arrives(f"a{number}").leaves(f"a{number}")
    assert footprint(found.held) < 2 * before


def test_fallback_with_a_free_slot_serves_requests_on_hold_that_were_never_sent() -> None:
    tiers, models = tier("std", fallback="small"), (Model("m", ("large",)), Model("small", ("small",)))
    large = pool("large", "r1", slots=1, hold=HOLD)
    story = play(policy(large, pool("small", "s1", slots=1), tiers, models=models)).arrives("a").arrives("b")
    story.arrives("c").whatever().fails("r1").expect(dispatch("s1", of="b", model="small"), cancel("a"))
    story.cancelled("a").whatever()
    assert story.pool("large").on_hold == 2
    story.sent("b").first_token("b").finishes("b")
    story.expect(commit("b"), ended(Outcome.OK, "b", pool="small"), dispatch("s1", of="c", model="small"))
    story.sent("c").first_token("c").finishes("c").expect(commit("c"), ended(Outcome.OK, "c"))
    story.recovers("r1").expect(dispatch("r1", of="a"))


def test_request_that_was_queued_before_its_hold_teaches_the_forecasts_nothing() -> None:
    slo = Slo(ttft=(Objective(0.5, 1.0),))
    made = policy(pool("p", "r1", slots=1, hold=HOLD), tier("std", slo=slo))
    story = play(made).arrives("a").sent("a").first_token("a").arrives("b").fails("r1").whatever()
    story.finishes("a", AttemptOutcome.TRUNCATED).at(40.0).recovers("r1").whatever()
    story.sent("b").first_token("b").finishes("b").whatever()
    assert story.records["b"].waited
    assert story.records["b"].breach is None
