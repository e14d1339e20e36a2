"""A request that continues a stored response goes to its replica alone, and counts for all that is stored."""

from typing import Any

import pytest

from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.policy import AdmissionMode, AdmissionSpec, CountedTokens, Hedge, Limits, Model, Policy, Retry, Tier
from gateway.core.pool_spec import Timeouts
from gateway.core.request import Endpoint, Prefix
from gateway.core.results import AttemptOutcome, Outcome, Reason
from gateway.core.sample import Sample
from gateway.core.sessions import StoredResponse
from tests.interpreted import interpreted

from .made import policy, pool, tier
from .playbook import Story, dispatch, ended, play, refuse

NAMES = ("r1", "r2", "r3")


def three(of: Tier | None = None, slots: int = 8, **more: object) -> Policy:
    return policy(pool("p", *NAMES, slots=slots, **more), of or tier("std"))


def goes_on(story: Story, name: str, replica: str = "r2", tokens: int = 5000, **how: object) -> Story:
    """A request of 100 tokens arrives that continues a response of so many at `replica`."""
    return story.arrives(name, endpoint=Endpoint.RESPONSES, stored=StoredResponse(replica, tokens), **how)


@pytest.mark.parametrize("router", ["least-prefill", "least-requests", "round-robin"])
def test_a_response_is_continued_where_it_is_stored_whatever_the_router_prefers(router: str) -> None:
    story = play(three(router=router))
    for number in range(5):
        goes_on(story, f"turn {number}").expect(dispatch("r2"))


def test_continued_response_waits_for_its_replica_beside_idle_ones() -> None:
    story = play(three(slots=1))
    goes_on(story, "turn 1").expect(dispatch("r2"))
    goes_on(story, "turn 2").expect()
    story.arrives("other").expect(dispatch("r1"))
    story.sent("turn 1").first_token("turn 1").whatever()
    story.finishes("turn 1").expect(ended(Outcome.OK, of="turn 1"), dispatch("r2", of="turn 2"))


@pytest.mark.parametrize("prompt", [None, 100])
def test_continued_response_prompt_has_the_tokens_that_are_stored(prompt: int | None) -> None:
    story = goes_on(play(three()), "turn", prompt=prompt, prompt_bytes=400)
    (attempt,) = story.controller.state.attempts.values()
    assert 5000 < attempt.prompt_tokens < 5300
    assert attempt.replica.unprefilled_tokens == attempt.prompt_tokens


def test_stored_tokens_count_against_the_longest_prompt_of_a_pool() -> None:
    story = play(three(max_prompt_tokens=4000))
    goes_on(story, "short", tokens=3000).expect(dispatch("r2"))
    goes_on(story, "long", tokens=5000)
    detail = "the prompt has, with the responses before it, about 5100 tokens; the longest prompt this model serves is "
    story.expect(refuse(Reason.CONTEXT_LENGTH, detail=f"{detail}4000 tokens"), ended(Outcome.INVALID))


def test_stored_tokens_count_against_the_limit_of_tokens_per_minute() -> None:
    story = play(three(tier("std", limits=Limits(tokens_per_min=6000))))
    goes_on(story, "first", tokens=5000).expect(dispatch("r2"))
    goes_on(story, "second", tokens=5000).expect(refuse(Reason.LIMIT_TOKENS), ended(Outcome.QUOTA))


def test_stored_tokens_cached_at_their_replica_are_free_under_uncached_limits() -> None:
    begins = Prefix((1, 2, 3), (8000, 16000, 20000), 20400)
    for cached_at, why in (("r2", None), ("r1", Reason.LIMIT_TOKENS)):
        story = play(three(tier("std", limits=Limits(tokens_per_min=4000, count=CountedTokens.UNCACHED))))
        found = story.controller.state.fleet.replica(cached_at)
        assert found is not None
        found.cache.sent(begins)
        goes_on(story, "turn", prefix=begins)
        assert ("turn" in story.records) == (why is not None)


