"""Slots and the queue: requests are served, wait, are displaced, or are refused."""

from itertools import pairwise

import pytest

from gateway.core.fleet.concurrency_limit import START
from gateway.core.policy import AdmissionMode, AdmissionSpec
from gateway.core.pool_spec import Health, Timeouts
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.snapshot import CapacityBound

from .made import NEVER_TOO_LATE, SHADOW, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse

PREMIUM, STANDARD, FREE = tier("premium", 0), tier("standard", 1), tier("free", 2)
TIERS = (STANDARD, PREMIUM, FREE)


# ---- slots


def test_requests_spread_over_the_replicas_until_every_slot_is_taken_and_the_next_waits() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=2)))
    story.arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect(dispatch("r2"))
    story.arrives("c").expect(dispatch("r1"))
    story.arrives("d").expect(dispatch("r2"))
    story.arrives("e").expect()
    assert (story.pool("p").in_flight, story.pool("p").queued) == (4, 1)


def test_freed_slot_goes_to_the_waiting_request() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").expect(dispatch("r1", of="a"))
    story.sent("a").first_token("a").whatever()
    story.finishes("a").expect(ended(Outcome.OK), dispatch("r1", of="b"))


def test_slot_is_held_until_its_attempt_is_closed() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").leaves("a").whatever()
    assert story.pool("p").in_flight == 1
    story.cancelled("a").expect(ended(Outcome.ABANDONED), dispatch("r1", of="b"))
    assert story.pool("p").in_flight == 1


def test_failed_attempt_frees_its_slot() -> None:
    story = play(policy(pool("p", "r1"))).arrives("a").arrives("b").whatever()
    story.finishes("a", AttemptOutcome.FAILED).expect(
        refuse(Reason.UPSTREAM_ERROR), ended(Outcome.ERROR), dispatch("r1", of="b", max_tokens=100)
    )


def test_slots_missing_in_the_policy_begin_small_and_are_learned() -> None:
    story = play(policy(pool("p", "r1", slots=None)))
    for number in range(round(START)):
        story.arrives(f"a{number}").expect(dispatch("r1"))
    story.arrives("waits").expect()
    for number in range(round(START)):
        story.sent(f"a{number}").first_token(f"a{number}")
    story.whatever().after(1.5).observes("r1", Sample(waiting=0, running=32))
    story.expect(dispatch("r1", of="waits"))
    assert story.pool("p").slots == 2 * START + 1


def test_learned_slots_stay_while_the_engine_reads_no_prompts() -> None:
    story = play(policy(pool("p", "r1", slots=None)))
    for number in range(round(START) + 1):
        story.arrives(f"a{number}")
    for number in range(20):
        story.sent(f"a{number}").first_token(f"a{number}")
    story.after(1.5).observes("r1", Sample(waiting=12, running=20)).whatever()
    assert story.pool("p").slots == START
    story.after(1.0).observes("r1", Sample(waiting=12, running=20)).whatever()
    assert story.pool("p").slots == 20


def test_reserve_applies_to_learned_slots() -> None:
    story = play(policy(pool("p", "r1", slots=None, reserve=(("premium", 1.0),)), PREMIUM, FREE))
    story.arrives("a", tier="free").expect()
    story.arrives("b", tier="premium").expect(dispatch("r1"))


def test_request_goes_to_the_replica_with_the_fewest_unread_tokens() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=8)))
    story.arrives("long", prompt=5000).expect(dispatch("r1"))
    for name in ("a", "b", "c"):
        story.arrives(name, prompt=1000).expect(dispatch("r2"))
    story.sent("long").first_token("long").whatever()
    assert story.replica("r1").unprefilled_tokens == 0
    assert story.replica("r2").unprefilled_tokens == 3000
    story.arrives("d").expect(dispatch("r1"))


# ---- order


def test_queue_serves_the_most_urgent_tier_first_and_each_tier_in_order_of_arrival() -> None:
    story = play(policy(pool("p", "r1"), *TIERS)).arrives("running").whatever()
    arrivals = [("f1", "free"), ("s1", "standard"), ("p1", "premium"), ("f2", "free"), ("p2", "premium")]
    for name, tier_name in arrivals:
        story.arrives(name, tier=tier_name).expect()
    order = ["running", "p1", "p2", "s1", "f1", "f2"]
    for running, following in pairwise(order):
        story.finishes(running).expect(commit(), ended(Outcome.OK), dispatch("r1", of=following))


