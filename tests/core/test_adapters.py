"""Requests for LoRA adapters go to a replica that has theirs loaded, else to one that can load it; else they wait."""

from __future__ import annotations

import pytest

from gateway.core.fleet.routing import ROUTERS
from gateway.core.policy import Model
from gateway.core.pool_spec import Timeouts
from gateway.core.queueing.tier_queue import LOOKED_AHEAD, MAX_TURN_S
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.core.sessions import StoredResponse

from .made import SHADOW, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse
from .test_explain import explained


def listing(*names: str, limit: int | None = 1) -> Sample:
    return Sample(adapters=names, max_adapters=limit)


def two(limit: int | None = 1, slots: int = 8, router: str = "least-prefill") -> Story:
    """Two replicas that list the adapters x, y and z, with `limit` of them in a batch."""
    story = play(policy(pool("p", "r1", "r2", slots=slots, router=router)))
    for replica in ("r1", "r2"):
        story.observes(replica, listing("x", "y", "z", limit=limit))
    return story


def test_a_request_goes_where_its_adapter_is_loaded_though_another_replica_is_idle() -> None:
    story = two().arrives("a", adapter="x").expect(dispatch("r1"))
    story.arrives("b", adapter="x").arrives("c", adapter="x").expect(dispatch("r1", of="b"), dispatch("r1", of="c"))


def test_adapter_loaded_nowhere_goes_to_a_replica_with_room_for_it() -> None:
    story = two().arrives("a", adapter="x").arrives("b", adapter="y")
    story.expect(dispatch("r1", of="a"), dispatch("r2", of="b"))


def test_adapter_waits_for_room_when_every_replica_is_full_of_adapters() -> None:
    story = two().arrives("a", adapter="x").arrives("b", adapter="y").whatever()
    story.arrives("c", adapter="z").expect()
    story.finishes("b").expect(commit(of="b"), ended(Outcome.OK, of="b"), dispatch("r2", of="c"))


def test_base_model_is_served_while_adapters_are_at_their_limit() -> None:
    story = two().arrives("a", adapter="x").arrives("b", adapter="y").whatever()
    story.arrives("base").expect(dispatch("r1"))


def test_adapters_share_a_replica_up_to_its_limit() -> None:
    story = two(limit=2).drains("r2").whatever()
    story.arrives("a", adapter="x").arrives("b", adapter="y").arrives("c", adapter="z")
    story.expect(dispatch("r1", of="a"), dispatch("r1", of="b"))


def test_no_adapter_waits_while_the_limit_of_adapters_is_unknown() -> None:
    story = two(limit=None).drains("r2").whatever()
    story.arrives("a", adapter="x").arrives("b", adapter="y").arrives("c", adapter="z")
    story.expect(dispatch("r1", of="a"), dispatch("r1", of="b"), dispatch("r1", of="c"))


def test_a_replica_that_does_not_list_the_adapter_never_gets_it() -> None:
    story = play(policy(pool("p", "r1", "r2", slots=8))).observes("r2", listing("x"))
    story.arrives("a", adapter="x").arrives("b", adapter="x").expect(dispatch("r2", of="a"), dispatch("r2", of="b"))


def test_an_adapter_that_other_gateways_use_at_a_busy_replica_counts_as_loaded_there() -> None:
    story = two(limit=4)
    story.observes("r2", Sample(waiting=0, running=3, active_adapters=("x",), max_adapters=4)).whatever()
    story.arrives("a", adapter="x").expect(dispatch("r2"))


def test_the_gauge_of_an_idle_engine_names_the_adapters_of_its_last_step_and_is_ignored() -> None:
    story = two(limit=4)
    story.observes("r2", Sample(waiting=0, running=0, active_adapters=("x",), max_adapters=4)).whatever()
    story.arrives("a", adapter="x").expect(dispatch("r1"))


def test_a_pool_whose_replicas_do_not_list_the_adapter_is_passed_over() -> None:
    made = policy(pool("p", "r1"), pool("q", "s1"), models=(Model("m", ("p", "q")),))
    play(made).observes("s1", listing("x")).whatever().arrives("a", adapter="x").expect(dispatch("s1"))


def test_an_adapter_that_was_unloaded_everywhere_is_refused() -> None:
    story = two().observes("r1", Sample(adapters=())).observes("r2", Sample(adapters=())).whatever()
    story.arrives("a", adapter="x").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))


def test_retry_and_every_kind_of_end_free_the_adapter_slot() -> None:
    story = two().arrives("a", adapter="x").finishes("a", AttemptOutcome.UNREACHABLE).whatever()
    story.leaves("a").cancelled("a").whatever()
    for replica in ("r1", "r2"):
        found = story.controller.state.fleet.replica(replica)
        assert found is not None
        assert found.adapters.in_use() == {}


def test_a_fallback_serves_its_own_model_and_not_the_adapter() -> None:
    made = policy(
        pool("large", "r1", queue_limit=0),
        pool("small", "s1"),
        tier("std", fallback="small"),
        models=(Model("m", ("large",)), Model("small", ("small",))),
    )
    story = play(made).observes("r1", listing("x")).arrives("a", adapter="x").whatever()
    story.arrives("b", adapter="x").expect(dispatch("s1", model="small"))


