"""Lost caches: evicted, emptied by a restart, or out of reach. A conversation then has its prompt read once more."""

import pytest

from gateway.core.policy import Policy
from gateway.core.results import AttemptOutcome, Outcome
from gateway.core.sample import Sample
from gateway.core.sessions import Session, key_of

from .made import policy, pool, tier
from .playbook import Story, dispatch, ended, play
from .test_affinity import BLOCK_TOKENS, BYTES_PER_TOKEN, prefix

NAMES = ("r1", "r2", "r3")
HELD = tuple(range(900, 920))
TALK = Session("talk", key_of("acme\0talk"))
SESSIONS = pytest.mark.parametrize("session", [None, TALK], ids=["by its prefix", "with a session key"])


def three() -> Policy:
    return policy(pool("p", *NAMES, slots=8), tier("std"))


def asks(story: Story, name: str, *blocks: int, session: Session | None = None) -> str:
    """The replica that gets a prompt of these blocks."""
    begins = prefix(*blocks)
    tokens = begins.size // BYTES_PER_TOKEN
    story.arrives(name, prefix=begins, prompt=tokens, prompt_bytes=begins.size, session=session)
    return story.controller.state.attempts[story.attempts[name][-1]].replica.spec.name


def cached(story: Story, name: str) -> int:
    """Blocks of an open request that the index holds for its replica."""
    return story.controller.state.attempts[story.attempts[name][-1]].predicted_tokens // BLOCK_TOKENS


def turn(story: Story, name: str, blocks: int, session: Session | None = None) -> tuple[str, int]:
    """A turn of the conversation, from its arrival to its end: its replica, and blocks of it that were cached there."""
    replica = asks(story, name, *range(blocks), session=session)
    found = cached(story, name)
    story.served(name, output_tokens=5).whatever()
    assert story.records[name].outcome is Outcome.OK
    return replica, found


def fill(story: Story, replica: str, fraction: float) -> None:
    """A scrape of `replica`, while one prompt of 20 blocks is held there, reports this fill of its KV cache."""
    held = asks(story, "held", *HELD)
    assert held == replica
    story.sent("held").first_token("held")
    story.observes(held, Sample(waiting=0, running=1, kv_fraction=fraction))
    story.finishes("held", output_tokens=5).whatever()


def others(story: Story, count: int) -> None:
    """The first replica serves this many other prompts of four blocks: all are cold, and the first replica wins
    ties."""
    for number in range(count):
        name = f"other {number}"
        assert asks(story, name, *range(1000 * number + 1000, 1000 * number + 1004)) == "r1"
        story.served(name, output_tokens=5).whatever()


@pytest.mark.parametrize(("fraction", "kept"), [(0.5, False), (0.1, True)])
def test_a_conversation_is_evicted_once_the_kv_cache_of_its_replica_is_full(fraction: float, kept: bool) -> None:
    """20 blocks fill half of a cache of 40, or a tenth of one of 200; twelve prompts of four blocks come between."""
    story = play(three(), 0.0)
    fill(story, "r1", fraction)
    turn(story, "turn 1", 3)
    others(story, 12)
    assert turn(story, "turn 2", 3)[1] == (3 if kept else 0)


def test_prefix_index_of_a_replica_holds_at_most_its_kv_cache_in_tokens() -> None:
    story = play(three(), 0.0)
    fill(story, "r1", 0.5)
    others(story, 40)
    replica = story.controller.state.fleet.replica("r1")
    assert replica is not None
    assert replica.kv.capacity_tokens == pytest.approx(2 * (20 * BLOCK_TOKENS + 100), rel=0.01)
    assert 30 <= len(replica.cache) <= 40


@SESSIONS
def test_each_conversation_misses_the_cache_once_after_an_engine_restart(session: Session | None) -> None:
    story = play(three(), 0.0)
    for name in NAMES:
        story.observes(name, Sample(waiting=0, running=0, cache_queries=90_000, cache_hits=50_000))
    home, _ = turn(story, "turn 1", 3, session)
    assert turn(story, "turn 2", 4, session) == (home, 3)
    story.observes(home, Sample(waiting=0, running=0, cache_queries=0, cache_hits=0)).whatever()
    found = [turn(story, f"turn {number}", number + 2, session) for number in range(3, 6)]
    assert [blocks for _, blocks in found] == [0, 5, 6]
    assert len({replica for replica, _ in found}) == 1


@SESSIONS
@pytest.mark.parametrize("how", ["dies", "is drained"])
def test_a_conversation_whose_replica_is_lost_misses_once_and_hits_at_its_new_one(
    how: str, session: Session | None
) -> None:
    story = play(three(), 0.0)
    home, _ = turn(story, "turn 1", 3, session)
    assert turn(story, "turn 2", 4, session) == (home, 3)
    if how == "dies":
        story.fails(home).whatever()
    else:
        story.drains(home).whatever()
    found = [turn(story, f"turn {number}", number + 2, session) for number in range(3, 6)]
    assert [blocks for _, blocks in found] == [0, 5, 6]
    assert {replica for replica, _ in found} < {*NAMES} - {home}, "one, and another one"


@SESSIONS
def test_a_turn_under_way_at_a_replica_that_dies_is_served_by_another_without_an_error(
    session: Session | None,
) -> None:
    story = play(three(), 0.0)
    home, _ = turn(story, "turn 1", 3, session)
    assert asks(story, "turn 2", 0, 1, 2, 3, session=session) == home
    story.sent("turn 2").fails(home).whatever()
    story.finishes("turn 2", AttemptOutcome.RESET)
    (moved,) = {attempt.replica.spec.name for attempt in story.controller.state.attempts.values()}
    assert moved != home
    story.expect(dispatch(moved)).sent("turn 2").first_token("turn 2").whatever()
    story.finishes("turn 2", output_tokens=5).expect(ended(Outcome.OK, replica=moved, attempts=2))
    assert turn(story, "turn 3", 5, session) == (moved, 4)


def test_recovered_replica_wins_no_conversation_by_its_lost_cache() -> None:
    story = play(three(), 0.0)
    home, _ = turn(story, "turn 1", 3)
    story.fails(home).whatever()
    moved, _ = turn(story, "turn 2", 4)
    for _ in range(2):
        story.after(10.0).recovers(home).whatever()
    assert turn(story, "turn 3", 5) == (moved, 4)
    story.drains(moved).whatever()
    assert turn(story, "turn 4", 6) == (home, 0)