def test_continued_response_is_refused_by_name_while_its_replica_is_down_or_drained() -> None:
    story = play(three()).fails("r2").whatever()
    goes_on(story, "down")
    detail = (
        "the previous response is kept at replica r2, which is down. Try again later, or send the conversation whole."
    )
    story.expect(refuse(Reason.NO_REPLICAS, detail=detail), ended(Outcome.REFUSED))
    story.drains("r1").whatever()
    goes_on(story, "drained", replica="r1").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))


def test_continued_response_is_refused_when_its_replica_dies_while_it_waits() -> None:
    story = play(three(slots=1))
    goes_on(story, "turn 1").sent("turn 1").whatever()
    goes_on(story, "turn 2").expect()
    story.arrives("other").whatever()
    story.fails("r2").whatever()
    assert story.records["turn 2"].why is Reason.NO_REPLICAS
    assert "other" not in story.records


def test_a_response_of_a_replica_that_is_gone_from_the_policy_is_not_found() -> None:
    goes_on(play(three()), "turn", replica="r9").expect(refuse(Reason.RESPONSE_NOT_FOUND), ended(Outcome.INVALID))


def test_a_response_of_a_pool_that_the_tier_may_not_use_is_not_found() -> None:
    rules = policy(pool("p", "r1"), pool("q", "r2"), tier("std", pools=("p",)))
    goes_on(play(rules), "turn").expect(refuse(Reason.RESPONSE_NOT_FOUND), ended(Outcome.INVALID))


def test_continued_response_goes_to_the_pool_of_its_replica_before_the_first_pool() -> None:
    goes_on(play(policy(pool("p", "r1"), pool("q", "r2"))), "turn").expect(dispatch("r2"))


def test_continued_response_is_not_retried_at_another_replica() -> None:
    story = goes_on(play(three(tier("std", retry=Retry(1.0)))), "turn").sent("turn").whatever()
    story.finishes("turn", AttemptOutcome.RESET)
    assert story.records["turn"].attempts == 1
    assert story.records["turn"].outcome is Outcome.ERROR


def test_continued_response_is_not_hedged() -> None:
    story = play(three(tier("std", hedge=Hedge(quantile=0.5, budget=1.0, holdout=0.0))))
    for number in range(60):
        name = f"n{number}"
        story.arrives(name).sent(name).after(0.1).first_token(name).finishes(name).whatever()
    goes_on(story, "turn").sent("turn").whatever()
    story.after(50.0).expect()
    story.arrives("other").sent("other").whatever()
    assert story.after(50.0).commands, "without a stored response it would have been"


def test_continued_response_is_not_served_by_a_fallback_model() -> None:
    models = (Model("m", ("p",)), Model("small", ("q",)))
    rules = policy(pool("p", *NAMES), pool("q", "s1"), tier("std", fallback="small"), models=models)
    story = play(rules).fails("r2").whatever()
    goes_on(story, "turn").expect(refuse(Reason.NO_REPLICAS), ended(Outcome.REFUSED))
    for name in ("r1", "r3"):
        story.fails(name).whatever()
    story.arrives("other").expect(dispatch("s1"))


def test_continued_response_is_not_learned_for_bytes_per_token() -> None:
    story = play(three())
    before = story.controller.prompts.estimate("m", 400)
    goes_on(story, "turn", prompt=None).sent("turn").whatever()
    story.finishes("turn", prompt_tokens=5100, output_tokens=10).whatever()
    assert story.controller.prompts.estimate("m", 400) == before
    assert story.records["turn"].prompt_tokens == 5100, "and they are believed"
    story.arrives("other", prompt=None).sent("other").finishes("other", prompt_tokens=90, output_tokens=10).whatever()
    assert story.controller.prompts.estimate("m", 400) != before


def test_a_restart_is_counted_when_the_counters_of_an_engine_begin_anew() -> None:
    story = play(three())
    assert [story.controller.restarts(name) for name in ("r2", "r9")] == [0, -1]
    for queries in (5000, 9000, 12):
        sample = Sample(waiting=0, running=0, cache_queries=queries, cache_hits=0)
        story.observes("r2", sample).whatever()
    assert [story.controller.restarts(name) for name in NAMES] == [0, 1, 0]