def test_tiers_of_one_priority_are_served_in_the_order_of_arrival() -> None:
    story = play(policy(pool("p", "r1"), tier("x"), tier("y"))).arrives("running").whatever()
    story.arrives("y1", tier="y").arrives("x1", tier="x").arrives("y2", tier="y").expect()
    story.finishes("running").expect(commit(), ended(Outcome.OK), dispatch("r1", of="y1"))
    story.finishes("y1").expect(commit(), ended(Outcome.OK), dispatch("r1", of="x1"))
    story.finishes("x1").expect(commit(), ended(Outcome.OK), dispatch("r1", of="y2"))


def test_new_request_does_not_overtake_waiting_requests_of_its_tier() -> None:
    rules = policy(pool("p", "r1", "r2"), STANDARD)
    story = play(rules).fails("r2").arrives("a").arrives("b").arrives("c").expect(dispatch("r1", of="a"))
    story.recovers("r2").expect(dispatch("r2", of="b"))
    story.arrives("d").expect()


# ---- a full queue


def test_request_is_shed_when_the_queue_is_full() -> None:
    story = play(policy(pool("p", "r1", queue_limit=2))).arrives("a").arrives("b").arrives("c").whatever()
    story.arrives("d").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED, why=Reason.QUEUE_FULL, replica=None))


def test_queue_is_bounded_in_bytes() -> None:
    story = play(policy(pool("p", "r1", queue_bytes=5000))).arrives("a").whatever()
    story.arrives("b", body_bytes=3000).expect()
    story.arrives("c", body_bytes=2001).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    story.arrives("d", body_bytes=2000).expect()
    assert story.pool("p").queued_bytes == 5000


def test_busy_pool_without_a_queue_sheds() -> None:
    story = play(policy(pool("p", "r1", queue_limit=0))).arrives("a").expect(dispatch("r1"))
    story.arrives("b").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_more_urgent_request_displaces_the_least_urgent_with_the_least_time_left() -> None:
    story = play(policy(pool("p", "r1", queue_limit=3), *TIERS)).arrives("running").whatever()
    story.arrives("f1", tier="free").arrives("f2", tier="free").arrives("s1", tier="standard").expect()
    story.arrives("p1", tier="premium").expect(refuse(Reason.EVICTED, of="f1"), ended(Outcome.REFUSED, of="f1"))
    story.arrives("s2", tier="standard").expect(refuse(Reason.EVICTED, of="f2"), ended(Outcome.REFUSED, of="f2"))
    story.arrives("s3", tier="standard").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    story.arrives("f3", tier="free").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    story.finishes("running").expect(commit(), ended(Outcome.OK), dispatch("r1", of="p1"))


def test_more_urgent_request_displaces_one_only_if_its_bytes_suffice() -> None:
    story = play(policy(pool("p", "r1", queue_bytes=3000), PREMIUM, FREE)).arrives("running").whatever()
    story.arrives("big", tier="free", body_bytes=2500).arrives("small", tier="free", body_bytes=500).expect()
    story.arrives("bigger", tier="premium", body_bytes=2600).expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    story.arrives("fits", tier="premium", body_bytes=2500).expect(
        refuse(Reason.EVICTED, of="big"), ended(Outcome.REFUSED, of="big")
    )
    assert story.pool("p").queued_bytes == 3000


@pytest.mark.parametrize("mode", [SHADOW, AdmissionSpec(AdmissionMode.OFF)])
def test_tier_without_enforced_admission_always_waits_and_displaces_no_more_urgent_one(
    mode: AdmissionSpec,
) -> None:
    rules = policy(pool("p", "r1", queue_limit=1, queue_bytes=2500), PREMIUM, tier("batch", 2, admission=mode))
    story = play(rules).arrives("running").whatever()
    story.arrives("s1", tier="batch").arrives("s2", tier="batch").arrives("s3", tier="batch").expect()
    assert story.pool("p").queued == 3
    story.arrives("p1", tier="premium").expect()
    story.arrives("p2", tier="premium").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))
    assert story.pool("p").queued == 4


def test_queue_full_of_an_unenforced_tier_refuses_a_less_urgent_tier() -> None:
    rules = policy(pool("p", "r1", queue_limit=1), tier("shadow", 0, admission=SHADOW), FREE)
    story = play(rules).arrives("running", tier="shadow").arrives("s1", tier="shadow").whatever()
    story.arrives("f1", tier="free").expect(refuse(Reason.QUEUE_FULL), ended(Outcome.REFUSED))


def test_tier_in_shadow_is_not_displaced_from_a_full_queue() -> None:
    rules = policy(pool("p", "r1", queue_limit=1), PREMIUM, FREE, tier("shadow", 2, admission=SHADOW))
    story = play(rules).arrives("running").whatever()
    story.arrives("f1", tier="free").arrives("s1", tier="shadow").expect()
    story.arrives("p1", tier="premium").expect(refuse(Reason.EVICTED, of="f1"), ended(Outcome.REFUSED, of="f1"))


