"""Prefixes of prompts: equal beginnings have equal leading blocks, whatever the rest of the request."""

import base64
import copy
import random
import struct
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.request import Prefix
from gateway.wire import prefix as prefix_module
from gateway.wire.body.content import MEDIA_BYTES
from gateway.wire.body.placeholders import Placeholders
from gateway.wire.prefix import MAX_BLOCKS, MAX_BYTES, SMALL_BYTES, first_of, prefix_after, prefix_of
from tests.interpreted import interpreted

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=3000)}),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(MESSAGES, MESSAGES)
def test_next_turn_of_a_conversation_begins_with_the_same_prefix_blocks(
    said: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    before, after = prefix_of({"messages": said}), prefix_of({"messages": said + more, "temperature": 0.5})
    assert after.blocks[: len(before.blocks) - 1] == before.blocks[:-1], "the last block may hold the closing bracket"
    for prefix in (before, after):
        assert len(prefix.blocks) == len(prefix.ends) == len(set(prefix.blocks))
        assert list(prefix.ends) == sorted(prefix.ends)
        assert not prefix.ends or prefix.ends[-1] <= prefix.size < prefix.ends[-1] + 2048


def test_prompts_with_different_system_prompts_share_no_prefix() -> None:
    messages = [{"role": "user", "content": "x" * 5000}]
    one, two = (prefix_of({"system": system, "messages": messages}) for system in ("You are one.", "You are two."))
    assert not set(one.blocks) & set(two.blocks)


def test_prefix_has_tools_before_messages_whatever_the_order_of_fields() -> None:
    fields = {"tools": [{"type": "function", "name": "f" * 900}], "messages": [{"role": "user", "content": "x" * 1900}]}
    assert prefix_of(fields) == prefix_of(dict(reversed(fields.items())))


def test_text_and_token_id_prompts_have_prefixes() -> None:
    assert prefix_of({"prompt": "x" * 2050}).ends == tuple(SMALL_BYTES * n for n in range(1, 5))
    assert len(prefix_of({"prompt": list(range(1000))}).blocks) > 1
    assert len(prefix_of({"input": "x" * 1200, "instructions": "y" * 1200}).blocks) == 4


def test_a_prompt_below_two_kilobytes_has_no_prefix_blocks() -> None:
    assert prefix_of({"messages": [{"role": "user", "content": "x" * 1900}]}).blocks == ()


def test_adapters_share_no_blocks_with_each_other_or_with_their_model() -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 5000}]}
    base, one, two = (set(prefix_of(fields, adapter).blocks) for adapter in ("", "one", "two"))
    assert base
    assert not base & one
    assert not one & two
    assert one == set(prefix_of(fields, "one").blocks)


def picture(seed: int, width: int = 560) -> str:
    """A PNG of 900 kB in base64: 400 tokens at 560 x 560 pixels."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, width, 8, 6, 0, 0, 0)
    return base64.b64encode(head + random.Random(seed).randbytes(675_000)).decode()


def shown(data: str, said: str = "What is it?") -> list[dict[str, Any]]:
    """A conversation that begins with text, and then shows a picture."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return [
        {"role": "system", "content": "s" * 3000},
        {"role": "user", "content": [image, {"type": "text", "text": said}]},
    ]


def with_media(messages: list[dict[str, Any]]) -> Prefix:
    placeholders = Placeholders({"messages": messages})
    assert placeholders.count
    return prefix_of(placeholders.fields, has_media=True)


def test_picture_counts_in_a_prefix_by_its_tokens_and_not_by_its_data() -> None:
    text = prefix_of({"messages": shown("")})
    one, large = with_media(shown(picture(1))), with_media(shown(picture(1, 1120)))
    assert one.size - text.size == 4 * (20 * 20) - len("data:image/png;base64,")
    assert large.size - one.size == 4 * (40 * 40 - 20 * 20)
    assert one.has_media
    assert not text.has_media


def test_prefix_differs_between_two_pictures() -> None:
    one, same, other = (with_media(shown(data)) for data in (picture(1), picture(1), picture(2)))
    assert one == same
    assert one.size == other.size
    shared = sum(a == b for a, b in zip(one.blocks, other.blocks, strict=True))
    assert one.ends[shared - 1] <= 3100 < one.ends[shared], "they part at the picture"


