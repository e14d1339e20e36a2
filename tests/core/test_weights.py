"""Tiers of one priority are served by latest start. While requests of that priority are shed, they are served by
weight.
"""

from __future__ import annotations

from gateway.core.queueing.limits import TenantUse
from gateway.core.queueing.queue import AT_STAKE_S, PoolQueue
from gateway.core.request_state import RequestState
from gateway.core.results import Outcome, Reason

from .made import SHADOW, a_request, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse

HEAVY, LIGHT, LOW = tier("heavy", weight=4.0), tier("light"), tier("low", 1, weight=100.0)
RULES = policy(pool("p", "r1", queue_limit=3), HEAVY, LIGHT, LOW)


def busy() -> Story:
    """One request runs; the queue is empty."""
    return play(RULES).at(0.0).arrives("running", tier="light").expect(dispatch("r1"))


def full() -> Story:
    """One request runs, and three of the light tier fill the queue."""
    story = busy()
    for name in ("a", "b", "c"):
        story.after(0.1).arrives(name, tier="light")
    return story


def test_tiers_of_one_priority_are_served_by_latest_start_while_none_is_lost() -> None:
    story = busy().arrives("light", tier="light").after(0.1).arrives("heavy", tier="heavy")
    story.served("running").expect(commit("running"), ended(Outcome.OK, "running"), dispatch("r1", "light"))


def test_the_heavier_tier_goes_first_while_requests_of_its_priority_are_lost() -> None:
    story = full()
    story.arrives("lost", tier="light").expect(
        refuse(Reason.QUEUE_FULL, "lost"), ended(Outcome.REFUSED, "lost", why=Reason.QUEUE_FULL)
    )
    story.leaves("c").whatever().arrives("heavy", tier="heavy").served("running")
    story.expect(commit("running"), ended(Outcome.OK, "running"), dispatch("r1", "heavy"))


def test_latest_start_decides_again_some_seconds_after_the_last_loss() -> None:
    story = full()
    story.arrives("lost", tier="light").leaves("c").whatever()
    story.after(AT_STAKE_S).arrives("heavy", tier="heavy").served("running")
    story.expect(commit("running"), ended(Outcome.OK, "running"), dispatch("r1", "a"))


def test_loss_in_another_priority_does_not_change_the_order() -> None:
    story = full()
    story.arrives("lost", tier="low").expect(
        refuse(Reason.QUEUE_FULL, "lost"), ended(Outcome.REFUSED, "lost", why=Reason.QUEUE_FULL)
    )
    story.leaves("c").whatever().arrives("heavy", tier="heavy").served("running")
    story.expect(commit("running"), ended(Outcome.OK, "running"), dispatch("r1", "a"))


def test_a_heavier_newcomer_takes_the_place_of_a_lighter_request_in_a_full_queue() -> None:
    story = full()
    story.arrives("heavy", tier="heavy").expect(
        refuse(Reason.EVICTED, "a"), ended(Outcome.REFUSED, "a", why=Reason.EVICTED)
    )
    story.served("running").expect(commit("running"), ended(Outcome.OK, "running"), dispatch("r1", "heavy"))


def test_a_lighter_newcomer_takes_no_place_from_a_heavier_request() -> None:
    story = busy()
    for name in ("a", "b", "c"):
        story.arrives(name, tier="heavy")
    story.arrives("light", tier="light").expect(
        refuse(Reason.QUEUE_FULL, "light"), ended(Outcome.REFUSED, "light", why=Reason.QUEUE_FULL)
    )


def test_priority_decides_before_weight_in_a_full_queue() -> None:
    story = busy()
    for name in ("a", "b"):
        story.after(0.1).arrives(name, tier="light")
    story.arrives("low", tier="low")
    story.arrives("heavy", tier="heavy").expect(
        refuse(Reason.EVICTED, "low"), ended(Outcome.REFUSED, "low", why=Reason.EVICTED)
    )


def test_heavier_tiers_count_as_more_urgent_while_requests_of_their_priority_are_lost() -> None:
    queue = PoolQueue()
    for number, of in enumerate((HEAVY, HEAVY, LIGHT, LOW)):
        state = RequestState(a_request(number + 1, RULES, 0.0, tier=of.name))
        state.use = TenantUse("acme", of.name)
        queue.push(state, 0.0)
    queue.of_tier(HEAVY).admitted(0.0)
    assert queue.above(LIGHT, 0.0) == (0, 0.0)
    assert queue.ahead_of(HEAVY, 0.0) == 3
    queue.lost(LIGHT, 0.0)
    count, per_s = queue.above(LIGHT, 0.0)
    assert (count, per_s > 0.0) == (2, True)
    assert queue.above(HEAVY, 0.0) == (0, 0.0)
    assert queue.ahead_of(HEAVY, 0.0) == 2
    assert queue.ahead_of(LIGHT, 0.0) == 3
    assert queue.above(LIGHT, AT_STAKE_S) == (0, 0.0)


def test_lighter_requests_in_shadow_take_no_room_from_heavier_ones() -> None:
    shadow = tier("shadow", admission=SHADOW)
    rules = policy(pool("p", "r1", queue_limit=1), HEAVY, shadow)
    story = play(rules).at(0.0).arrives("running", tier="heavy").expect(dispatch("r1"))
    story.arrives("a", tier="shadow").arrives("b", tier="shadow").arrives("heavy", tier="heavy").expect()


def test_retry_after_is_longer_while_requests_of_the_priority_are_lost() -> None:
    story = busy()
    for name in ("a", "b", "c"):
        story.arrives(name, tier="light")
    story.arrives("first", tier="light")
    assert story.retry_after_s() < 0.5 * AT_STAKE_S
    story.whatever().arrives("second", tier="light")
    assert story.retry_after_s() >= 0.5 * AT_STAKE_S
    story.whatever().after(AT_STAKE_S).arrives("third", tier="light")
    assert story.retry_after_s() < 0.5 * AT_STAKE_S
