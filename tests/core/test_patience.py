"""Queued requests wait for the replica that has their prompt cached. Free replicas take the requests whose prompts they
have cached.
"""

from gateway.core.policy import AdmissionMode, AdmissionSpec
from gateway.core.queueing.tier_queue import LOOKED_AHEAD
from gateway.core.results import Outcome
from gateway.core.scheduling.explanation import PlacementExplanation

from .made import SHADOW, policy, pool, tier
from .playbook import Story, dispatch, ended, play
from .test_affinity import BLOCK_TOKENS, asks, prefix
from .test_explain import explained

ENFORCED = AdmissionSpec(AdmissionMode.ENFORCE)
TOKEN_S = 1e-4
TALK = (1, 2, 3, 4)
"""Blocks of the conversation that r1 has in its cache."""
SAVED_S = len(TALK) * BLOCK_TOKENS * TOKEN_S


def cold(mode: AdmissionSpec, **more: object) -> Story:
    """Two replicas of one slot; r1 has the conversation in its cache."""
    story = play(policy(pool("p", "r1", "r2", slots=1, **more), tier("std", admission=mode)))
    return remembers(story, "r1", *TALK)


def learned(mode: AdmissionSpec = ENFORCED, **more: object) -> Story:
    """The same, after the gateway learned that engines read a token in some 100 us."""
    story = cold(mode, **more)
    for number in range(40):
        name, first = f"lesson {number}", 10_000 + 1000 * number
        asks(story, name, *range(first, first + 1 + number % 12)).sent(name)
        (attempt,) = story.controller.state.attempts.values()
        story.after(attempt.prompt_tokens * TOKEN_S).first_token(name)
        story.after(0.05).finishes(name, output_tokens=5).whatever()
    token_s = story.controller.state.forecaster.prefill_s_per_token("p")
    assert token_s is not None
    assert TOKEN_S <= token_s < 2 * TOKEN_S
    return story


def remembers(story: Story, replica: str, *blocks: int) -> Story:
    """Put these blocks into the cache of a replica."""
    found = story.controller.state.fleet.replica(replica)
    assert found is not None
    found.cache.sent(prefix(*blocks))
    return story


def occupied(story: Story, *replicas: str) -> Story:
    """One request at each of these replicas, named after it. Their prompts are read already."""
    for number, replica in enumerate(replicas):
        remembers(story, replica, 70 + number, 71, 72)
        asks(story, replica, 70 + number, 71, 72).expect(dispatch(replica))
        story.sent(replica).first_token(replica).whatever()
    return story


def freed(story: Story, busy: str, takes: str) -> None:
    """The request `busy` ends, and `takes` gets its replica, which has the name of `busy`."""
    story.finishes(busy).expect(ended(Outcome.OK, of=busy), dispatch(busy, of=takes))


def test_a_request_waits_for_the_busy_replica_that_has_its_prompt() -> None:
    story = occupied(learned(), "r1")
    asks(story, "turn 2", *TALK, 5).expect()
    story.after(SAVED_S / 2).expect()
    freed(story, "r1", "turn 2")


def test_wait_for_a_cached_prompt_ends_when_reading_it_elsewhere_is_cheaper() -> None:
    story = occupied(learned(), "r1")
    asks(story, "turn 2", *TALK, 5).expect()
    story.after(2 * SAVED_S + 0.01).expect(dispatch("r2"))


def test_uncached_request_overtakes_one_that_waits_for_its_cached_replica() -> None:
    story = occupied(learned(), "r1")
    asks(story, "turn 2", *TALK, 5).expect()
    asks(story, "new", 7, 8, 9).expect(dispatch("r2", of="new"))
    freed(story, "r1", "turn 2")


def test_uncached_request_overtakes_any_number_that_wait_for_their_cached_replica() -> None:
    story = occupied(learned(), "r1")
    for turn in range(2 * LOOKED_AHEAD):
        asks(story, f"turn {turn}", *TALK, 100 + turn).expect()
    found = explained(story)
    assert isinstance(found, PlacementExplanation)
    assert (found.verdict, found.best.replica) == ("sent", "r2")
    asks(story, "new", 7, 8, 9).expect(dispatch("r2", of="new"))


def test_no_request_waits_for_its_cached_replica_before_the_prefill_speed_is_known() -> None:
    story = occupied(cold(ENFORCED), "r1")
    asks(story, "turn 2", *TALK, 5).expect(dispatch("r2"))


def test_no_request_of_a_tier_in_shadow_waits_for_its_cached_replica() -> None:
    story = occupied(learned(SHADOW), "r1")
    asks(story, "turn 2", *TALK, 5).expect(dispatch("r2"))


def test_no_request_waits_for_its_cached_replica_if_the_queue_is_full() -> None:
    story = occupied(learned(queue_limit=0), "r1")
    asks(story, "turn 2", *TALK, 5).expect(dispatch("r2"))


def test_no_request_waits_for_its_cached_replica_under_another_router() -> None:
    story = occupied_in_turn(learned(router="round-robin"))
    asks(story, "turn 2", *TALK, 5).expect(dispatch("r2"))


def occupied_in_turn(story: Story) -> Story:
    """Round robin: after a request at r1, the next one goes to r2."""
    name = "first"
    while not story.pool("p").replicas[0].in_flight:
        asks(story, name, 70, 71).sent(name).first_token(name)
        if not story.pool("p").replicas[0].in_flight:
            story.finishes(name)
        name += "."
    return story.whatever()


def test_free_replica_takes_a_cached_request_before_the_head_of_the_queue() -> None:
    story = occupied(learned(), "r1", "r2")
    asks(story, "head", 7, 8, 9, 10).expect()
    asks(story, "turn 2", *TALK, 5).expect()
    freed(story, "r1", "turn 2")
    freed(story, "r2", "head")


def test_uncached_prompts_are_served_in_order_whatever_their_length() -> None:
    story = occupied(learned(), "r1", "r2")
    asks(story, "long", *range(200, 220)).expect()
    asks(story, "short", 7).expect()
    freed(story, "r1", "long")


def test_head_of_the_queue_takes_any_replica_once_its_turn_is_due() -> None:
    story = occupied(learned(), "r1", "r2")
    asks(story, "head", 7, 8, 9, 10).expect()
    story.after(1.0)
    asks(story, "turn 2", *TALK, 5).expect()
    freed(story, "r1", "head")


def test_head_of_the_queue_is_served_first_without_affinity() -> None:
    story = play(policy(pool("p", "r1", slots=1, affinity=False), tier("std")))
    remembers(story, "r1", *TALK)
    asks(story, "r1", 70, 71).expect(dispatch("r1"))
    story.sent("r1").first_token("r1").whatever()
    asks(story, "head", 7, 8, 9, 10).expect()
    asks(story, "turn 2", *TALK, 5).expect()
    freed(story, "r1", "head")


def test_request_out_of_view_is_served_when_one_before_it_leaves() -> None:
    story = occupied(learned(), "r1", "r2")
    for number in range(LOOKED_AHEAD):
        asks(story, f"turn {number}", *TALK, 80 + number)
    asks(story, "new", 7, 8, 9).expect()
    story.finishes("r2").expect(ended(Outcome.OK, of="r2"))
    story.leaves("turn 0").expect(ended(Outcome.ABANDONED), dispatch("r2", of="new"))
