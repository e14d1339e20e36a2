"""Prompts go to the replica that caches their beginning, unless its load costs more than the cache saves."""

import base64

from gateway.core.policy import Policy
from gateway.core.request import Prefix
from gateway.core.sample import Sample
from gateway.core.snapshot import CapacityBound
from gateway.wire.body.placeholders import Placeholders
from gateway.wire.prefix import prefix_of

from .made import policy, pool, tier
from .playbook import Story, dispatch, play

BYTES_PER_TOKEN = 4
BLOCK_TOKENS = 500


def prefix(*blocks: int) -> Prefix:
    """Blocks of 500 tokens, followed by 100 tokens."""
    size = BLOCK_TOKENS * BYTES_PER_TOKEN
    ends = tuple(size * (i + 1) for i in range(len(blocks)))
    return Prefix(tuple(hash(blocks[: i + 1]) for i in range(len(blocks))), ends, ends[-1] + 100 * BYTES_PER_TOKEN)


def asks(story: Story, name: str, *blocks: int) -> Story:
    """A request whose prompt begins with these blocks."""
    begins = prefix(*blocks)
    tokens = begins.size // BYTES_PER_TOKEN
    return story.arrives(name, prefix=begins, prompt=tokens, prompt_bytes=begins.size)


def two(**more: object) -> Policy:
    return policy(pool("p", "r1", "r2", slots=8, **more), tier("std"))


def served(story: Story, name: str) -> Story:
    return story.sent(name).first_token(name).finishes(name, output_tokens=5)


def first_turn(**more: object) -> tuple[Story, str]:
    """Serve the first turn of a conversation. Returns its replica."""
    story = asks(play(two(**more), 0.0), "turn 1", 1, 2, 3)
    replica = next(iter(story.controller.state.attempts.values())).replica.spec.name
    served(story, "turn 1").whatever()
    return story, replica


def other(replica: str) -> str:
    return "r2" if replica == "r1" else "r1"


def test_next_turn_goes_to_the_replica_that_cached_the_conversation() -> None:
    story, warm = first_turn()
    asks(story, "turn 2", 1, 2, 3, 4).expect(dispatch(warm))


def test_only_tokens_that_are_not_cached_count_as_unread() -> None:
    story, _ = first_turn()
    asks(story, "turn 2", 1, 2, 3, 4).whatever()
    (attempt,) = story.controller.state.attempts.values()
    assert attempt.slot.prompt_tokens == 4 * BLOCK_TOKENS + 100
    assert attempt.slot.unread_tokens == BLOCK_TOKENS + 100
    assert attempt.replica.unprefilled_tokens == BLOCK_TOKENS + 100
    assert attempt.replica.held_tokens == 4 * BLOCK_TOKENS + 100
    served(story, "turn 2").whatever()
    assert attempt.replica.unprefilled_tokens == attempt.replica.held_tokens == 0


def test_a_replica_with_more_unread_tokens_than_its_cache_saves_is_passed_over() -> None:
    story, warm = first_turn()
    asks(story, "long", 1, 2, 3, *range(10, 20)).expect(dispatch(warm))
    asks(story, "turn 2", 1, 2, 3, 4).expect(dispatch(other(warm)))


def test_prompts_with_a_common_beginning_spread_over_the_replicas() -> None:
    story, _ = first_turn()
    for number in range(12):
        asks(story, f"n{number}", 1, 2, 3, 100 + number).sent(f"n{number}").first_token(f"n{number}").whatever()
    in_flight = sorted(replica.in_flight for replica in story.pool("p").replicas)
    assert in_flight[0] >= 4


def closed_by_a_prompt(**more: object) -> tuple[Story, str]:
    """Both replicas are full of unread prompts. Returns the one that served the first turn."""
    story, warm = first_turn(**more)
    pool = next(iter(story.controller.state.fleet))
    for replica in ("r1", "r2"):
        story.observes(replica, Sample(waiting=0, running=0))  # scrapes set the limit of unread prompts
    for first in (1000, 2000):
        asks(story, f"long {first}", *range(first, first + 40)).whatever()
    assert [replica.bound for replica in pool.replicas.values()] == [CapacityBound.PROMPTS] * 2
    return story, warm


