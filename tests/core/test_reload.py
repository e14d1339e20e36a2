"""A new policy while requests are under way."""

from dataclasses import replace
from typing import Any

from gateway.core.policy import Caps, Policy
from gateway.core.pool_spec import Health, ReplicaSpec, Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import ReplicaState

from .made import NEVER_TOO_LATE, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse

ONE = policy(pool("p", "r1"))


def patient(queue_s: float, **more: Any) -> Policy:
    timeouts = Timeouts(queue_s, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    return policy(pool("p", "r1"), tier("std", timeouts=timeouts, **more))


# ---- requests keep the policy they arrived under


def test_queued_requests_keep_their_deadlines_over_a_reload() -> None:
    story = play(patient(10.0)).arrives("running").arrives("old").configured(patient(2.0)).arrives("new").whatever()
    story.at(2.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="new"), ended(Outcome.TIMEOUT, of="new"))
    story.at(10.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="old"), ended(Outcome.TIMEOUT, of="old"))


def test_running_requests_keep_the_timeouts_of_their_pool() -> None:
    hasty = policy(pool("p", "r1", timeouts=Timeouts(1.0, 1.0, 1.0, 1.0)))
    story = play(ONE).arrives("a").configured(hasty).sent("a").expect(dispatch("r1"))
    story.at(60.0).expect()


def test_running_requests_are_judged_by_the_objectives_they_arrived_with() -> None:
    strict = policy(pool("p", "r1"), tier("std", slo=Slo(ttft=(Objective(0.99, 0.1),))))
    story = play(ONE).arrives("a").configured(strict).sent("a").at(5.0).first_token("a").finishes("a")
    assert story.records["a"].good
    story.arrives("b").sent("b").after(5.0).first_token("b").finishes("b")
    assert not story.records["b"].good


def test_queued_requests_keep_their_caps_over_a_reload() -> None:
    story = play(patient(10.0, caps=Caps(max_tokens_limit=50))).arrives("running").arrives("old").whatever()
    story.configured(patient(10.0, caps=Caps(max_tokens_limit=10)))
    story.finishes("running").expect(commit(), ended(Outcome.OK), dispatch("r1", of="old", max_tokens=50))


# ---- replicas


def test_replica_state_survives_a_reload() -> None:
    story = play(policy(pool("p", "r1", "r2"))).fails("r1").arrives("a").whatever()
    story.configured(policy(pool("p", "r2", "r1", slots=2)))
    assert story.replica("r1").state is ReplicaState.DOWN
    assert story.replica("r2").in_flight == 1
    story.arrives("b").expect(dispatch("r2"))
    story.arrives("c").expect()


def test_a_breaker_stays_open_as_long_as_the_new_policy_says() -> None:
    story = play(ONE).fails("r1").at(1.0)
    story.configured(policy(pool("p", "r1", health=Health(failures=3, open_s=2.0)))).expect_alarm(2.0)
    assert story.at(2.0).replica("r1").state is ReplicaState.PROBING


def test_replica_added_by_a_reload_serves_queued_requests() -> None:
    story = play(ONE).arrives("a").arrives("b").whatever()
    story.configured(policy(pool("p", "r1", "r2"))).expect(dispatch("r2", of="b"))


def test_slots_added_by_a_reload_go_to_the_most_urgent_first() -> None:
    tiers = (tier("premium", 0), tier("free", 1))
    story = play(policy(pool("p", "r1"), *tiers)).arrives("a").whatever()
    story.arrives("f1", tier="free").arrives("p1", tier="premium").arrives("p2", tier="premium").expect()
    story.configured(policy(pool("p", "r1", slots=3), *tiers)).expect(dispatch("r1", of="p1"), dispatch("r1", of="p2"))


def test_reload_changes_the_router() -> None:
    busy, idle = ("r1", "r2")
    story = play(policy(pool("p", busy, idle, slots=9))).arrives("a", prompt=9000).expect(dispatch(busy))
    story.arrives("b").expect(dispatch(idle))
    story.configured(policy(pool("p", busy, idle, slots=9, router="round-robin")))
    story.arrives("c").expect(dispatch(busy)).arrives("d").expect(dispatch(idle))
    story.configured(policy(pool("p", busy, idle, slots=9, router="round-robin", queue_limit=1)))
    story.arrives("e").expect(dispatch(busy)).arrives("f").expect(dispatch(idle)).arrives("g").whatever()
    story.configured(policy(pool("p", busy, idle, slots=9, router="round-robin", queue_limit=2)))
    story.arrives("h").expect(dispatch(idle))


