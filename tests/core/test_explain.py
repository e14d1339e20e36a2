"""`explain` tells the real outcome of a request, and changes nothing."""

import random
from typing import Any

import pytest

from gateway.core.commands import Dispatch, Refuse
from gateway.core.controller import Controller
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.policy import AdmissionMode, AdmissionSpec, Limits, Model
from gateway.core.results import Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.slo import Objective, Slo
from tests.interpreted import interpreted

from .made import a_request, policy, pool, tier
from .oracle import ENFORCE, SLO, STRICT, Oracle, story_of
from .playbook import Story, commit, dispatch, ended, play, refuse
from .test_sessions import NAMES, home_of, session

pytestmark = interpreted


def explained(story: Story, **how: Any) -> PlacementExplanation | Unplaceable:
    """The explanation of a request that arrives now."""
    return story.controller.explain(a_request(999, story.controller.policy, story.now, **how), story.now)


def test_explain_names_the_best_replica_and_the_runner_up() -> None:
    story, _ = story_of(pool("p", "r1", "r2", "r3", slots=2), STRICT, draws=(0.0, 0.5))
    story.arrives("a", prompt=900).whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.runner_up is not None
    assert (found.verdict, found.best.replica, found.runner_up.replica) == ("sent", "r3", "r2")
    assert (found.prompt_tokens, found.max_tokens, found.ahead, found.constraint) == (100, 100, 0, "")
    story.arrives("b").expect(dispatch("r3"))


def test_explain_names_the_replica_that_is_in_time_as_best() -> None:
    story, _ = story_of(pool("p", "r1", "r2", "r3", slots=2), STRICT, breach={"p": 0.9, "r3": 0.1}, draws=(0.0,))
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.runner_up is not None
    assert (found.verdict, found.best.replica, found.runner_up.replica) == ("sent", "r3", "r1")
    story.arrives("a").expect(dispatch("r3"))


def test_explanation_of_a_wait_counts_the_requests_ahead() -> None:
    story, _ = story_of(pool("p", "r1"), STRICT)
    story.arrives("a").arrives("b").arrives("c").whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.best.replica, found.ahead, found.runner_up) == ("waits", None, 2, None)


@pytest.mark.parametrize("router", ["least-prefill", "least-requests", "round-robin"])
def test_explain_sends_a_request_past_those_that_wait_for_a_busy_home(router: str) -> None:
    story = play(policy(pool("p", *NAMES, router=router, strict_sessions=True), tier("std")), 0.5)
    home = home_of("talk")
    story.arrives("turn 1", session=session("talk")).arrives("turn 2", session=session("talk")).expect(
        dispatch(home, of="turn 1")
    )
    found, bound = explained(story), explained(story, session=session("talk"))
    assert isinstance(found, PlacementExplanation)
    assert isinstance(bound, PlacementExplanation)
    assert (found.verdict, bound.verdict) == ("sent", "waits")
    assert "others of its tier wait for busy replicas of their own" in found.why
    assert found.best.replica is not None
    story.arrives("turn 3", session=session("talk")).expect()
    story.arrives("other").expect(dispatch(found.best.replica))


@pytest.mark.parametrize(
    ("mode", "trusted", "breach", "verdict", "why"),
    [
        (AdmissionMode.ENFORCE, True, 0.4, "sent", "within the threshold"),
        (AdmissionMode.ENFORCE, True, 0.6, "refused", "a probability of 0.60, above 0.50"),
        (AdmissionMode.ENFORCE, False, 0.6, "sent", "the forecast is cold"),
        (AdmissionMode.SHADOW, True, 0.6, "sent", "in shadow"),
        (AdmissionMode.OFF, True, 0.6, "sent", "no objective of its tier is enforced"),
    ],
)
def test_explain_gives_the_verdict_of_the_controller(
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


def test_explain_gives_no_reason_against_a_request_in_shadow_that_passes_the_queue() -> None:
    parts = pool("p", *NAMES, strict_sessions=True), tier("std", slo=SLO, admission=AdmissionSpec(AdmissionMode.SHADOW))
    story, _ = story_of(*parts, breach={"p": 0.9} | dict.fromkeys(NAMES, 0.1))
    story.arrives("turn 1", session=session("talk")).arrives("turn 2", session=session("talk")).whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.constraint, found.best.breach) == ("sent", "shadow", 0.1)
    assert "above" not in found.why


