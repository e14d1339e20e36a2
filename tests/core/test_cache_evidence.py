"""Reports of an engine correct the index of its prefix cache: the cached tokens of answers, and the engine's
counters.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fleet.prefix_cache.cache_evidence import MEMORY_TOKENS, MIN_OTHERS, CacheEvidence
from gateway.core.sample import Sample

from .made import STEADY
from .playbook import Story, dispatch
from .test_affinity import BLOCK_TOKENS, asks, first_turn, other, served

LONG = tuple(range(1, 21))


def turn(story: Story, name: str, *blocks: int, cached: int | None) -> Story:
    """A request from its arrival to its end, with the cached tokens that its engine reports."""
    asks(story, name, *blocks)
    tokens = BLOCK_TOKENS * len(blocks) + 100
    story.sent(name).first_token(name)
    return story.finishes(name, prompt_tokens=tokens, output_tokens=5, cached_tokens=cached).whatever()


def unread(story: Story, name: str, *blocks: int) -> int:
    """Prompt tokens of `name` that count as unread."""
    asks(story, name, *blocks).whatever()
    attempt = next(a for a in story.controller.state.attempts.values() if a.state.request.affinity.prefix.blocks)
    return attempt.slot.unread_tokens


def warmed(count: int, cached: int | None) -> Story:
    """One replica's answers to one long prompt; each reports the given number of cached tokens."""
    story, _ = first_turn()
    for number in range(count):
        turn(story, f"n{number}", *LONG, cached=cached)
    return story


def test_cached_tokens_count_in_full_if_the_engine_reports_what_was_expected() -> None:
    story = warmed(20, len(LONG) * BLOCK_TOKENS)
    assert unread(story, "next", *LONG) == 100


def test_prompts_cost_their_full_length_at_an_engine_that_reports_no_cached_tokens() -> None:
    story = warmed(60, 0)
    assert unread(story, "next", *LONG) > 0.97 * len(LONG) * BLOCK_TOKENS


def test_index_alone_predicts_cached_tokens_if_the_engine_reports_none() -> None:
    story = warmed(60, None)
    assert unread(story, "next", *LONG) == 100


def test_prompt_cost_follows_an_engine_that_finds_half_of_the_expected_tokens() -> None:
    story = warmed(60, len(LONG) * BLOCK_TOKENS // 2)
    assert unread(story, "next", *LONG) == pytest.approx(len(LONG) * BLOCK_TOKENS / 2, rel=0.05)


def busy_at(story: Story, replica: str) -> Story:
    """Two uncached requests: the one at `replica` is still unread, the other is over."""
    for name, block in (("a", 600), ("b", 700)):
        asks(story, name, block, block + 1).whatever()
    for attempt in list(story.controller.state.attempts.values()):
        if attempt.replica.spec.name != replica:
            name = next(name for name, id in story.ids.items() if id == attempt.state.request.id)
            served(story, name).whatever()
    return story


def test_conversation_is_not_kept_at_a_replica_without_prefix_caching() -> None:
    story, warm = first_turn()
    asks(busy_at(story, warm), "turn 2", 1, 2, 3).expect(dispatch(warm))
    story, warm = first_turn()
    for number in range(60):
        turn(story, f"n{number}", 1, 2, 3, cached=0)
    warm = next(r.name for r in story.pool("p").replicas if r.cache.kept < 0.3)
    asks(busy_at(story, warm), "turn 2", 1, 2, 3).expect(dispatch(other(warm)))


def test_scraped_counters_are_cache_evidence_if_answers_report_none() -> None:
    story, warm = first_turn()
    story.observes(warm, Sample(waiting=0, running=0, cache_queries=0, cache_hits=0))
    for number in range(20):
        turn(story, f"n{number}", 1, 2, 3, 4, 5, 6, 7, 8, cached=None)
        queries = (number + 1) * 4100
        for replica in ("r1", "r2"):
            story.observes(replica, Sample(waiting=0, running=0, cache_queries=queries, cache_hits=queries // 10))
    (view,) = [r for r in story.pool("p").replicas if r.name == warm]
    assert view.cache.kept < 0.3
    assert view.cache.hit_rate == pytest.approx(0.1, abs=0.01)


def test_restarted_cache_counters_mean_an_empty_cache() -> None:
    story, warm = first_turn()
    story.observes(warm, Sample(waiting=0, running=0, cache_queries=9000, cache_hits=5000))
    asks(story, "before", 1, 2, 3).expect(dispatch(warm))
    story.observes(warm, Sample(waiting=0, running=0, cache_queries=0, cache_hits=0))
    replica = next(r for pool in story.controller.state.fleet for r in pool.replicas.values() if r.spec.name == warm)
    assert len(replica.cache) == 0


def test_an_impossible_count_of_cached_tokens_is_ignored() -> None:
    story, _ = first_turn()
    turn(story, "liar", 1, 2, 3, cached=10**9)
    assert sum(r.cache.reported_tokens for r in story.pool("p").replicas) == 0
    assert story.controller.disbelieved()


def test_predicted_and_reported_tokens_are_counted_in_the_tokens_of_the_engine() -> None:
    story, _ = first_turn()
    turn(story, "next", 1, 2, 3, cached=3 * BLOCK_TOKENS)
    views = story.pool("p").replicas
    assert sum(r.cache.predicted_tokens for r in views) == 3 * BLOCK_TOKENS
    assert sum(r.cache.reported_tokens for r in views) == 3 * BLOCK_TOKENS


@STEADY
@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)), max_size=60))
def test_cached_share_stays_between_0_and_1_for_any_report(told: list[tuple[int, int]]) -> None:
    evidence = CacheEvidence()
    for indexed, cached in told:
        evidence.answered(max(indexed, cached), indexed, cached)
        assert 0.0 <= evidence.kept <= 1.0
        assert evidence.hit_rate is None or 0.0 <= evidence.hit_rate <= 1.0


@STEADY
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_share_of_other_gateways_follows_a_change(before: float, after: float) -> None:
    evidence = CacheEvidence()
    for share in (before, after):
        for _ in range(40):
            evidence.answered(20_000, 10_000, int(10_000 * share))
    assert evidence.kept == pytest.approx(after, abs=0.02)
    assert evidence.hit_rate == pytest.approx(after / 2, abs=0.02)
    assert MEMORY_TOKENS < 40 * 10_000


def test_share_of_other_gateways_is_queried_tokens_that_this_gateway_did_not_send() -> None:
    evidence = CacheEvidence()
    assert evidence.others == 1.0
    evidence.counted(0, 0)
    for number in range(1, 101):
        evidence.sent(3000, 0)
        evidence.counted(12_000 * number, 0)
    assert evidence.others == pytest.approx(0.75)
    for number in range(1, 1001):
        evidence.sent(3000, 0)
        evidence.counted(1_200_000 + 3000 * number, 0)
    assert evidence.others < 0.1


def test_lone_gateway_learns_the_smallest_share_of_others_from_late_counters() -> None:
    evidence = CacheEvidence()
    evidence.counted(0, 0)
    for number in range(1, 101):
        evidence.sent(3000, 0)
        evidence.counted(3000 * (number - 1), 0)
    assert evidence.others == MIN_OTHERS


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), max_size=20))
@STEADY
def test_the_share_of_prompts_that_other_gateways_sent_is_between_its_floor_and_one(
    windows: list[tuple[int, int]],
) -> None:
    evidence = CacheEvidence()
    total = 0
    for own, queried in windows:
        total += queried
        evidence.sent(own, 0)
        evidence.counted(total, 0)
        assert MIN_OTHERS <= evidence.others <= 1.0