def test_more_slots_after_a_reload_serve_queued_requests() -> None:
    story = play(ONE).arrives("a").arrives("b").arrives("c").whatever()
    story.configured(policy(pool("p", "r1", slots=3))).expect(dispatch("r1", of="b"), dispatch("r1", of="c"))


def test_fewer_slots_after_a_reload_end_no_running_request() -> None:
    story = play(policy(pool("p", "r1", slots=3))).arrives("a").arrives("b").arrives("c").whatever()
    story.configured(ONE).expect()
    story.arrives("d").finishes("a").expect(commit(of="a"), ended(Outcome.OK, of="a"))
    story.finishes("b").expect(commit(), ended(Outcome.OK))
    story.finishes("c").expect(commit(), ended(Outcome.OK), dispatch("r1", of="d"))


def test_removed_replica_gets_no_new_request_and_finishes_the_running_ones() -> None:
    story = play(policy(pool("p", "r1", "r2"))).arrives("a").arrives("b").arrives("c").whatever()
    story.configured(policy(pool("p", "r2"))).expect()
    story.sent("a").first_token("a").finishes("a").expect(commit(), ended(Outcome.OK, replica="r1"))
    story.arrives("d").expect()
    story.finishes("b").expect(commit(), ended(Outcome.OK), dispatch("r2", of="c"))
    assert story.pool("p").in_flight == 1


def test_end_of_a_request_at_a_removed_replica_leaves_room_of_others_unchanged() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=4))).arrives("a").expect(dispatch("r1"))
    story.configured(policy(pool("p", "r2", slots=4)))
    story.served("a")
    left = story.controller.state.fleet.pool("p")
    assert left is not None
    assert left.places == sum(replica.places for replica in left.replicas.values()) == 4


def test_request_failed_by_a_removed_replica_is_retried_at_a_remaining_one() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=2))).arrives("a").expect(dispatch("r1"))
    story.configured(policy(pool("p", "r2", slots=2)))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("r2"))


def test_a_replica_at_another_address_is_another_replica() -> None:
    elsewhere = (ReplicaSpec("r1", "http://elsewhere:8000"),)
    story = play(ONE).arrives("a").first_token("a").fails("r1").whatever()
    story.configured(policy(replace(pool("p"), replicas=elsewhere)))
    assert story.replica("r1").state is ReplicaState.UP
    story.arrives("b").expect(dispatch("r1"))
    story.finishes("a", AttemptOutcome.RESET).whatever()
    assert (story.replica("r1").failures, story.replica("r1").in_flight, story.pool("p").in_flight) == (0, 1, 1)


# ---- what is learned


def test_the_learned_speed_of_a_replica_counts_in_routing_after_its_address_changed() -> None:
    rules = policy(pool("p", "r1", "r2", slots=9, router="round-robin"))
    story = play(rules)
    for number in range(200):
        name = f"a{number}"
        story.arrives(name).sent(name).after(0.05).first_token(name)
        times = 2.0 if story.replica("r2").in_flight else 1.0
        story.after(times * 0.5).finishes(name, output_tokens=51)
    before = story.controller.state.fleet.replica("r2")
    assert before is not None
    assert before.slowness > 1.0
    moved = (ReplicaSpec("r1", "http://r1:8000"), ReplicaSpec("r2", "http://elsewhere:8000"))
    story.configured(policy(replace(rules.pools["p"], replicas=moved)))
    now = story.controller.state.fleet.replica("r2")
    assert now is not None
    assert now is not before
    assert now.slowness == before.slowness


def learned(story: Story) -> tuple[list[str], list[str]]:
    """The pools and replicas with learned facts."""
    found = story.controller.snapshot(story.now).forecast
    return [pool.pool for pool in found.pools], [name for name, _ in found.speeds]