@pytest.mark.parametrize("router", ["least-prefill", "least-requests", "round-robin"])
@pytest.mark.parametrize("mode", [AdmissionMode.ENFORCE, AdmissionMode.SHADOW])
@pytest.mark.parametrize("turns", [1, 12])
def test_continued_response_waiting_for_its_replica_leaves_other_replicas_to_others(
    router: str, mode: AdmissionMode, turns: int
) -> None:
    story = play(three(tier("std", admission=AdmissionSpec(mode)), slots=2, router=router))
    for number in range(2 + turns):
        goes_on(story, f"turn {number}").whatever()
    for number in range(6):
        story.arrives(f"other {number}").whatever()
    assert [story.replica(name).in_flight for name in NAMES] == [2, 2, 2]
    assert story.pool("p").queued == turns + 2
    before = story.replica("r1").in_flight
    name = next(f"other {n}" for n in range(6) if story.ids[f"other {n}"] in _at(story, "r1"))
    story.sent(name).first_token(name).finishes(name).whatever()
    assert story.replica("r1").in_flight == before, "and a slot that is freed is used at once"


def _at(story: Story, replica: str) -> set[int]:
    """Ids of the requests that have an attempt at `replica`."""
    attempts = story.controller.state.attempts.values()
    return {attempt.state.request.id for attempt in attempts if attempt.replica.spec.name == replica}


def test_continued_response_is_not_found_once_a_reload_removes_its_replica_while_it_waits() -> None:
    story = play(three(slots=1))
    goes_on(story, "turn 1").sent("turn 1").whatever()
    goes_on(story, "turn 2").expect()
    story.configured(policy(pool("p", "r1", "r3", slots=1), tier("std")))
    story.expect(refuse(Reason.RESPONSE_NOT_FOUND, of="turn 2"), ended(Outcome.INVALID, of="turn 2"))
    assert "turn 1" not in story.records, "its replica still answers what it was sent"


@pytest.mark.parametrize("router", ["least-prefill", "round-robin"])
def test_reload_that_swaps_its_replica_serves_requests_behind_a_continued_response(router: str) -> None:
    story = play(three(slots=1, router=router))
    goes_on(story, "turn 1").sent("turn 1").whatever()
    goes_on(story, "turn 2").expect()
    for number in range(3):
        story.arrives(f"other {number}").whatever()
    story.configured(policy(pool("p", "r1", "r3", "r4", slots=1, router=router), tier("std")))
    story.expect(
        dispatch("r4", of="other 2"),
        refuse(Reason.RESPONSE_NOT_FOUND, of="turn 2"),
        ended(Outcome.INVALID, of="turn 2"),
    )


def test_continued_response_is_sent_to_an_ejected_replica_though_all_others_are_full() -> None:
    story = play(three(slots=1))
    state, spec = story.controller.state, "r2"
    home = state.fleet.replica(spec)
    assert home is not None
    home.health.out = EjectionReason.SLOW_ITL
    home.pool.refresh(story.now)
    for number in range(2):
        story.arrives(f"other {number}").whatever()
    goes_on(story, "turn").expect(dispatch("r2"))


@interpreted
def test_queue_is_served_once_after_many_requests_timed_out_together() -> None:
    """Serving the queue reads all requests with busy homes. For 2000 timeouts, serving it each time took 2.7 s; serving
    it once took .06 s.
    """
    rules = policy(pool("p", "r1", "r2"), tier("std", timeouts=Timeouts(5.0, 1e6, 1e6, 1e6)))
    story = play(rules).arrives("running", stored=StoredResponse("r1", 10))
    for number in range(20):
        story.arrives(f"waiting {number}", stored=StoredResponse("r1", 10))
    scheduler: Any = story.whatever().controller.scheduler
    pump, served = scheduler.pump, []

    def counted(pool: Any) -> None:
        served.append(pool.spec.name)
        pump(pool)

    scheduler.pump = counted
    story.at(5.0).whatever()
    assert len(story.records) == 20
    assert served == ["p"]
