"""Lengths of prompts and of answers, and the texts of answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.emulator import text


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 0),
        ("abcd", 1),
        ("abcde", 2),
        ("é" * 4, 2),
        ([{"type": "text", "text": "abcde"}, {"type": "image_url", "image_url": {"url": "data:..."}}], 2 + 256),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "abcd"}]}], 1),
        (["abcd", "efgh"], 2),
        (None, 0),
        (17, 0),
    ],
)
def test_emulated_tokens_of_content_are_counted_by_its_bytes(content: object, tokens: int) -> None:
    assert text.count_content(content) == tokens


def test_emulated_prompt_tokens_include_the_template_of_every_message() -> None:
    assert text.count_chat([{"role": "user", "content": "abcd"}] * 2) == 3 + 2 * (4 + 1)


@given(st.integers(0, 2**32), st.integers(0, 10_000))
def test_emulated_passage_has_the_requested_number_of_words(start: int, words: int) -> None:
    pieces = text.passage(start, words)
    assert len(pieces) == words
    assert pieces[:1] == [text.BOOK[start % len(text.BOOK)]][:words]


def test_emulated_words_need_no_escapes_in_json() -> None:
    whole = b"".join(text.BOOK)
    assert json.loads(b'"' + whole + b'"') == whole.decode()
    assert any(len(word) != len(word.decode()) for word in text.BOOK)


def test_emulated_lengths_follow_the_lognormal_distribution() -> None:
    seeds = [text.seed_of(b"prompt %d" % number) for number in range(4000)]
    lengths = sorted(text.output_length(seed, 100.0, 0.5) for seed in seeds)
    assert lengths == sorted(text.output_length(seed, 100.0, 0.5) for seed in seeds)
    assert 95 <= lengths[2000] <= 105
    assert 155 <= lengths[3364] <= 175  # 84.1 %: one sigma, 100 * exp(.5) = 165
    assert {text.output_length(seed, 100.0, 0.0) for seed in seeds} == {100}