def test_samples_of_removed_pools_and_replicas_are_forgotten() -> None:
    strict = tier("std", slo=Slo(ttft=(Objective(0.99, 1.0),)))
    story = play(policy(pool("p0", "r0"), strict)).arrives("a0").whatever()
    for number in range(1, 20):
        story.configured(policy(pool(f"p{number}", f"r{number}"), strict)).arrives(f"a{number}").whatever()
        assert learned(story) == ([f"p{number - 1}", f"p{number}"], [f"r{number - 1}", f"r{number}"])
        story.after(0.1).served(f"a{number - 1}").whatever()
        assert learned(story) == ([f"p{number}"], [f"r{number}"])
    story.served("a19").configured(policy(pool("p19", "r20"), strict)).whatever()
    assert learned(story) == (["p19"], [])


def test_pool_restored_before_its_last_answer_keeps_its_samples() -> None:
    story = play(policy(pool("p", "r1", slots=9))).arrives("a").arrives("b").whatever()
    story.configured(policy(pool("q", "r2"))).after(0.1).served("a").whatever()
    samples = {pool.pool: pool.samples for pool in story.controller.snapshot(story.now).forecast.pools}
    assert samples["p"] == 1
    story.configured(policy(pool("p", "r1", slots=9))).served("b").whatever()
    assert learned(story) == (["p"], ["r1"])


def test_label_of_a_removed_pool_is_dropped() -> None:
    strict = policy(pool("p", "r1"), tier("std", slo=Slo(e2e=(Objective(0.99, 1.0),))))
    story = play(strict).arrives("a").sent("a").first_token("a").whatever()
    story.configured(policy(pool("q", "q1"))).after(2.0).finishes("a").expect(ended(Outcome.OK))
    assert learned(story) == ([], [])


# ---- pools


def test_removed_pool_finishes_its_running_requests() -> None:
    story = play(policy(pool("p", "r1"), pool("q", "q1"))).arrives("a").sent("a").first_token("a").whatever()
    story.configured(policy(pool("q", "q1"))).expect()
    story.finishes("a").expect(ended(Outcome.OK, pool="p", replica="r1"))


def test_queued_requests_of_a_removed_pool_move_to_another_pool_of_their_model() -> None:
    story = play(policy(pool("p", "r1"), pool("q", "q1"))).arrives("a").arrives("b").arrives("c").whatever()
    story.configured(policy(pool("q", "q1"))).expect(dispatch("q1", of="b"))
    assert story.pool("q").queued == 1
    story.finishes("b").expect(commit(), ended(Outcome.OK, pool="q"), dispatch("q1", of="c"))


def test_requests_of_a_removed_pool_move_by_priority_and_arrival() -> None:
    tiers = (tier("free", 1), tier("premium", 0))
    story = play(policy(pool("p", "r1"), pool("q", "q1"), *tiers)).arrives("a").whatever()
    story.arrives("f1", tier="free").after(1).arrives("p1", tier="premium").arrives("p2", tier="premium").expect()
    story.configured(policy(pool("q", "q1"), *tiers)).expect(dispatch("q1", of="p1"))
    story.finishes("p1").expect(commit(), ended(Outcome.OK), dispatch("q1", of="p2"))
    story.finishes("p2").expect(commit(), ended(Outcome.OK), dispatch("q1", of="f1"))


def test_queued_requests_without_a_remaining_pool_are_refused() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").whatever()
    story.configured(policy(pool("q", "q1"))).expect(
        refuse(Reason.NO_REPLICAS, of="b"), ended(Outcome.REFUSED, of="b", why=Reason.NO_REPLICAS)
    )
    story.finishes("a").expect(commit(), ended(Outcome.OK))


def test_removed_pool_is_sent_no_further_requests() -> None:
    story = play(policy(pool("p", "r1", "r2"))).arrives("a").configured(policy(pool("q", "q1"))).whatever()
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


def test_learned_prompt_length_survives_a_reload() -> None:
    story = play(ONE).arrives("a", prompt=None, prompt_bytes=400).sent("a").finishes("a", prompt_tokens=300)
    before = story.controller.prompts.estimate("m", 400)
    story.configured(policy(pool("p", "r1")))
    assert story.controller.prompts.estimate("m", 400) == before


def test_snapshot_shows_the_reloaded_policy() -> None:
    story = play(ONE).configured(policy(pool("q", "q1"), generation=7))
    snapshot = story.controller.snapshot(0.0)
    assert (snapshot.generation, [p.name for p in snapshot.pools]) == (7, ["q"])