@pytest.mark.parametrize(("asking", "verdict"), [("std", "refused"), ("high", "waits")])
def test_explain_queues_only_more_urgent_requests_in_a_full_queue(asking: str, verdict: str) -> None:
    story = play(policy(pool("p", "r1", queue_limit=1), tier("high"), tier("std", 1)))
    story.arrives("a", tier="std").arrives("b", tier="std").expect(dispatch("r1", of="a"))
    found = explained(story, tier=asking)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, "queue is full" in found.why) == (verdict, verdict == "refused")
    first, *_ = story.controller.arrive(a_request(999, story.controller.policy, story.now, tier=asking), story.now)
    assert isinstance(first, Refuse)
    assert first.why is (Reason.QUEUE_FULL if verdict == "refused" else Reason.EVICTED)


def test_explain_names_the_percentile_that_a_refused_request_would_break() -> None:
    slo = Slo(ttft=(Objective(0.9, 0.5), Objective(0.99, 5.0)))
    story, _ = story_of(pool("p", "r1"), tier("std", slo=slo, admission=ENFORCE))
    story.arrives("a").arrives("b").expect(dispatch("r1", of="a")).at(0.9)
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.constraint) == ("refused", "TTFT p90")
    assert "so that the p90 stays within 0.5 s" in found.why
    story.arrives("c").expect(refuse(Reason.PREDICTED, detail=found.why), ended(Outcome.REFUSED))


def test_explain_of_a_used_up_limit_refuses_only_its_tenant() -> None:
    story = play(policy(pool("p", "r1", slots=9), tier("std", limits=Limits(requests_per_min=1.0)))).arrives("a")
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.constraint) == ("refused", "limit-requests")
    assert "there is room in 60 s" in found.why
    other = explained(story, tenant="globex")
    assert isinstance(other, PlacementExplanation)
    assert other.verdict == "sent"
    assert [tenant.tenant for tenant in story.controller.snapshot(0.0).tenants] == ["acme"]


def test_explain_of_a_wait_names_the_bound_of_the_replicas_with_its_values() -> None:
    slots = play(policy(pool("p", "r1"), STRICT)).arrives("a")
    cache = play(policy(pool("p", "r1", slots=9), STRICT)).arrives("a", max_tokens=50)
    cache.observes("r1", Sample(waiting=0, running=1, kv_fraction=0.9))
    steps = play(policy(pool("p", "r1", slots=9), STRICT)).arrives("a")
    budget = steps.controller.state.fleet.replica("r1").budget  # type: ignore[union-attr]
    budget.prices, budget.limit_s = StepPrices(0.02, 0.001, 0.0, 0.0), 0.021
    steps.sent("a").progress("a", 1)
    for story, bound, values in (
        (slots, "slots", "1 of 1 are in use"),
        (cache, "KV cache", "100 tokens held, 50 expected, of 111"),
        (steps, "TPOT", "a step takes 21 ms, with one more it would exceed 21 ms"),
    ):
        found = explained(story)
        assert isinstance(found, PlacementExplanation)
        assert (found.verdict, found.constraint) == ("waits", bound), found
        (closed,) = found.left_out
        assert values in closed.why
        story.whatever().arrives("b").expect()


def test_explain_says_how_a_replica_that_failed_comes_back() -> None:
    story = play(policy(pool("p", "r1", "r2"), STRICT)).fails("r1").recovers("r1")
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    told = [(one.replica, one.state, one.why) for one in found.left_out]
    assert told == [("r1", "probing", "3 x health check failed, last 0 s ago; it gets one request at a time")]


def test_explain_does_not_refuse_a_request_that_the_fallback_serves() -> None:
    models = Model("m", ("p",)), Model("small", ("q",))
    std = tier("std", slo=SLO, admission=ENFORCE, fallback="small")
    story = play(policy(pool("p", "r1"), pool("q", "s1"), std, models=models), 0.5)
    oracle = Oracle(story, p=0.9, q=0.0)
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.pool, found.best.replica) == ("sent", "q", "s1")
    assert found.why.startswith("its fallback small serves it")
    oracle.breach["q"] = 0.9
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.pool) == ("refused", "p")
    story.fails("r1")
    assert isinstance(explained(story), Unplaceable)
    oracle.breach["q"] = 0.0
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.verdict == "sent"


def test_explain_names_the_rule_that_admits_a_doubtful_request() -> None:
    def one(mode: AdmissionMode, exploration: float) -> PlacementExplanation:
        asked = tier("std", slo=SLO, admission=AdmissionSpec(mode, 0.5, exploration))
        story, _ = story_of(pool("p", "r1"), asked, breach={"p": 0.9})
        found = explained(story)
        assert isinstance(found, PlacementExplanation)
        return found

    assert one(AdmissionMode.SHADOW, 0.0).constraint == "shadow"
    assert one(AdmissionMode.ENFORCE, 0.01).constraint == "exploration"
    assert one(AdmissionMode.ENFORCE, 0.0).constraint == "TTFT p99"


