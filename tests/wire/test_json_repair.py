"""Half surrogates and a byte order mark are served; all other invalid JSON is refused."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.body.json_repair import MAX_ESCAPES, repaired
from gateway.wire.parsed import Parsed
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%b"}]}'
TEXTS = st.text(
    st.one_of(
        st.sampled_from(["\ud83d", "\ude00", "\udfff", "\ud800", "\\", '"', "u", "d", "8", "3", "\U0001f600", "\n"]),
        st.characters(exclude_categories=()),
    )
)


def parsed(content: bytes) -> Parsed:
    return parse(Endpoint.CHAT, BODY % content, Caps())


def content_of(request: Parsed) -> str:
    sent = orjson.loads(render(request, "m", 8))["messages"][0]["content"]
    assert isinstance(sent, str)
    return sent


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"a\uD83D b", "a\ufffd b"),
        (rb"\ude00", "\ufffd"),
        (rb"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        (rb"\ud83d\\ude00", "\ufffd\\ude00"),
        (rb"\\ud83d\ude00", "\\ud83d\ufffd"),
        (rb"\\\ud83d\\", "\\\ufffd\\"),
        (rb"\ud83d\u0041\"", '\ufffdA"'),
    ],
)
def test_lone_surrogate_in_json_is_replaced_and_reported(escaped: bytes, text: str) -> None:
    request = parsed(escaped)
    assert content_of(request) == text
    assert request.changed == ("lone_surrogates",)


@given(TEXTS)
def test_escaped_text_changes_only_at_lone_surrogates(text: str) -> None:
    escaped = json.dumps(text)[1:-1].encode()
    whole: str = json.loads(b'"%b"' % escaped)
    request = parsed(escaped)
    assert content_of(request) == re.sub("[\ud800-\udfff]", "\ufffd", whole)
    assert bool(request.changed) == bool(re.search("[\ud800-\udfff]", whole))


def test_byte_order_mark_is_dropped_and_reported() -> None:
    request = parse(Endpoint.CHAT, b"\xef\xbb\xbf" + BODY % b"hi", Caps())
    assert content_of(request) == "hi"
    assert request.changed == ("byte_order_mark",)
    both = parse(Endpoint.CHAT, b"\xef\xbb\xbf" + BODY % rb"\ud83d", Caps())
    assert both.changed == ("byte_order_mark", "lone_surrogates")


@pytest.mark.parametrize(
    "body",
    [
        (BODY % b"hi").decode().encode("utf-16"),
        (BODY % b"hi").decode().encode("utf-16-le"),
        b"\xff\xfe" + BODY % b"hi",
        b"\xef\xbb\xbf\xef\xbb\xbf" + BODY % b"hi",
        b'{"model": "m", "temperature": NaN, "user": "\\ud83d"}',
        b'{"model": "m", "temperature": 1e400, "user": "\\ud83d"}',
        b'\xef\xbb\xbf{"temperature": Infinity}',
        b'{"user": "\\ud83d"',
        b'{"user": "\\ud83"}',
        b'{"user": "\xed\xa0\xbd"}',
        b'{"user": "\\ud83d"} {}',
        b"\xef\xbb\xbf",
    ],
)
def test_invalid_json_that_cannot_be_repaired_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body is not JSON in UTF-8"):
        parse(Endpoint.CHAT, body, Caps())


def test_json_repair_gives_up_on_a_body_with_too_many_escapes() -> None:
    half = rb'"\ud83d"'
    assert repaired(b"[%b]" % half, []) == rb'["\ufffd"]'
    many = b"[%b]" % b",".join([half] * (MAX_ESCAPES + 1))
    assert repaired(many, []) is many
