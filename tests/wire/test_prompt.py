"""Lengths of prompts, and that they are text unless the tier allows media."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orjson
import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.table import API_OF
from gateway.wire.body.content import MEDIA_BYTES
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse

from .bodies import CAPS, CHAT, COMPLETION, EMBEDDINGS, MESSAGES, RESPONSES, read

MEDIA = dataclasses.replace(CAPS, media=True)
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat_bytes(*messages: dict[str, Any], **fields: Any) -> int:
    return read(Endpoint.CHAT, {**CHAT, "messages": list(messages), **fields}).prompt_bytes


def compact(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize(("text", "length"), [("hello", 5), ("", 0), ("é", 2), ("日本", 6), ("😀", 4)])
def test_text_of_a_prompt_counts_in_utf8_bytes(text: str, length: int) -> None:
    assert chat_bytes({"role": "user", "content": text}) == length
    assert chat_bytes({"role": "user", "content": [{"type": "text", "text": text}]}) == length
    assert read(Endpoint.COMPLETIONS, {**COMPLETION, "prompt": text}).prompt_bytes == length
    assert read(Endpoint.RESPONSES, {**RESPONSES, "input": text}).prompt_bytes == length


def test_prompt_bytes_of_a_message_include_names_and_tool_calls() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    user = {"role": "user", "content": "hi", "name": "bob"}
    assert chat_bytes(user) == len("hi" + "bob")
    for content in ({}, {"content": None}):
        assert chat_bytes(user, {"role": "assistant", "tool_calls": calls, **content}) == 5 + compact(calls)
    assert chat_bytes({"role": "tool", "tool_call_id": "c", "content": "42"}) == 3
    assert chat_bytes({"role": "assistant", "content": "x", "reasoning_content": "because"}) == 8
    assert chat_bytes({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}) == 2


@pytest.mark.parametrize("field", ["tools", "functions", "documents"])
def test_tools_and_schemas_count_as_prompt_bytes(field: str) -> None:
    value = [{"type": "function", "function": {"name": "f", "description": "d" * 100}}]
    assert chat_bytes({"role": "user", "content": "hi"}, **{field: value}) == 2 + compact(value)


def test_response_schema_counts_as_prompt_bytes() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    assert chat_bytes({"role": "user", "content": "hi"}, response_format=schema) == 2 + compact(schema)
    text = {"format": schema}
    assert read(Endpoint.RESPONSES, {**RESPONSES, "text": text}).prompt_bytes == 2 + compact(text)


def test_all_parts_of_an_anthropic_conversation_count_as_prompt_bytes() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    document = {
        **MESSAGES,
        "system": [{"type": "text", "text": "12345"}],
        "tools": tools,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "123", "cache_control": None}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1234"}]},
                    {"type": "tool_result", "tool_use_id": "t", "content": "12"},
                ],
            },
        ],
    }
    assert read(Endpoint.MESSAGES, document).prompt_bytes == 5 + compact(tools) + 3 + (2 + compact({"a": 1})) + 5 + 3


def test_all_parts_of_a_responses_conversation_count_as_prompt_bytes() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "123"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "12", "annotations": []}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "1"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1234"},
    ]
    parsed = read(Endpoint.RESPONSES, {**RESPONSES, "instructions": "12345", "input": items})
    assert parsed.prompt_bytes == 5 + 3 + (2 + 2) + 1 + (1 + 1 + 2) + (1 + 4)


@pytest.mark.parametrize(("endpoint", "field"), [(Endpoint.COMPLETIONS, "prompt"), (Endpoint.EMBEDDINGS, "input")])
@pytest.mark.parametrize(
    ("value", "size", "exact", "batch"),
    [
        ("abc", 3, None, 1),
        (["abc", "é"], 5, None, 2),
        ([1, 2, 3], 12, 3, 1),
        ([[1, 2], [3]], 12, 3, 2),
    ],
)
def test_size_of_texts_token_ids_and_batches_is_read(
    endpoint: Endpoint, field: str, value: object, size: int, exact: int | None, batch: int
) -> None:
    document = {**(COMPLETION if endpoint is Endpoint.COMPLETIONS else EMBEDDINGS), field: value}
    parsed = read(endpoint, document)
    assert (parsed.prompt_bytes, parsed.prompt_exact, parsed.choices) == (size, exact, batch)


def test_completion_suffix_turns_an_exact_prompt_count_into_an_estimate() -> None:
    parsed = read(Endpoint.COMPLETIONS, {**COMPLETION, "prompt": [1, 2], "suffix": "the end"})
    assert (parsed.prompt_bytes, parsed.prompt_exact) == (15, None)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1, 2.0], "prompt[1]"),
        ([-1], "prompt"),
        ([2**31], "prompt"),
        (["a", 1], "prompt[1]"),
        (["a", None], "prompt[1]"),
        ([None], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [True]], "prompt[1][0]"),
        (["a"] * 257, "prompt"),
        ([[1]] * 257, "prompt"),
    ],
)
def test_malformed_prompt_is_refused_by_field(value: object, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(Endpoint.COMPLETIONS, {**COMPLETION, "prompt": value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hi", "messages"),
        ([], "messages"),
        ({}, "messages"),
        (["hi"], "messages[0]"),
        ([None], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": 5, "content": "hi"}], "messages[0].role"),
        ([{"role": "r" * 65, "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", **{f"k{i}": 1 for i in range(64)}}], "messages[0]"),
        ([{"role": "user", "content": "x"}] * 20_001, "messages"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * 20_001}], "messages[0].content"),
    ],
)
def test_malformed_message_is_refused_by_field(messages: object, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(Endpoint.CHAT, {**CHAT, "messages": messages})
    assert caught.value.field == field


def test_content_nested_in_tool_results_is_refused_if_too_deep() -> None:
    part: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(4):
        part = {"type": "tool_result", "content": [part]}
    with pytest.raises(BadRequest, match="nested too deeply"):
        read(Endpoint.MESSAGES, {**MESSAGES, "messages": [{"role": "user", "content": [part]}]})


MEDIA_PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    {"type": "input_image", "image_url": PIXEL},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklGRg=="}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
]


@pytest.mark.parametrize("part", MEDIA_PARTS, ids=lambda part: part["type"])
def test_media_part_is_refused_unless_the_tier_allows_media(part: dict[str, Any]) -> None:
    document = {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]}
    with pytest.raises(BadRequest) as caught:
        read(Endpoint.CHAT, document)
    assert caught.value.field == "messages[0].content[1]"
    parsed = read(Endpoint.CHAT, document, MEDIA)
    assert parsed.prompt_bytes == 3 + MEDIA_BYTES
    assert parsed.fields["messages"] == document["messages"]


def test_null_and_unknown_fields_beside_media_are_passed_on_and_counted() -> None:
    nulls = {"type": "image_url", "image_url": {"url": PIXEL}, "text": None, "input_audio": None}
    hints = {"type": "image_url", "image_url": {"url": PIXEL}, "min_pixels": 3136}
    texts = {"type": "refusal", "refusal": "no", "text": None}
    document = {**CHAT, "messages": [{"role": "user", "content": [nulls, hints, texts]}]}
    parsed = read(Endpoint.CHAT, document, MEDIA)
    assert parsed.fields["messages"] == document["messages"]
    assert parsed.prompt_bytes == 2 * MEDIA_BYTES + len("3136") + len("no")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "/etc/passwd.png"}},
        {"type": "image_url", "image_url": {"url": [PIXEL]}},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url"},
        {"type": "input_image", "image_url": "https://example.com/x.png"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "video_url", "video_url": {"url": "ftp://example.com/x"}},
        {"type": "image", "source": {"type": "url", "url": "http://example.com/x.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "image_url", "image_url": {"url": PIXEL}, "audio_url": {"url": "http://10.0.0.1"}},
        {"type": "image_url", "image_url": {"url": PIXEL}, "uuid": "someone-else's"},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "document", "source": {"type": "text", "data": "x"}},
    ],
)
def test_media_with_a_remote_url_is_refused_in_every_tier(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[0\]"):
        read(Endpoint.CHAT, {**CHAT, "messages": [{"role": "user", "content": [part]}]}, MEDIA)


@pytest.mark.parametrize("caps", [CAPS, MEDIA])
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "x", "image_url": {"url": "http://10.0.0.1"}}]},
        {"role": "user", "content": [{"type": "text", "text": "x", "Image_URL": {"url": "http://10.0.0.1"}}]},
        {"role": "user", "content": [{"type": "text", "text": "x", "prompt_embeds": "AAAA"}]},
        {"role": "user", "content": [{"type": "text", "image_url": "http://10.0.0.1"}]},
        {"role": "user", "content": [{"type": "text", "uuid": "x", "video_url": {"url": "http://10.0.0.1"}}]},
        {"role": "user", "image_url": "http://10.0.0.1"},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
    ],
)
def test_media_field_inside_a_text_part_is_refused(message: dict[str, Any], caps: Caps) -> None:
    with pytest.raises(BadRequest, match="must not be here: send media"):
        read(Endpoint.CHAT, {**CHAT, "messages": [message]}, caps)


def test_media_in_a_tool_result_needs_a_tier_that_allows_media() -> None:
    content = [{"type": "tool_result", "tool_use_id": "t", "content": [MEDIA_PARTS[-1]]}]
    document = {**MESSAGES, "messages": [{"role": "user", "content": content}]}
    assert read(Endpoint.MESSAGES, document, MEDIA).prompt_bytes == 1 + MEDIA_BYTES


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ("hi", "input[0]"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0]"),
        ({"type": "computer_call_output", "output": {}}, "input"),
        ({"type": None, "role": "user"}, "input[0].type"),
        ({"content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}, "input[0].content[0]"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"text": "hi"}]}, "input[0].output[0].type"),
    ],
)
def test_a_refusal_names_the_input_item_that_is_not_served(item: object, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(Endpoint.RESPONSES, {**RESPONSES, "input": [item]})
    assert caught.value.field == field


GRAMMAR = "x" * 2**20
REST = {
    "guided_regex": GRAMMAR,
    "guided_grammar": GRAMMAR,
    "guided_choice": [GRAMMAR],
    "guided_json": {"title": GRAMMAR},
    "guided_whitespace_pattern": GRAMMAR,
    "regex": GRAMMAR,
    "ebnf": GRAMMAR,
    "json_schema": GRAMMAR,
    "structural_tag": GRAMMAR,
    "structured_outputs": {"regex": GRAMMAR},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"title": GRAMMAR}}},
    "bad_words": [GRAMMAR],
    "logit_bias": {GRAMMAR: 1},
    "metadata": {"a": GRAMMAR},
}


@pytest.mark.parametrize("name", [*REST, "function_call", "tool_choice"])
def test_field_that_the_engine_reads_or_compiles_counts_like_the_prompt(name: str) -> None:
    given = {name: REST.get(name, {"name": GRAMMAR})}
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert parse(Endpoint.CHAT, orjson.dumps(chat | given), Caps()).prompt_bytes >= 2**20
    if name in REST:
        text = {"model": "m", "prompt": "hi"}
        assert parse(Endpoint.COMPLETIONS, orjson.dumps(text | given), Caps()).prompt_bytes >= 2**20
        ids = parse(Endpoint.COMPLETIONS, orjson.dumps({"model": "m", "prompt": [1, 2]} | given), Caps())
        assert ids.prompt_exact is not None
        assert ids.prompt_exact >= 2**18, "a token for each four bytes"


@pytest.mark.parametrize("endpoint", [e for e in Endpoint if "audio" not in e.value])
def test_no_field_of_any_api_is_long_and_unmeasured(endpoint: Endpoint) -> None:
    """A field either counts, or is refused or dropped if it is long."""
    api = API_OF[endpoint]
    bare = {"model": "m", **MINIMAL[api.name]}
    if api.shape.measured is None:
        return  # no GPU reads it
    for name in api.shape.rules:
        for value in (GRAMMAR, [GRAMMAR], {"a": GRAMMAR}, {"content": GRAMMAR, "type": GRAMMAR, "effort": GRAMMAR}):
            try:
                parsed = parse(endpoint, orjson.dumps(bare | {name: value}), Caps(stored_responses=True, media=True))
            except BadRequest:
                continue
            sent = len(render(parsed, "m", 0))
            assert sent < 2**16 or parsed.prompt_bytes >= 2**20, name


MINIMAL: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "a"}]},
    "completions": {"prompt": "a"},
    "embeddings": {"input": "a"},
    "responses": {"input": "a"},
    "messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
    "rerank": {"query": "a", "documents": ["a"]},
    "score": {"text_1": "a", "text_2": "a"},
    "pooling": {"input": "a"},
    "classify": {"input": "a"},
    "tokenize": {},
    "detokenize": {},
}


@pytest.mark.parametrize("name", ["user", "safety_identifier", "prompt_cache_key"])
def test_name_of_a_user_or_conversation_has_at_most_512_bytes(name: str) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    parse(Endpoint.CHAT, orjson.dumps(chat | {name: "é" * 256}), Caps())
    for long in ("x" * 513, "é" * 257):
        with pytest.raises(BadRequest, match=f"{name}: must be at most 512 bytes long"):
            parse(Endpoint.CHAT, orjson.dumps(chat | {name: long}), Caps())