def test_impossible_request_is_explained_as_unplaceable() -> None:
    story, _ = story_of(pool("p", "r1", max_prompt_tokens=50), STRICT)
    found = explained(story, prompt=100)
    assert isinstance(found, Unplaceable)
    assert "the longest prompt" in found.detail


@pytest.mark.parametrize("router", ["least-prefill", "round-robin"])
def test_explain_changes_no_state(router: str) -> None:
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


def test_explain_does_not_release_a_percentile_that_no_replica_can_keep() -> None:
    slo = Slo(ttft=(Objective(0.5, 0.3), Objective(0.99, 5.0)))
    story, _ = story_of(pool("p", "r1", slots=9), tier("std", slo=slo, admission=ENFORCE))
    forecaster: Any = story.controller.forecaster
    forecaster.has_costs = lambda pool: True
    forecaster.is_late = lambda request, forecast, bound_s: 1.0
    forecaster.alone_s = lambda offer: offer.prompt_tokens / 1000
    forecaster.is_late_alone = lambda pool, alone_s, bound_s: 0.6 if alone_s > bound_s else 0.0
    story.arrives("a").expect(refuse(Reason.PREDICTED), ended(Outcome.REFUSED))
    for _ in range(50):
        found = explained(story, prompt=400)
        assert isinstance(found, PlacementExplanation)
        assert (found.verdict, found.constraint) == ("refused", "TTFT p50")


def test_explain_creates_no_output_length_bucket() -> None:
    rules = policy(pool("p", "r1"), tier("std", slo=SLO), tier("low", 1, slo=SLO))
    controller = Controller(rules, random.Random(3))
    controller.arrive(a_request(1, rules, 0.0), 0.0)
    kinds = len(controller.forecaster.lengths)
    for prompt in (10, 1000, 100_000):
        assert isinstance(
            controller.explain(a_request(0, rules, 0.1, tier="low", prompt=prompt), 0.1), PlacementExplanation
        )
    assert len(controller.forecaster.lengths) == kinds


def test_explain_creates_no_learned_facts_of_a_pool() -> None:
    rules = policy(pool("p", "r1"), tier("std", slo=SLO))
    controller = Controller(rules, random.Random(3))
    assert isinstance(controller.explain(a_request(1, rules, 0.0), 0.0), PlacementExplanation)
    assert not controller.snapshot(0.0).forecast.pools


@pytest.mark.parametrize("asks", [0, 1])
def test_explain_creates_no_floor_budget_for_a_tier_without_a_floor(asks: int) -> None:
    """Tokens that are dispatched without waiting count against the tier's floor."""
    before, after = (policy(pool("p", "r1"), tier("high"), tier("low", 1, floor=floor)) for floor in (0.0, 0.5))
    story = play(before).arrives("a", tier="high").whatever()
    for _ in range(asks):
        story.controller.explain(a_request(0, before, story.now, tier="low"), story.now)
    story.configured(after).finishes("a").arrives("b", tier="low", prompt=10_000).finishes("b").whatever()
    story.arrives("c", tier="high").arrives("d", tier="low")
    story.arrives("e", tier="high").arrives("f", tier="high").finishes("c").whatever()
    story.finishes("e").expect(commit(), ended(Outcome.OK), dispatch("r1", of="f"))


def test_explain_says_how_fast_a_tier_was_lately_sent_from_its_queue() -> None:
    story = play(policy(pool("p", "r1", slots=1, queue_limit=30), tier("std")))
    for number in range(21):
        story.arrives(f"a{number}").whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.own_rate is None
    for number in range(10):
        story.after(0.5).finishes(f"a{number}").whatever()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert found.own_rate == pytest.approx(2.0, rel=0.1)


def test_refusal_by_a_percentile_is_not_blamed_on_a_forecast_that_is_not_trusted() -> None:
    slo = Slo(ttft=(Objective(0.9, 0.5), Objective(0.99, 5.0)))
    story, oracle = story_of(pool("p", "r1"), tier("std", slo=slo, admission=ENFORCE), breach={"p": 0.99})
    oracle.trusted = False
    story.arrives("a").arrives("b").expect(dispatch("r1", of="a")).at(0.9)
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.constraint) == ("refused", "TTFT p90")
    assert "later than 0.5 s with a probability of more than 0.99. With it, 0.33 of the" in found.why
    assert "at most 0.09 may be, so that the p90 stays within 0.5 s." in found.why