def full(router: str = "least-prefill") -> Story:
    """Every slot is taken: r1 has the adapter x and r2 has y, each beside one request of the base model."""
    story = (
        two(slots=2, router=router)
        .arrives("x", adapter="x")
        .arrives("y", adapter="y")
        .expect(dispatch("r1", of="x"), dispatch("r2", of="y"))
    )
    return story.arrives("base1").arrives("base2").expect(dispatch("r1", of="base1"), dispatch("r2", of="base2"))


@pytest.mark.parametrize("router", ROUTERS)
def test_queued_request_without_room_for_its_adapter_lets_others_overtake(router: str) -> None:
    story = full(router).arrives("z", adapter="z").arrives("behind").arrives("last").expect()
    story.finishes("base1").expect(commit(of="base1"), ended(Outcome.OK, of="base1"), dispatch("r1", of="behind"))
    story.finishes("y").expect(commit(of="y"), ended(Outcome.OK, of="y"), dispatch("r2", of="z"))


@pytest.mark.parametrize("router", ROUTERS)
def test_any_number_of_requests_for_full_adapters_let_another_overtake(router: str) -> None:
    story = full(router)
    for number in range(LOOKED_AHEAD + 2):
        story.arrives(f"z{number}", adapter="z")
    story.arrives("behind").expect()
    story.finishes("base1").expect(commit(of="base1"), ended(Outcome.OK, of="base1"), dispatch("r1", of="behind"))


@pytest.mark.parametrize("router", ROUTERS)
def test_new_request_overtakes_only_requests_whose_adapters_have_no_room(router: str) -> None:
    story = two(router=router).arrives("x", adapter="x").arrives("y", adapter="y").arrives("z", adapter="z").whatever()
    story.arrives("base").whatever()
    assert story.pool("p").in_flight == 3
    story.arrives("more z", adapter="z").expect()
    busy = full(router).arrives("z", adapter="z").arrives("first").expect()
    busy.finishes("base1").expect(commit(of="base1"), ended(Outcome.OK, of="base1"), dispatch("r1", of="first"))


@pytest.mark.parametrize("router", ROUTERS)
def test_due_adapter_displaces_one_that_keeps_getting_requests(router: str) -> None:
    story = two(router=router).arrives("x", adapter="x").arrives("y1", adapter="y").arrives("y2", adapter="y")
    story.arrives("z", adapter="z").whatever()
    story.after(0.5 * MAX_TURN_S).arrives("x2", adapter="x").expect(dispatch("r1"))
    story.finishes("x").whatever()
    # x has one request, y has two: x ends first, and its next request waits behind z.
    story.after(MAX_TURN_S).finishes("y1").whatever()
    story.arrives("x3", adapter="x").expect()
    story.finishes("x2").expect(commit(of="x2"), ended(Outcome.OK, of="x2"), dispatch("r1", of="z"))
    story.finishes("y2").expect(commit(of="y2"), ended(Outcome.OK, of="y2"), dispatch("r2", of="x3"))


def making_way() -> Story:
    """One replica, which runs a request for x and makes room for y. Another request for x waits behind that."""
    story = two().drains("r2").arrives("x1", adapter="x").arrives("y", adapter="y").arrives("base").whatever()
    story.after(2 * MAX_TURN_S).finishes("base").whatever()
    return story.arrives("x2", adapter="x").expect()


def test_adapter_that_made_room_is_served_again_when_the_awaiting_client_leaves() -> None:
    making_way().leaves("y").expect(ended(Outcome.ABANDONED), dispatch("r1", of="x2"))


def test_adapter_that_made_room_is_served_again_when_the_awaiting_request_times_out() -> None:
    brief = tier("brief", timeouts=Timeouts(3.0, 1e6, 1e6, 1e6))
    story = play(policy(pool("p", "r1", slots=8), tier("std"), brief)).observes("r1", listing("x", "y")).whatever()
    story.arrives("x1", adapter="x").arrives("y", adapter="y", tier="brief").arrives("base").whatever()
    story.after(2 * MAX_TURN_S).finishes("base").whatever().arrives("x2", adapter="x").expect()
    story.at(3.0).expect(refuse(Reason.QUEUE_TIMEOUT, of="y"), ended(Outcome.TIMEOUT, of="y"), dispatch("r1", of="x2"))


def test_adapter_that_made_room_is_served_again_when_the_awaiting_request_is_quarantined() -> None:
    """Its body broke two replicas of another pool, so nothing else happens in the pool where it waits."""
    models = Model("m", ("p",)), Model("n", ("q",))
    story = play(policy(pool("p", "r1", slots=8), pool("q", "q1", "q2"), models=models))
    story.observes("r1", listing("x", "y")).arrives("x1", adapter="x").arrives("y", adapter="y", body_hash=1)
    story.arrives("base").whatever().after(2 * MAX_TURN_S).finishes("base").whatever()
    story.arrives("x2", adapter="x").expect()
    story.arrives("poison", model="n").sent("poison").whatever()
    story.finishes("poison", AttemptOutcome.RESET, body_hash=1).whatever().sent("poison")
    story.finishes("poison", AttemptOutcome.RESET, body_hash=1).expect(
        refuse(Reason.QUARANTINED, of="y"),
        ended(Outcome.INVALID, of="y"),
        dispatch("r1", of="x2"),
        refuse(Reason.UPSTREAM_ERROR, of="poison"),
        ended(Outcome.ERROR, of="poison"),
    )


