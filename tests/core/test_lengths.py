"""Output lengths: quantiles are monotone, fall back to broader groups, and follow observations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.output_length import KEEP, LONG, OutputLengths
from tests.core.made import STEADY

TOKENS = st.lists(st.integers(1, 20_000), max_size=200)


@STEADY
@given(TOKENS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_output_length_quantiles_and_tails_are_monotone(seen: list[int], p: float, q: float) -> None:
    bucket = OutputLengths().bucket("m", "std", 500)
    for tokens in seen:
        bucket.add(tokens)
    p, q = sorted((p, q))
    assert bucket.quantile(p) <= bucket.quantile(q)
    assert 0.0 <= bucket.exceeds(100 * q) <= bucket.exceeds(100 * p) <= 1.0 + 1e-9


def test_output_length_quantiles_are_learned() -> None:
    source = random.Random(1)
    bucket = OutputLengths().bucket("m", "std", 500)
    seen = sorted(round(source.lognormvariate(5.0, 0.7)) for _ in range(4000))
    for tokens in random.Random(2).sample(seen, len(seen)):
        bucket.add(tokens)
    assert bucket.median == pytest.approx(seen[2000], rel=0.2)
    assert bucket.quantile(0.9) == pytest.approx(seen[3600], rel=0.2)
    assert bucket.exceeds(300.0) == pytest.approx(sum(t > 300 for t in seen) / 4000, abs=0.03)


def test_empty_output_length_bucket_predicts_like_its_parent() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
    assert lengths.bucket("m", "std", 9000).median == pytest.approx(40, rel=0.25)
    assert lengths.bucket("m", "batch", 500).median == pytest.approx(40, rel=0.25)


def test_output_length_bucket_with_enough_answers_predicts_by_itself() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
        lengths.bucket("m", "std", 9000).add(1000)
    assert lengths.bucket("m", "std", 500).median == pytest.approx(40, rel=0.25)
    assert lengths.bucket("m", "std", 9000).median == pytest.approx(1000, rel=0.25)


def test_output_length_bucket_with_few_answers_follows_its_parent() -> None:
    lengths = OutputLengths()
    rare, rarer = lengths.bucket("m", "std", 9000), lengths.bucket("m", "batch", 9000)
    rare.add(40)
    assert rare.median > 100, "nothing is known yet"
    for tokens in (40, 1000):
        for _ in range(9000):
            lengths.bucket("m", "std", 500).add(tokens)
        for bucket in (rare, rarer):
            assert bucket.median == pytest.approx(tokens, rel=0.25)
            assert bucket.exceeds(300.0) == pytest.approx(float(tokens > 300), abs=0.1)


@STEADY
@given(st.lists(st.tuples(st.sampled_from((100, 500, 9000)), st.integers(1, 20_000), st.booleans()), max_size=400))
def test_reading_output_lengths_does_not_change_later_predictions(news: list[tuple[int, int, bool]]) -> None:
    asked, unasked = OutputLengths(), OutputLengths()
    for prompt, tokens, goes_on in news * 3:
        for lengths in (asked, unasked):
            bucket = lengths.bucket("m", "std", prompt)
            if goes_on:
                bucket.passes(tokens, 0)
            else:
                bucket.add(tokens)
        assert asked.bucket("m", "std", 500).median >= 1.0
        assert asked.bucket("m", "batch", 500).exceeds(100.0) <= 1.0
    for kind in (("std", 100), ("std", 500), ("std", 9000), ("batch", 500)):
        one, other = asked.bucket("m", *kind), unasked.bucket("m", *kind)
        assert [one.quantile(q / 10) for q in range(1, 10)] == [other.quantile(q / 10) for q in range(1, 10)]
        assert [one.exceeds(1.3**n) for n in range(40)] == [other.exceeds(1.3**n) for n in range(40)]


def test_old_output_lengths_are_forgotten() -> None:
    bucket = OutputLengths().bucket("m", "std", 500)
    for _ in range(6000):
        bucket.add(1000)
    for _ in range(9000):
        bucket.add(50)
    assert bucket.median == pytest.approx(50, rel=0.25)


def test_running_answers_raise_the_predicted_output_length_before_they_end() -> None:
    bucket = OutputLengths().bucket("m", "std", 500)
    for _ in range(100):
        bucket.add(40)
    told = [0] * 200
    for tokens in range(20, 1001, 20):
        told = [bucket.passes(tokens, edges) for edges in told]
    assert bucket.exceeds(900.0) == pytest.approx(2 / 3, abs=0.1)
    assert bucket.median > 900.0


def test_first_running_answers_of_a_bucket_raise_its_prediction_before_they_end() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
    bucket = lengths.bucket("m", "std", 9000)
    told = [0] * 300
    for tokens in range(20, 1001, 20):
        told = [bucket.passes(tokens, edges) for edges in told]
    assert bucket.exceeds(900.0) > 0.9


def test_output_length_bucket_uses_its_parent_for_lengths_not_reached_yet() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
    bucket = lengths.bucket("m", "std", 9000)
    for _ in range(300):
        bucket.passes(10, 0)
    assert bucket.median == pytest.approx(40, rel=0.25)


def test_answer_counts_once_in_output_lengths_however_often_its_progress_is_read() -> None:
    watched, unwatched = OutputLengths().bucket("m", "std", 500), OutputLengths().bucket("m", "std", 500)
    source = random.Random(1)
    for _ in range(400):
        tokens, told = round(source.lognormvariate(5.0, 0.7)) + 1, 0
        for seen in range(1, tokens, 7):
            told = watched.passes(seen, told)
        watched.add(tokens, told)
        unwatched.add(tokens)
    for bucket in (watched, unwatched):
        for _ in range(300):  # more than may remain uncounted
            bucket.add(100)
    assert watched.seen == pytest.approx(unwatched.seen, abs=300)
    for q in (0.2, 0.5, 0.9):
        assert watched.quantile(q) == pytest.approx(unwatched.quantile(q), rel=0.05)


def drawn() -> list[int]:
    source = random.Random(1)
    return [round(source.lognormvariate(6.0, 0.7)) + 1 for _ in range(4000)]


@pytest.mark.parametrize("most", [300, 600])
def test_abandoned_answers_do_not_shorten_the_length_estimate(most: int) -> None:
    source, seen, bucket = random.Random(2), drawn(), OutputLengths().bucket("m", "std", 500)
    for tokens in seen:
        left_at = source.randint(1, 2 * most)
        if left_at < tokens:
            bucket.passes(left_at, 0)
        else:
            bucket.add(tokens)
    assert bucket.median == pytest.approx(sorted(seen)[2000], rel=0.2)
    assert bucket.quantile(0.25) == pytest.approx(sorted(seen)[1000], rel=0.2)


@pytest.mark.parametrize("cut_at", [450, 500, 560, 800])
def test_answers_cut_at_one_length_do_not_shorten_the_length_estimate(cut_at: int) -> None:
    """Other answers end in the bin of the cut, and none is longer."""
    seen, bucket = drawn(), OutputLengths().bucket("m", "std", 500)
    for tokens in seen:
        if cut_at < tokens:
            bucket.passes(cut_at, 0)
        else:
            bucket.add(tokens)
    for beyond in (300.0, float(cut_at)):
        assert bucket.exceeds(beyond) == pytest.approx(sum(t > beyond for t in seen) / 4000, abs=0.15)
    assert bucket.quantile(LONG) < 1200, "no longer than any was seen, or thought at first, to be"


def test_unfinished_output_lengths_are_forgotten_too() -> None:
    bucket = OutputLengths().bucket("m", "std", 500)
    for _ in range(50_000):
        bucket.passes(400, 0)
    assert bucket.seen <= 2 * KEEP
    for _ in range(8000):
        bucket.add(40)
    assert bucket.exceeds(100.0) < 0.2


def test_output_length_follows_usage_that_is_below_the_tokens_seen() -> None:
    bucket = OutputLengths().bucket("m", "std", 500)
    for _ in range(300):
        bucket.add(50, bucket.passes(100, 0))
    assert bucket.median == pytest.approx(50, rel=0.25)


def test_longest_answer_of_a_percentile_is_unknown_until_one_could_exceed_it() -> None:
    """Before any answer, lengths up to 1,024 are assumed: as the p99 they would keep replicas nearly empty."""
    lengths = OutputLengths()
    bucket = lengths.bucket("m", "t", 100)
    for _ in range(90):
        bucket.add(60)
    for _ in range(50):
        bucket.passes(20, 0)
    assert lengths.longest("t", 0.99, None) is None
    longest = lengths.longest("t", 0.5, None)
    assert longest is not None
    assert longest < 100
    for _ in range(60):
        bucket.add(60)
    longest = lengths.longest("t", 0.99, None)
    assert longest is not None
    assert longest < 300
