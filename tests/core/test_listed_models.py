"""A replica that has told its list of models gets requests for these alone. One whose list is unknown gets any."""

from __future__ import annotations

import pytest

from gateway.core.fleet.routing import ROUTERS
from gateway.core.policy import Hedge, Model, Retry, Tier
from gateway.core.pool_spec import Ejection, Health
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.core.sessions import Session, key_of

from .made import SHADOW, policy, pool, tier
from .playbook import Story, commit, dispatch, ended, play, refuse
from .test_explain import explained
from .test_hedge import warmed

ANY = (Model("*", ("p",), any_name=True),)


def lists(*names: str) -> Sample:
    return Sample(models=names)


def mixed(*parts: Tier, slots: int = 8, router: str = "least-prefill", **more: object) -> Story:
    """A pool behind a catch-all: r1 and r3 list the model a, r2 lists b."""
    spec = pool("p", "r1", "r2", "r3", slots=slots, router=router, **more)
    story = play(policy(spec, *parts, models=ANY))
    story.observes("r1", lists("a")).observes("r2", lists("b")).observes("r3", lists("a"))
    return story.whatever()


def asks(story: Story, request: str, model: str, **how: object) -> Story:
    return story.arrives(request, model="*", asked_model=model, **how)


@pytest.mark.parametrize("router", ROUTERS)
def test_requests_go_only_to_replicas_that_list_their_model(router: str) -> None:
    story = mixed(router=router)
    for number in range(6):
        asks(story, f"b{number}", "b").expect(dispatch("r2"))
        asks(story, f"a{number}", "a")
        assert story.commands.pop().replica != "r2"  # type: ignore[union-attr]


def test_replica_whose_list_is_unknown_takes_any_model() -> None:
    story = play(policy(pool("p", "r1", "r2"), models=ANY)).observes("r1", lists("a"))
    asks(story, "x", "c").expect(dispatch("r2"))


def test_replica_whose_new_list_has_a_wildcard_takes_any_model() -> None:
    story = mixed().observes("r2", lists())
    asks(story, "x", "c").expect(dispatch("r2"))


def test_model_that_no_replica_lists_is_not_found_and_the_listed_names_are_told() -> None:
    story = asks(mixed(), "x", "c")
    assert [command.detail for command in story.commands[:1]] == [  # type: ignore[union-attr]
        "The model `c` does not exist. Listed: `a`, `b`."
    ]
    story.expect(refuse(Reason.MODEL_NOT_FOUND), ended(Outcome.INVALID))


def test_model_of_the_policy_that_its_replicas_do_not_list_is_not_sent_to_them() -> None:
    story = play(policy(pool("p", "r1"))).observes("r1", lists("other"))
    story.arrives("x").expect(refuse(Reason.MODEL_NOT_FOUND), ended(Outcome.INVALID))


def test_model_of_the_policy_is_compared_by_its_name_upstream() -> None:
    story = play(policy(pool("p", "r1"), models=(Model("m", ("p",), upstream="org/m"),)))
    story.observes("r1", lists("org/m")).arrives("x").expect(dispatch("r1"))


def test_pool_whose_replicas_list_the_model_serves_it_though_an_earlier_pool_does_not() -> None:
    story = play(policy(pool("p", "r1"), pool("q", "r2"), models=(Model("m", ("p", "q")),)))
    story.observes("r1", lists("other")).observes("r2", lists("m"))
    story.arrives("x").expect(dispatch("r2"))


def test_requests_are_refused_at_once_while_all_replicas_with_their_model_are_down() -> None:
    story = mixed().fails("r2").whatever()
    asks(story, "b", "b").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
    asks(story, "a", "a").expect(dispatch("r1"))


def test_request_that_waits_for_its_model_is_overtaken_by_others() -> None:
    story = asks(mixed(slots=1), "b1", "b").expect(dispatch("r2"))
    asks(story, "b2", "b").expect()
    asks(story, "a1", "a").expect(dispatch("r1"))
    story.finishes("b1").expect(commit(of="b1"), ended(Outcome.OK, of="b1"), dispatch("r2", of="b2"))


