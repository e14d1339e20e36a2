"""How long answers will be: quantiles that are monotone, lean on the broader kind, and follow what is seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lengths import Lengths
from tests.core.made import STEADY

TOKENS = st.lists(st.integers(1, 20_000), max_size=200)


@STEADY
@given(TOKENS, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_quantiles_and_tails_are_monotone(seen: list[int], p: float, q: float) -> None:
    bucket = Lengths().bucket("m", "std", 500)
    for tokens in seen:
        bucket.add(tokens)
    p, q = sorted((p, q))
    assert bucket.quantile(p) <= bucket.quantile(q)
    assert 0.0 <= bucket.exceeds(100 * q) <= bucket.exceeds(100 * p) <= 1.0 + 1e-9


def test_quantiles_are_found() -> None:
    source = random.Random(1)
    bucket = Lengths().bucket("m", "std", 500)
    seen = sorted(round(source.lognormvariate(5.0, 0.7)) for _ in range(4000))
    for tokens in random.Random(2).sample(seen, len(seen)):
        bucket.add(tokens)
    assert bucket.median == pytest.approx(seen[2000], rel=0.2)
    assert bucket.quantile(0.9) == pytest.approx(seen[3600], rel=0.2)
    assert bucket.exceeds(300.0) == pytest.approx(sum(t > 300 for t in seen) / 4000, abs=0.03)


def test_a_bucket_that_has_seen_nothing_leans_on_the_broader_one() -> None:
    lengths = Lengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
    assert lengths.bucket("m", "std", 9000).median == pytest.approx(40, rel=0.25)
    assert lengths.bucket("m", "batch", 500).median == pytest.approx(40, rel=0.25)


def test_a_bucket_that_has_seen_enough_speaks_for_itself() -> None:
    lengths = Lengths()
    for _ in range(500):
        lengths.bucket("m", "std", 500).add(40)
        lengths.bucket("m", "std", 9000).add(1000)
    assert lengths.bucket("m", "std", 500).median == pytest.approx(40, rel=0.25)
    assert lengths.bucket("m", "std", 9000).median == pytest.approx(1000, rel=0.25)


def test_lengths_of_long_ago_are_forgotten() -> None:
    bucket = Lengths().bucket("m", "std", 500)
    for _ in range(6000):
        bucket.add(1000)
    for _ in range(9000):
        bucket.add(50)
    assert bucket.median == pytest.approx(50, rel=0.25)


def test_answers_that_go_on_are_known_to_be_long_before_they_end() -> None:
    bucket = Lengths().bucket("m", "std", 500)
    for _ in range(100):
        bucket.add(40)
    told = [0] * 200
    for tokens in range(20, 1001, 20):
        told = [bucket.passes(tokens, edges) for edges in told]
    assert bucket.exceeds(900.0) > 0.6
    assert bucket.median > 900.0


def test_an_answer_counts_once_however_often_it_was_looked_at() -> None:
    watched, unwatched = Lengths().bucket("m", "std", 500), Lengths().bucket("m", "std", 500)
    source = random.Random(1)
    for _ in range(400):
        tokens, told = round(source.lognormvariate(5.0, 0.7)) + 1, 0
        for seen in range(1, tokens, 7):
            told = watched.passes(seen, told)
        watched.add(tokens, told)
        unwatched.add(tokens)
    for bucket in (watched, unwatched):
        for _ in range(300):  # more than may be left to be counted
            bucket.add(100)
    assert watched.samples == pytest.approx(unwatched.samples, abs=300)
    for q in (0.2, 0.5, 0.9):
        assert watched.quantile(q) == pytest.approx(unwatched.quantile(q), rel=0.05)


@pytest.mark.parametrize("cap", [150, 300])
def test_what_was_cut_or_left_does_not_make_the_rest_look_short(cap: int) -> None:
    source = random.Random(1)
    bucket = Lengths().bucket("m", "std", 500)
    seen = sorted(round(source.lognormvariate(5.0, 0.7)) + 1 for _ in range(4000))
    for tokens in source.sample(seen, len(seen)):
        left_at = source.randint(1, 2 * cap)
        if left_at < tokens:
            bucket.passes(left_at, 0)
        else:
            bucket.add(tokens)
    assert bucket.median == pytest.approx(seen[2000], rel=0.2)
    assert bucket.quantile(0.25) == pytest.approx(seen[1000], rel=0.2)


def test_an_engine_that_counts_fewer_tokens_than_were_seen_is_believed() -> None:
    bucket = Lengths().bucket("m", "std", 500)
    for _ in range(300):
        bucket.add(50, bucket.passes(100, 0))
    assert bucket.median == pytest.approx(50, rel=0.25)