def test_adapter_that_made_room_is_served_again_when_the_awaiting_request_is_displaced() -> None:
    """The request that displaces it finds no room itself, but one of a `shadow` tier does."""
    tiers = tier("high"), tier("std", 1), tier("shadow", 2, admission=SHADOW)
    story = play(policy(pool("p", "r1", slots=8, queue_limit=1), *tiers)).observes("r1", listing("x", "y"))
    story.arrives("x1", adapter="x", tier="std").arrives("y", adapter="y", tier="std").arrives("base", tier="std")
    story.whatever().after(2 * MAX_TURN_S).finishes("base").whatever()
    story.arrives("x2", adapter="x", tier="shadow").expect()
    story.arrives("long", prompt=20_000, tier="std").expect(dispatch("r1"))
    story.arrives("urgent", tier="high").expect(
        refuse(Reason.EVICTED, of="y"), ended(Outcome.REFUSED, of="y"), dispatch("r1", of="x2")
    )


def test_room_is_still_made_while_another_request_waits_for_it() -> None:
    making_way().arrives("y2", adapter="y").leaves("y").expect(ended(Outcome.ABANDONED))


def test_room_is_no_longer_made_for_an_adapter_that_found_some_elsewhere() -> None:
    making_way().drains("r2", on=False).expect(dispatch("r2", of="y"), dispatch("r1", of="x2"))


AT_R1, AT_R2 = StoredResponse("r1", 10), StoredResponse("r2", 10)


@pytest.mark.parametrize("other", ["", "z"])
def test_adapter_due_at_a_home_displaces_another_adapter_at_that_home(other: str) -> None:
    """Room for the adapter elsewhere is of no use, whether there is some (`other` empty) or it could be made."""
    story = two().arrives("x1", adapter="x", stored=AT_R2).arrives("other", adapter=other, stored=AT_R1)
    story.arrives("y", adapter="y", stored=AT_R2).arrives("x2", adapter="x", stored=AT_R2).whatever()
    story.after(2 * MAX_TURN_S).finishes("x1").whatever()
    story.arrives("x3", adapter="x", stored=AT_R2).expect().arrives("more", adapter=other).expect(dispatch("r1"))
    story.finishes("x2").expect(commit(of="x2"), ended(Outcome.OK, of="x2"), dispatch("r2", of="y"))


def test_room_at_a_home_is_no_longer_made_when_only_requests_with_another_home_want_it() -> None:
    story = two().arrives("x1", adapter="x", stored=AT_R2).arrives("z", adapter="z", stored=AT_R1)
    story.arrives("y2", adapter="y", stored=AT_R2).arrives("base").whatever().after(2 * MAX_TURN_S)
    story.finishes("base").whatever().arrives("y1", adapter="y", stored=AT_R1).expect()
    story.arrives("x2", adapter="x", stored=AT_R2).expect()
    story.leaves("y2").expect(ended(Outcome.ABANDONED), dispatch("r2", of="x2"))


def test_snapshot_shows_the_adapters_of_each_replica_and_why_one_takes_no_more() -> None:
    story = two().arrives("x", adapter="x").observes("r2", Sample(running=1, active_adapters=("z", "y"))).whatever()
    assert [view.adapters for view in story.pool("p").replicas] == [("x",), ("y", "z")]
    story.observes("r2", Sample(running=0, active_adapters=())).arrives("y", adapter="y").whatever()
    found = explained(story, adapter="z")
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.best.replica) == ("waits", None)
    assert [(one.replica, one.why) for one in found.left_out] == [
        ("r1", "it has no room for the adapter z beside x"),
        ("r2", "it has no room for the adapter z beside y"),
    ]
    assert isinstance(found := explained(story, adapter="y"), PlacementExplanation)
    assert (found.verdict, found.best.replica) == ("sent", "r2")
    story.observes("r1", Sample(adapters=("x",)))
    assert isinstance(found := explained(story, adapter="z"), PlacementExplanation)
    assert found.left_out[0].why == "it does not list the adapter z"


def test_explain_says_that_a_replica_gets_no_more_of_an_adapter_that_makes_way() -> None:
    story = two().drains("r2").arrives("x", adapter="x").arrives("y", adapter="y").arrives("base").whatever()
    story.after(2 * MAX_TURN_S).finishes("base").whatever()
    found = explained(story, adapter="x")
    assert isinstance(found, PlacementExplanation)
    assert found.left_out[0].why == (
        "it gets no more requests for the adapter x, so that another adapter can be loaded"
    )
