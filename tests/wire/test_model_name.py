"""The asked name replaces the engine's in the bytes of an answer, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.model_name import ModelName

NAMES = st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(["m", "org/m", 'a"b', "\\\\", "\u00e9"]))
SEPARATORS = ((",", ":"), (", ", ": "))


@given(NAMES, NAMES, st.text(max_size=20), st.sampled_from(SEPARATORS), st.booleans())
def test_an_answer_has_the_asked_name_and_is_otherwise_as_it_was(
    asked: str, reported: str, text: str, separators: tuple[str, str], ascii_only: bool
) -> None:
    tricky = text + json.dumps({"model": reported})
    answer = {"id": reported, "model": reported, "choices": [{"delta": {"content": tricky}}]}
    body = json.dumps(answer, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "replace")
    told = json.dumps(reported, ensure_ascii=ascii_only).encode("utf-8", "replace")
    try:
        name = ModelName(asked)
    except TypeError:
        return  # half a surrogate, which no request can carry
    name.learn(told, body)
    assert json.loads(name.apply(body)) == {**json.loads(body), "model": asked}


@pytest.mark.parametrize("told", [b"", b"null", b"7", b'"other"'])
def test_what_is_no_name_in_the_answer_changes_nothing(told: bytes) -> None:
    name = ModelName("asked")
    name.learn(told, b'{"model":"reported"}')
    assert not name.changes
    assert name.apply(b'{"model":"reported"}') == b'{"model":"reported"}'