def test_replica_closed_by_unread_prompts_takes_a_cached_prompt() -> None:
    story, warm = closed_by_a_prompt()
    asks(story, "unknown", 7, 8, 9).expect()
    story.leaves("unknown").whatever()
    pool = next(iter(story.controller.state.fleet))
    excess = pool.replicas[warm].unprefilled_tokens - pool.prefill_limit
    blocks = range(100, 101 + int(excess / BLOCK_TOKENS) + 1)
    pool.replicas[warm].cache.sent(prefix(*blocks))
    asks(story, "known", *blocks).expect(dispatch(warm))


def test_other_routers_send_nothing_to_a_replica_closed_by_unread_prompts() -> None:
    story, warm = closed_by_a_prompt(router="round-robin")
    pool = next(iter(story.controller.state.fleet))
    pool.replicas[warm].cache.sent(prefix(*range(100, 200)))
    asks(story, "known", *range(100, 200)).expect()


def test_a_prompt_counts_as_unread_where_affinity_is_off() -> None:
    story, _ = first_turn(affinity=False)
    asks(story, "turn 2", 1, 2, 3, 4).whatever()
    (attempt,) = story.controller.state.attempts.values()
    assert attempt.slot.unread_tokens == attempt.slot.prompt_tokens


def test_a_replica_whose_breaker_has_opened_is_cold_afterwards() -> None:
    story, warm = first_turn()
    for _ in range(3):
        story.controller.observe(warm, Sample(healthy=False), story.now)
    asks(story, "elsewhere", 1, 2, 3, 4).expect(dispatch(other(warm)))
    served(story, "elsewhere").whatever()
    for _ in range(2):
        story.after(10.0)
        story.controller.observe(warm, Sample(healthy=True), story.now)
    asks(story, "turn 3", 1, 2, 3, 4, 5).expect(dispatch(other(warm)))


def test_cached_bytes_are_converted_by_the_learned_bytes_per_token() -> None:
    """With two bytes per token the same beginning has twice the tokens."""
    story, _ = first_turn()
    for number in range(60):
        name = f"n{number}"
        asks(story, name, 1, 2, 3).sent(name).first_token(name)
        story.finishes(name, prompt_tokens=2 * (3 * BLOCK_TOKENS + 100), output_tokens=5).whatever()
    replicas = [replica for pool in story.controller.state.fleet for replica in pool.replicas.values()]
    assert min(replica.cache.evidence.bytes_per_token for replica in replicas) < 2.1
    begins = prefix(1, 2, 3)
    most = max(replica.cache.covered_tokens(begins) for replica in replicas)
    assert most > 1.9 * 3 * BLOCK_TOKENS


def with_picture(text: str) -> Prefix:
    """A prompt of 8 kB of text after a picture. The picture takes 900 kB, and its size in pixels is unknown."""
    data = base64.b64encode(bytes(675_000)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": text * 8000}]}]
    return prefix_of(Placeholders({"messages": messages}).fields, has_media=True)


def shows(story: Story, name: str, begins: Prefix) -> Story:
    tokens = begins.size // BYTES_PER_TOKEN
    return story.arrives(name, prefix=begins, prompt=tokens, prompt_bytes=begins.size)


def test_a_picture_in_a_cache_saves_its_tokens_and_does_not_hold_requests_at_a_loaded_replica() -> None:
    begins = with_picture("x")
    story = shows(play(two(), 0.0), "turn 1", begins)
    warm = next(iter(story.controller.state.attempts.values())).replica.spec.name
    served(story, "turn 1").whatever()
    shows(story, "turn 2", begins).expect(dispatch(warm))
    served(story, "turn 2").whatever()
    asks(story, "long", *range(10, 30)).whatever()
    loaded = next(iter(story.controller.state.attempts.values())).replica
    loaded.cache.sent(begins)
    assert loaded.unprefilled_tokens > 2 * begins.size // BYTES_PER_TOKEN
    shows(story, "turn 3", begins).expect(dispatch(other(loaded.spec.name)))


def test_bytes_per_token_are_learned_only_from_prompts_without_media() -> None:
    begins = with_picture("x")
    story = play(two(), 0.0)
    for number in range(20):
        name = f"n{number}"
        shows(story, name, begins).sent(name).first_token(name)
        story.finishes(name, prompt_tokens=100, output_tokens=5).whatever()
    replicas = [replica for pool in story.controller.state.fleet for replica in pool.replicas.values()]
    assert [replica.cache.evidence.bytes_per_token for replica in replicas] == [BYTES_PER_TOKEN] * 2
