"""The index of a prefix cache: it says what was sent, forgets what is old, and stays within its bound."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fleet.prefix_index import PrefixIndex
from gateway.core.request import NO_PREFIX, Prefix

from .made import STEADY

BLOCK = 1000


def prefix(*blocks: int) -> Prefix:
    """Each block is named by all before it, too."""
    chain = tuple(hash(blocks[: i + 1]) for i in range(len(blocks)))
    return Prefix(chain, tuple(BLOCK * (i + 1) for i in range(len(blocks))), BLOCK * len(blocks) + 7)


def test_a_prompt_that_was_sent_is_covered_and_one_that_goes_on_is_as_far_as_it_was_sent() -> None:
    index = PrefixIndex()
    index.sent(prefix(1, 2, 3))
    assert index.covered(prefix(1, 2, 3)) == 3 * BLOCK
    assert index.covered(prefix(1, 2, 3, 4, 5)) == 3 * BLOCK
    assert index.covered(prefix(1, 2, 9)) == 2 * BLOCK
    assert index.covered(prefix(2, 3)) == index.covered(NO_PREFIX) == 0


def test_tails_are_forgotten_before_beginnings_that_others_share() -> None:
    index = PrefixIndex()
    index.capacity_bytes = 6 * BLOCK
    index.sent(prefix(0, 1, 1))
    index.sent(prefix(0, 2, 2))
    index.sent(prefix(0, 3, 3))
    assert index.covered(prefix(0, 3, 3)) == 3 * BLOCK
    assert index.covered(prefix(0, 1, 1)) < 3 * BLOCK
    assert index.covered(prefix(0, 1, 1)) >= BLOCK


def test_a_cleared_index_covers_nothing() -> None:
    index = PrefixIndex()
    index.sent(prefix(1, 2))
    index.clear()
    assert index.covered(prefix(1, 2)) == len(index) == 0


@STEADY
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_an_index_stays_within_its_bound_and_holds_a_block_only_with_those_before_it(
    sent: list[list[int]], capacity: int
) -> None:
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
