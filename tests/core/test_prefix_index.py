"""The index of a prefix cache: it knows sent blocks, forgets old ones, and stays within its bound."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fleet.prefix_cache.prefix_index import Holders, PrefixIndex, holding
from gateway.core.fleet.routing import LeastPrefill, RoutingTarget
from gateway.core.request import NO_PREFIX, Prefix

from .made import STEADY

BLOCK = 1000


def prefix(*blocks: int) -> Prefix:
    """A block's hash covers all blocks before it."""
    chain = tuple(hash(blocks[: i + 1]) for i in range(len(blocks)))
    return Prefix(chain, tuple(BLOCK * (i + 1) for i in range(len(blocks))), BLOCK * len(blocks) + 7)


def test_prefix_index_covers_the_blocks_that_were_sent_before() -> None:
    index = PrefixIndex()
    index.sent(prefix(1, 2, 3))
    assert index.covered(prefix(1, 2, 3)) == 3 * BLOCK
    assert index.covered(prefix(1, 2, 3, 4, 5)) == 3 * BLOCK
    assert index.covered(prefix(1, 2, 9)) == 2 * BLOCK
    assert index.covered(prefix(2, 3)) == index.covered(NO_PREFIX) == 0


def test_prefix_index_forgets_tails_before_shared_beginnings() -> None:
    index = PrefixIndex()
    index.capacity_bytes = 6 * BLOCK
    index.sent(prefix(0, 1, 1))
    index.sent(prefix(0, 2, 2))
    index.sent(prefix(0, 3, 3))
    assert index.covered(prefix(0, 3, 3)) == 3 * BLOCK
    assert index.covered(prefix(0, 1, 1)) < 3 * BLOCK
    assert index.covered(prefix(0, 1, 1)) >= BLOCK


def test_a_cleared_prefix_index_covers_no_prompt() -> None:
    index = PrefixIndex()
    index.sent(prefix(1, 2))
    index.clear()
    assert index.covered(prefix(1, 2)) == len(index) == 0


@STEADY
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_prefix_index_stays_bounded_and_keeps_only_whole_prefixes(sent: list[list[int]], capacity: int) -> None:
    index = PrefixIndex()
    index.capacity_bytes = capacity * BLOCK
    for blocks in sent:
        whole = prefix(*blocks)
        index.sent(whole)
        assert len(index) <= max(capacity, 0)
        if len(blocks) <= capacity // 2:
            assert index.covered(whole) == whole.ends[-1], "the prompt sent last is held"
        for earlier in sent:
            covered = [index.covered(prefix(*earlier[: i + 1])) // BLOCK for i in range(len(earlier))]
            assert covered == [min(i + 1, covered[-1]) for i in range(len(earlier))]


def pooled(count: int) -> tuple[list[RoutingTarget], Holders]:
    """Replicas of one pool, which share the table of first blocks."""
    holders: Holders = {}
    targets = [RoutingTarget(rank) for rank in range(count)]
    for target in targets:
        target.cache.holders = holders
    return targets, holders


def test_table_of_first_blocks_follows_the_prefix_indexes() -> None:
    (one, two), holders = pooled(2)
    begins, other = prefix(1, 2, 3), prefix(7, 8)
    one.cache.sent(begins)
    one.cache.sent(other)
    two.cache.sent(begins)
    assert list(holding(begins, holders)) == [one.cache, two.cache]
    assert list(holding(other, holders)) == [one.cache]
    one.cache.clear()
    assert {block: list(held) for block, held in holders.items()} == {hash((1,)): [two.cache]}
    two.cache.capacity_bytes = 1
    two.cache.sent(prefix(9))
    assert not holding(begins, holders), "it was evicted"
    assert not holding(Prefix(), holders)


def test_router_picks_the_same_replica_with_and_without_the_table_of_first_blocks() -> None:
    draw = Random(7)
    for _ in range(200):
        pooled_targets, _holders = pooled(8)
        alone = [RoutingTarget(rank) for rank in range(8)]
        talks = [prefix(*(100 * talk + block for block in range(draw.randrange(1, 20)))) for talk in range(5)]
        for one, other in zip(pooled_targets, alone, strict=True):
            one.unprefilled_tokens = other.unprefilled_tokens = draw.randrange(3) * 400
            for talk in talks:
                if draw.random() < 0.3:
                    one.cache.sent(talk)
                    other.cache.sent(talk)
        for talk in talks:
            chance = draw.random()
            picked = LeastPrefill().pick(pooled_targets, chance, talk, 100.0).rank
            assert picked == LeastPrefill().pick(alone, chance, talk, 100.0).rank


def test_cached_prompt_finds_its_replica_among_1000_unless_that_is_too_busy() -> None:
    targets, _ = pooled(1000)
    begins = prefix(*range(1, 20))
    targets[617].cache.sent(begins)
    assert LeastPrefill().pick(targets, 0.3, begins, 100.0).rank == 617
    targets[617].unprefilled_tokens = 100_000
    assert LeastPrefill().pick(targets, 0.3, begins, 100.0).rank in (
        300,
        (300 + 1 + int(0.3 * 1000 * 7919) % 999) % 1000,
    )


def test_prefix_index_counts_a_block_sent_again_by_its_new_size() -> None:
    """Otherwise the index would seem full for ever, and no block would be left to evict."""
    index = PrefixIndex()
    index.capacity_bytes = 100 * BLOCK
    for number in range(10):
        index.sent(Prefix((number,), (90 * BLOCK,), 90 * BLOCK))
        index.sent(Prefix((number,), (BLOCK,), BLOCK))
    for number in range(10):
        assert index.matched(Prefix((number,), (BLOCK,), BLOCK)) == BLOCK