# ---- when to come back


def backlogged(*chances: float):
    """A pool with one slot that has served two requests a second for a minute and has three waiting."""
    story = play(policy(pool("p", "r1", queue_limit=3), *TIERS), *chances)
    for number in range(4):
        story.arrives(f"a{number}")
    for number in range(120):
        story.after(0.5).finishes(f"a{number}").arrives(f"a{number + 4}")
    return story.whatever()


def test_shed_request_gets_retry_after_of_its_expected_turn() -> None:
    story = backlogged(0.5)
    assert story.pool("p").drain_rate == pytest.approx(2.0, rel=0.05)
    story.arrives("late")
    assert story.retry_after_s() == pytest.approx((3 + 1) / 2.0, rel=0.05)


def test_evicted_request_gets_retry_after() -> None:
    story = backlogged(0.5)
    story.arrives("urgent", tier="premium")
    assert story.retry_after_s() == pytest.approx((3 + 1) / 2.0, rel=0.05)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (0.5, 1.0), (0.999, 1.5)])
def test_retry_after_is_spread_at_random_between_half_and_one_and_a_half_times(chance: float, factor: float) -> None:
    story = backlogged(chance).arrives("late")
    assert story.retry_after_s() == pytest.approx(factor * 2.0, rel=0.06)


def test_retry_after_is_a_second_before_the_first_backlog() -> None:
    story = play(policy(pool("p", "r1", queue_limit=0)), 0.5).arrives("a").whatever().arrives("b")
    assert story.retry_after_s() == pytest.approx(1.0)


def test_retry_after_of_a_slow_pool_is_capped_near_a_minute() -> None:
    story = play(policy(pool("p", "r1", queue_limit=2)), 0.5).arrives("a").arrives("b").arrives("c")
    story.after(600).finishes("a").after(600).finishes("b").arrives("d").arrives("e").whatever()
    story.arrives("f")
    assert story.retry_after_s() == pytest.approx(60.0)


def test_slots_freed_at_one_moment_give_no_drain_rate() -> None:
    story = play(policy(pool("p", "r1", "r2", queue_limit=4)), 0.5)
    for name in ("a", "b", "c", "d", "e", "f"):
        story.arrives(name)
    story.after(10).finishes("a").finishes("b").whatever()
    story.arrives("g").arrives("h").whatever().arrives("i")
    assert story.retry_after_s() > 0.5


# ---- reserved slots


RESERVED = pool("p", "r1", slots=4, reserve=(("premium", 0.5),))


def test_reserved_slots_are_taken_by_their_tier_only() -> None:
    story = play(policy(RESERVED, *TIERS))
    story.arrives("f1", tier="free").arrives("f2", tier="free").whatever()
    story.arrives("f3", tier="free").expect()
    story.arrives("p1", tier="premium").expect(dispatch("r1"))
    story.arrives("p2", tier="premium").expect(dispatch("r1"))
    story.arrives("p3", tier="premium").expect()


def test_a_tier_may_take_more_slots_than_are_reserved_for_it() -> None:
    story = play(policy(RESERVED, *TIERS))
    for name in ("p1", "p2", "p3", "p4"):
        story.arrives(name, tier="premium").expect(dispatch("r1"))


def test_slots_held_by_a_tier_count_against_its_reserve() -> None:
    story = play(policy(RESERVED, *TIERS))
    story.arrives("p1", tier="premium").arrives("p2", tier="premium").whatever()
    story.arrives("f1", tier="free").expect(dispatch("r1"))
    story.arrives("f2", tier="free").expect(dispatch("r1"))


def test_waiting_head_of_one_priority_does_not_block_another_priority() -> None:
    story = play(policy(pool("p", "r1", slots=2, reserve=(("free", 0.5),)), *TIERS))
    story.arrives("p1", tier="premium").expect(dispatch("r1"))
    story.arrives("p2", tier="premium").expect()
    story.arrives("f1", tier="free").expect(dispatch("r1"))
    story.arrives("f2", tier="free").expect()
    story.finishes("f1").expect(commit(), ended(Outcome.OK), dispatch("r1", of="f2"))


def test_a_tier_that_has_to_wait_does_not_block_another_of_the_same_priority() -> None:
    story = play(policy(pool("p", "r1", slots=2, reserve=(("y", 0.5),)), tier("x"), tier("y")))
    story.arrives("x1", tier="x").expect(dispatch("r1"))
    story.arrives("x2", tier="x").expect()
    story.arrives("y1", tier="y").expect(dispatch("r1"))
    story.arrives("y2", tier="y").expect()
    story.finishes("y1").expect(commit(), ended(Outcome.OK), dispatch("r1", of="y2"))
    story.finishes("x1").expect(commit(), ended(Outcome.OK), dispatch("r1", of="x2"))


