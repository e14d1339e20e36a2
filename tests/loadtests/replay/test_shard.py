"""Which part of a test a generator sends, and when it begins."""

from __future__ import annotations

import pytest

from loadtests.replay.shard import SOON_S, Shard, beginning, shard_of


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_are_disjoint_and_together_everything_with_the_numbers_of_one(count: int) -> None:
    parts = [list(Shard(index, count).part("abcdefghijk")) for index in range(count)]
    assert sorted(pair for part in parts for pair in part) == list(enumerate("abcdefghijk"))


def test_shard_is_named_or_taken_from_the_job() -> None:
    assert shard_of(None, {}) == Shard(0, 1)
    assert shard_of("2/4", {}) == Shard(1, 4)
    assert shard_of("4", {"JOB_COMPLETION_INDEX": "3"}) == Shard(3, 4)


@pytest.mark.parametrize(
    ("text", "index", "told"),
    [
        ("0/4", "", "I is from 1 to N"),
        ("5/4", "", "I is from 1 to N"),
        ("4", "4", "I is from 1 to N"),
        ("4", "", "JOB_COMPLETION_INDEX is not set: write I/N, such as 1/4"),
        ("a/b", "", "write I/N, such as 1/4"),
    ],
)
def test_impossible_shard_is_refused(text: str, index: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        shard_of(text, {"JOB_COMPLETION_INDEX": index} if index else {})


def test_aligned_generators_begin_together_and_not_too_soon() -> None:
    assert beginning(None, None, 100.0) is None
    assert {beginning(None, 30.0, now) for now in (91.0, 100.0, 110.0, 115.0)} == {120.0}
    assert all((beginning(None, 30.0, 90.0 + n) or 0.0) - 90.0 - n >= SOON_S for n in range(60))
    assert beginning("1234.5", None, 0.0) == 1234.5
    assert beginning("1970-01-01T00:01:00+00:00", None, 0.0) == 60.0


@pytest.mark.parametrize(("at", "align_s"), [("soon", None), ("12", 3.0)])
def test_impossible_beginning_is_refused(at: str, align_s: float | None) -> None:
    with pytest.raises(ValueError, match=r"--begin-at"):
        beginning(at, align_s, 0.0)