def test_queued_requests_for_one_model_do_not_hold_up_a_free_replica_of_another() -> None:
    story = mixed(slots=1)
    for request, model in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("a3", "a")):
        asks(story, request, model).whatever()
    story.finishes("a2").expect(commit(of="a2"), ended(Outcome.OK, of="a2"), dispatch("r3", of="a3"))
    story.finishes("b1").expect(commit(of="b1"), ended(Outcome.OK, of="b1"), dispatch("r2", of="b2"))


def test_retry_goes_to_a_replica_that_lists_the_model() -> None:
    story = mixed(tier("std", retry=Retry(1.0)))
    asks(story, "a", "a").expect(dispatch("r1"))
    story.finishes("a", AttemptOutcome.UNREACHABLE).expect(dispatch("r3"))


def test_failed_request_is_not_retried_at_a_replica_with_another_model() -> None:
    story = mixed(tier("std", retry=Retry(1.0)))
    asks(story, "b", "b").expect(dispatch("r2"))
    story.finishes("b", AttemptOutcome.UNREACHABLE).expect(refuse(Reason.UPSTREAM_UNREACHABLE), ended(Outcome.ERROR))


def test_hedge_goes_to_a_replica_that_lists_the_model() -> None:
    spec = pool("p", "r1", "r2", "r3", slots=64)
    story = play(policy(spec, tier("std", hedge=Hedge(holdout=0.0, budget=1.0)), models=ANY))
    warmed(story, model="*", asked_model="a")
    story.observes("r1", lists("a")).observes("r2", lists("b")).observes("r3", lists("a"))
    asks(story, "late", "a").sent("late").expect(dispatch("r1"))
    story.after(1.1).expect(dispatch("r3"))


def test_ejected_replica_gets_no_probe_for_a_model_that_it_does_not_list() -> None:
    ejecting = Health(failures=3, open_s=5.0, slow_start_s=0.0, ejection=Ejection())
    story = mixed(health=ejecting)
    running = story.controller.state.fleet.pool("p")
    assert running is not None
    request = asks(story, "a", "a").controller.state.requests[story.ids["a"]].request
    running.probes.due.append(running.replicas["r2"])
    assert running.probe(request, story.now) is None


def test_session_has_its_home_among_the_replicas_with_its_model() -> None:
    story = mixed(strict_sessions=True, slots=64)
    for number in range(20):
        session = Session(str(number), key_of(str(number)))
        asks(story, f"s{number}", "b", session=session).expect(dispatch("r2"))


def test_queued_request_is_refused_once_no_replica_lists_its_model_any_more() -> None:
    story = asks(mixed(slots=1), "b1", "b").expect(dispatch("r2"))
    asks(story, "b2", "b").expect()
    story.observes("r2", lists("c")).expect(refuse(Reason.MODEL_NOT_FOUND), ended(Outcome.INVALID))


def test_replica_that_a_reload_removed_no_longer_lists_its_model() -> None:
    story = mixed()
    story.configured(policy(pool("p", "r1", "r3", slots=8), models=ANY)).whatever()
    asks(story, "b", "b").expect(refuse(Reason.MODEL_NOT_FOUND), ended(Outcome.INVALID))


def test_explanation_names_the_replicas_that_do_not_list_the_model() -> None:
    told = explained(mixed(), model="*", asked_model="b")
    assert isinstance(told, PlacementExplanation)
    assert {each.replica: each.why for each in told.left_out} == {
        "r1": "it does not list the model b",
        "r3": "it does not list the model b",
    }


def test_explanation_says_that_a_request_waits_for_the_replica_with_its_model() -> None:
    story = asks(mixed(slots=1), "b1", "b").whatever()
    told = explained(story, model="*", asked_model="b")
    assert isinstance(told, PlacementExplanation)
    assert (told.verdict, told.constraint) == ("waits", "model")


def test_shadow_tier_goes_beyond_learned_slots_only_where_its_model_is_listed() -> None:
    story = mixed(tier("std", admission=SHADOW), slots=2)
    for number in range(2):
        asks(story, f"b{number}", "b").expect(dispatch("r2"))
    asks(story, "b9", "b").expect()