def test_text_behind_large_pictures_is_hashed_too() -> None:
    data = [picture(seed) for seed in range(4)]
    messages = [message for each in data for message in shown(each)]
    one, other = (with_media([*messages, {"role": "user", "content": said * 3000}]) for said in "ab")
    assert sum(map(len, data)) > 2**21, "as many bytes as an index has blocks for"
    assert one.blocks != other.blocks
    assert one.blocks[:8] == other.blocks[:8]


def test_audio_and_pictures_without_a_size_count_as_the_flat_estimate() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 400_000, "format": "wav"}}
    source = {"type": "image", "source": {"type": "base64", "data": "A" * 400_000}}
    for part in (sound, source):
        nested = {"type": "tool_result", "tool_use_id": "t", "content": [part]}
        for content in (part, nested):
            messages = [{"role": "user", "content": [content]}]
            assert MEDIA_BYTES < with_media(messages).size < MEDIA_BYTES + 200


def test_placeholders_leave_the_request_as_it_was_sent() -> None:
    fields: dict[str, Any] = {"messages": shown(picture(1)), "system": [{"type": "text", "text": "x"}]}
    before = copy.deepcopy(fields)
    assert Placeholders(fields).fields != fields
    assert fields == before
    text = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    assert Placeholders(text).fields is text


def test_continued_response_with_the_same_system_prompt_shares_the_prefix_blocks() -> None:
    fields = {"instructions": "Be brief. " * 300, "input": "Go on. " * 300}
    first = prefix_of(fields)
    stored = Prefix(first.blocks, first.ends, first.size + 800)
    more = {"instructions": fields["instructions"], "input": "And now?"}
    assert first_of(more, "") == first_of(fields, "")
    assert first_of({"input": "And now?"}, "") != first_of(fields, "") != first_of(fields, "adapter")
    same = prefix_after(stored, more, True, "resp_1")
    assert same.blocks[:-1] == first.blocks
    assert same.ends[-1] == same.size > stored.size
    assert prefix_after(stored, more, True, "resp_1") == same
    for other in (prefix_after(stored, more, False, "resp_1"), prefix_after(stored, more, True, "resp_2")):
        assert other.blocks[-1:] != same.blocks[-1:] or len(other.blocks) == 1
        assert other.size == same.size


def test_a_continued_response_shares_no_block_with_one_that_has_another_system_prompt() -> None:
    stored = Prefix((1, 2), (2000, 4000), 4800)
    asked = [{"instructions": rules, "input": "And now?"} for rules in ("Be brief.", "Be long.", "Be brief.")]
    same, *others = [prefix_after(stored, fields, False, "resp_1").blocks for fields in asked]
    goes_on = prefix_after(stored, asked[0], True, "resp_1").blocks
    assert same == others[1] != others[0]
    assert not set(goes_on) & {*same, *others[0]}


def test_short_continued_response_has_a_prefix_size_but_no_blocks() -> None:
    short = prefix_after(Prefix(size=300), {"input": "And now?"}, True, "resp_1")
    assert (short.blocks, short.size) == ((), 300 + len('"And now?"'))
    assert len(prefix_after(Prefix(size=3000), {"input": "And now?"}, True, "resp_1").blocks) == 1


@pytest.mark.parametrize("name", ["messages", "input", "prompt", ""])
@pytest.mark.parametrize("others", [{}, {"tools": [{"a": "\n"}], "metadata": {"b": "c"}}])
def test_prefix_of_a_long_prompt_is_the_same_when_read_from_its_payload(name: str, others: dict[str, Any]) -> None:
    long = [{"role": "user", "content": f"{number} \n" * 400_000} for number in range(2)]
    fields = {"system": "Be brief.", **others, **({name: long} if name else {"metadata": long}), "top_p": 0.5}
    assert prefix_of(fields, payload=orjson.dumps(fields)) == prefix_of(fields)


@interpreted
def test_long_conversation_is_not_written_again_for_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"messages": [{"role": "user", "content": "\n" * MAX_BYTES}], "top_p": 0.5}
    payload, written = orjson.dumps(fields), list[int]()

    def dumps(value: object) -> bytes:
        written.append(len(orjson.dumps(value)))
        return orjson.dumps(value)

    monkeypatch.setattr(prefix_module, "orjson", SimpleNamespace(dumps=dumps))
    assert len(prefix_of(fields, payload=payload).blocks) == MAX_BLOCKS
    assert sum(written) < 10