def test_a_reserve_is_a_share_of_the_slots_of_replicas_that_are_up() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=4, reserve=(("premium", 0.5),)), PREMIUM, FREE)).fails("r2")
    story.arrives("f1", tier="free").arrives("f2", tier="free").whatever()
    story.arrives("f3", tier="free").expect()


def test_requests_at_a_replica_that_is_down_do_not_use_up_the_reserve() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=2, reserve=(("premium", 0.5),)), PREMIUM, FREE))
    story.arrives("p1", tier="premium").expect(dispatch("r1"))
    story.first_token("p1").fails("r1").whatever()
    story.arrives("f1", tier="free").expect(dispatch("r2"))
    story.arrives("f2", tier="free").expect()
    story.arrives("p2", tier="premium").expect(dispatch("r2"))


def test_replica_with_a_half_open_breaker_counts_as_one_slot() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=2, reserve=(("premium", 0.5),)), PREMIUM, FREE))
    story.fails("r2").recovers("r2")
    assert story.pool("p").slots == 3
    story.arrives("f1", tier="free").expect(dispatch("r1"))
    story.arrives("f2", tier="free").expect(dispatch("r2"))
    story.arrives("f3", tier="free").expect()
    story.arrives("p1", tier="premium").expect(dispatch("r1"))


@pytest.mark.parametrize(("share", "slots", "reserved"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3), (0.5, 3, 1)])
def test_reserved_slots_of_a_tier_are_rounded_down(share: float, slots: int, reserved: int) -> None:
    story = play(policy(pool("p", "r1", slots=slots, reserve=(("premium", share),)), PREMIUM, FREE))
    for number in range(slots):
        story.arrives(f"f{number}", tier="free")
    assert story.pool("p").in_flight == slots - reserved


def test_waiting_behind_a_blocked_head_ends_when_the_head_leaves() -> None:
    timeouts = Timeouts(5.0, NEVER_TOO_LATE.ttft_s, NEVER_TOO_LATE.idle_s, NEVER_TOO_LATE.total_s)
    rules = policy(pool("p", "r1", slots=2, reserve=(("y", 0.5),)), tier("x", timeouts=timeouts), tier("y"))
    story = play(rules).arrives("x1", tier="x").arrives("x2", tier="x").arrives("y1", tier="y")
    story.expect(dispatch("r1", of="x1"), dispatch("r1", of="y1"))
    story.at(5.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="x2"), ended(Outcome.TIMEOUT, of="x2"))


@pytest.mark.parametrize("end", [AttemptOutcome.BUSY, AttemptOutcome.RESET])
def test_refusals_of_an_engine_do_not_raise_learned_slots(end: AttemptOutcome) -> None:
    rules = policy(pool("p", "r1", slots=None, queue_limit=9999, health=Health(failures=10**6)), tier("std"))
    story = play(rules)
    for number in range(300):
        story.arrives(f"{number}", prompt=1, stream=False)
    for _ in range(20):
        story.finishes(next(name for name in story.ids if _runs(story, name)), end).after(1.0)
        story.observes("r1", Sample(waiting=0, running=0)).whatever()
    assert story.pool("p").slots == START


def test_slots_are_learned_from_whole_answers_too() -> None:
    story = play(policy(pool("p", "r1", slots=None, queue_limit=9999), tier("std")))
    sent = 0
    for _ in range(4):  # an engine that reads at once, while all tiers want more than it is sent
        for _ in range(2 * story.pool("p").slots):
            story.arrives(f"{sent}", prompt=1, stream=False)
            sent += 1
        story.observes("r1", Sample(waiting=0, running=story.pool("p").in_flight)).after(1.0).whatever()
        for name in [name for name in story.ids if _runs(story, name)]:
            story.finishes(name, output_tokens=5).whatever()
    assert story.pool("p").slots > 2 * START


def _runs(story: Story, name: str) -> bool:
    state = story.controller.state.requests.get(story.ids[name])
    return state is not None and bool(state.open)


def test_snapshot_names_the_bound_that_a_replica_is_at() -> None:
    story = play(policy(pool("p", "r1", slots=2), tier("std")))
    story.observes("r1", Sample()).whatever()
    assert story.replica("r1").bound is None
    story.arrives("a", prompt=40_000).expect(dispatch("r1"))
    assert story.replica("r1").bound is CapacityBound.PROMPTS
    story.sent("a").first_token("a").whatever().arrives("b").expect(dispatch("r1"))
    assert story.replica("r1").bound is CapacityBound.SLOTS
