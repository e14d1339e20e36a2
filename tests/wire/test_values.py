"""Limit on the JSON values of a body: counted before it is parsed, and never below the true number."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy import MAX_VALUES, Caps
from gateway.core.request import Endpoint
from gateway.core.results import Reason
from gateway.wire.body.values import has_more_values
from gateway.wire.request import BadRequest, parse

DOCUMENTS = st.recursive(
    st.none() | st.integers(0, 9) | st.text('\\":,[{}]ax', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('\\":,[a', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def values(document: Any) -> int:
    """Values of a document; the name of a field is one."""
    if type(document) is list:
        return 1 + sum(map(values, document))
    if type(document) is dict:
        return 1 + sum(1 + values(value) for value in document.values())
    return 1


@given(DOCUMENTS, st.sampled_from(["", "x" * 65535, "\\" * 65534, '\\"' * 40000, '","' * 30000]))
def test_number_of_values_is_bounded_from_above_and_texts_do_not_count(document: Any, text: str) -> None:
    whole = [text, document, text]
    body, count = orjson.dumps(whole), values(whole)
    assert has_more_values(body, count - 1)
    # An empty list or object is counted like one with a value.
    assert not has_more_values(body, count + body.count(b"[]") + body.count(b"{}") + 1)


@pytest.mark.parametrize("text", ["a, b: [c] {d} ", "\\", '"', '\\"', "\\\\", ",", "é", "\U0001f600,"])
def test_long_text_is_one_value_whatever_it_holds(text: str) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": text * (2**21 // len(text.encode()))}]})
    assert not has_more_values(body, 100)
    assert has_more_values(body, 3)


@pytest.mark.parametrize("unit", [b"[]", b"{}", b"1", b'""', b"[1]", b'{"a":1}'])
def test_body_of_many_small_values_is_refused_and_the_setting_is_named(unit: bytes) -> None:
    small = b'{"model":"m","messages":[{"role":"user","content":"a"}],"metadata":[%b]}'
    too_many = r"more than 200000 JSON values \(`listen.max_values` of the policy\)"
    with pytest.raises(BadRequest, match=too_many) as caught:
        parse(Endpoint.CHAT, small % b",".join([unit] * MAX_VALUES), Caps())
    assert caught.value.why is Reason.BODY_TOO_LARGE
    parse(Endpoint.CHAT, small % b",".join([unit] * (MAX_VALUES // 5)), Caps())
    with pytest.raises(BadRequest, match="more than 1000 JSON values"):
        parse(Endpoint.CHAT, small % b",".join([unit] * 1000), Caps(), 1000)
