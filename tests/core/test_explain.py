"""What would become of a request now is what becomes of it, and asking changes nothing."""

import random
from typing import Any

import pytest

from gateway.core.admission.explanation import PlacementExplanation
from gateway.core.admission.placement import Unplaceable
from gateway.core.commands import Dispatch, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import AdmissionMode, AdmissionSpec
from gateway.core.request import Outcome, Reason
from tests.interpreted import interpreted

from .made import a_request, policy, pool, tier
from .oracle import ENFORCE, SLO, STRICT, story_of
from .playbook import Story, commit, dispatch, ended, play

pytestmark = interpreted


def explained(story: Story, **how: Any) -> PlacementExplanation | Unplaceable:
    """Of a request that arrived now."""
    return story.controller.explain(a_request(999, story.controller.policy, story.now, **how), story.now)


def test_the_best_replica_and_the_runner_up_are_named() -> None:
    story, _ = story_of(pool("p", "r1", "r2", "r3", slots=2), STRICT, draws=(0.0,))
    story.arrives("a", prompt=900).whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.runner_up is not None
    assert (found.verdict, found.best.replica, found.runner_up.replica) == ("sent", "r2", "r3")
    assert (found.prompt_tokens, found.max_tokens, found.ahead) == (100, 100, 0)


def test_the_best_replica_is_the_one_on_which_it_would_be_in_time() -> None:
    story, _ = story_of(pool("p", "r1", "r2", "r3", slots=2), STRICT, breach={"p": 0.9, "r3": 0.1}, draws=(0.0,))
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.runner_up is not None
    assert (found.verdict, found.best.replica, found.runner_up.replica) == ("sent", "r3", "r1")
    story.arrives("a").expect(dispatch("r3"))


def test_who_would_wait_is_told_behind_how_many() -> None:
    story, _ = story_of(pool("p", "r1"), STRICT)
    story.arrives("a").arrives("b").arrives("c").whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.best.replica, found.ahead, found.runner_up) == ("waits", None, 2, None)


@pytest.mark.parametrize(
    ("mode", "trusted", "breach", "verdict", "why"),
    [
        (AdmissionMode.ENFORCE, True, 0.4, "sent", "within the threshold"),
        (AdmissionMode.ENFORCE, True, 0.6, "refused", "above the threshold"),
        (AdmissionMode.ENFORCE, False, 0.6, "sent", "the forecast is cold"),
        (AdmissionMode.SHADOW, True, 0.6, "sent", "in shadow"),
        (AdmissionMode.OFF, True, 0.6, "sent", "is off"),
    ],
)
def test_the_verdict_is_that_of_the_controller(
    mode: AdmissionMode, trusted: bool, breach: float, verdict: str, why: str
) -> None:
    story, oracle = story_of(pool("p", "r1"), tier("std", slo=SLO, admission=AdmissionSpec(mode, 0.5, 0.0)))
    oracle.breach["p"], oracle.trusted = breach, trusted
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.threshold) == (verdict, 0.5)
    assert why in found.why
    (first, *_) = story.controller.arrive(a_request(1, story.controller.policy, 0.0), 0.0)
    assert isinstance(first, Dispatch if verdict == "sent" else Refuse)


@pytest.mark.parametrize(("asking", "verdict"), [("std", "refused"), ("high", "waits")])
def test_where_the_waiting_room_is_full_only_the_more_urgent_would_wait(asking: str, verdict: str) -> None:
    story = play(policy(pool("p", "r1", queue_limit=1), tier("high"), tier("std", 1)))
    story.arrives("a", tier="std").arrives("b", tier="std").expect(dispatch("r1", of="a"))
    found = explained(story, tier=asking)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, "queue is full" in found.why) == (verdict, verdict == "refused")
    first, *_ = story.controller.arrive(a_request(999, story.controller.policy, story.now, tier=asking), story.now)
    assert isinstance(first, Refuse)
    assert first.why is (Reason.QUEUE_FULL if verdict == "refused" else Reason.EVICTED)


def test_an_error_budget_that_is_not_measured_says_why() -> None:
    without, _ = story_of(pool("p", "r1"), tier("std"))
    story, _ = story_of(pool("p", "r1"), STRICT)

    def budget(of: Story) -> tuple[str, float | None]:
        found = explained(of)
        assert isinstance(found, PlacementExplanation)
        return found.budget, found.budget_left

    assert budget(without) == ("no objective", None)
    assert budget(story) == ("too few answers", None)
    for n in range(60):
        story.after(0.1).arrives(f"a{n}").served(f"a{n}").whatever()
    assert budget(story) == ("measured", 1.0)


def test_impossible_request_is_explained_as_unplaceable() -> None:
    story, _ = story_of(pool("p", "r1", max_prompt_tokens=50), STRICT)
    found = explained(story, prompt=100)
    assert isinstance(found, Unplaceable)
    assert "the longest prompt" in found.detail


@pytest.mark.parametrize("router", ["least-prefill", "round-robin"])
def test_asking_changes_nothing(router: str) -> None:
    rules = policy(pool("p", "r1", "r2", slots=2, router=router), tier("std", slo=SLO, admission=ENFORCE))
    answers = []
    for asks in (0, 5):
        controller = Controller(rules, random.Random(3))
        said = []
        for number in range(1, 12):
            for _ in range(asks):
                controller.explain(a_request(999, rules, number / 10), number / 10)
            said += controller.arrive(a_request(number, rules, number / 10), number / 10)
        answers.append((said, controller.snapshot(2.0)))
    assert answers[0] == answers[1]


def test_asking_makes_no_kind_of_answer() -> None:
    rules = policy(pool("p", "r1"), tier("std", slo=SLO), tier("low", 1, slo=SLO))
    controller = Controller(rules, random.Random(3))
    controller.arrive(a_request(1, rules, 0.0), 0.0)
    kinds = len(controller.forecaster.lengths)
    for prompt in (10, 1000, 100_000):
        assert isinstance(
            controller.explain(a_request(0, rules, 0.1, tier="low", prompt=prompt), 0.1), PlacementExplanation
        )
    assert len(controller.forecaster.lengths) == kinds


@pytest.mark.parametrize("asks", [0, 1])
def test_asking_for_a_tier_gives_it_no_band_with_the_floor_of_that_time(asks: int) -> None:
    """What it is given without waiting counts against its floor, as that is by then."""
    before, after = (policy(pool("p", "r1"), tier("high"), tier("low", 1, floor=floor)) for floor in (0.0, 0.5))
    story = play(before).arrives("a", tier="high").whatever()
    for _ in range(asks):
        story.controller.explain(a_request(0, before, story.now, tier="low"), story.now)
    story.configured(after).finishes("a").arrives("b", tier="low", prompt=10_000).finishes("b").whatever()
    story.arrives("c", tier="high").arrives("d", tier="low")
    story.arrives("e", tier="high").arrives("f", tier="high").finishes("c").whatever()
    story.finishes("e").expect(commit(), ended(Outcome.OK), dispatch("r1", of="f"))
