"""Histories of clients: the remains of one answer do not break the rest of the session."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.body.tool_results import left_out
from gateway.wire.request import BadRequest, parse

from .agents import CLAUDE_CODE, CODEX_FIRST, CODEX_LATER, PICTURE, SHELL, said
from .bodies import CHAT, MESSAGES, RESPONSES, read, sent

MEDIA = Caps(media=True)
NO_IMAGE = left_out("image")


def test_later_request_of_codex_reaches_the_engine_as_calls_and_messages() -> None:
    items = sent(Endpoint.RESPONSES, CODEX_LATER)["input"]
    assert items == [
        *CODEX_FIRST["input"],
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a plan"}]},
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a.py"}]},
        {"type": "function_call", "name": "mcp__disk__list_files", "arguments": "{}", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": "b.py"},
        {"type": "function_call", "call_id": "c3", "name": "apply_patch", "arguments": '{"input":"+1"}'},
        {"call_id": "c3", "output": "Done.", "type": "function_call_output"},
        {"type": "function_call", "call_id": "c4", "name": "local_shell", "arguments": '{"command":["pwd"]}'},
        {"type": "function_call_output", "call_id": "c4", "output": "/home"},
        {**said("assistant", "Hello."), "phase": "final_answer"},
        said("user", "Once more."),
    ]


def test_answer_to_a_later_request_of_codex_names_what_was_dropped_from_its_history() -> None:
    changed = read(Endpoint.RESPONSES, {**CODEX_LATER, "tools": []}).changed
    assert {name for name in changed if name.startswith("input.")} == {
        *("input.web_search_call", "input.custom_tool_call", "input.custom_tool_call_output"),
        *("input.local_shell_call", "input.tool_search_call", "input.tool_search_output"),
        *("input.compaction", "input.encrypted_content"),
    }


def test_output_of_a_dropped_tool_call_is_dropped_too() -> None:
    items = [
        {"type": "computer_call", "call_id": "c1", "action": {}},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"type": "function_call_output", "call_id": ["c1"], "output": "y"},
    ]
    document = {**RESPONSES, "input": [*items, said("user", "hi")]}
    assert sent(Endpoint.RESPONSES, document)["input"] == [items[2], said("user", "hi")]


def test_reference_to_reasoning_is_dropped_and_one_to_a_message_is_refused_with_advice() -> None:
    """The AI SDK refers to the reasoning and messages of earlier answers, unless it is told that nothing is stored."""
    items = [
        said("user", "hi"),
        {"type": "item_reference", "id": "rs_1"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    parsed = read(Endpoint.RESPONSES, {**RESPONSES, "input": items})
    assert parsed.fields["input"] == [items[0], *items[2:]]
    assert parsed.changed == ("input.item_reference",)
    for item_id in ("msg_1", None, 5):
        with pytest.raises(BadRequest, match=r"input\[4\]: item_reference is not served here.*store: false"):
            read(Endpoint.RESPONSES, {**RESPONSES, "input": [*items, {"type": "item_reference", "id": item_id}]})


def test_responses_input_with_no_servable_item_is_refused() -> None:
    with pytest.raises(BadRequest, match="input: must hold a message"):
        read(Endpoint.RESPONSES, {**RESPONSES, "input": [{"type": "compaction", "encrypted_content": "x"}]})


def test_tools_inside_the_input_are_added_to_tools() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [SHELL]}
    document = sent(Endpoint.RESPONSES, {**RESPONSES, "input": [item, said("user", "hi")]})
    assert (document["tools"], document["input"]) == ([SHELL], [said("user", "hi")])


def test_claude_codes_picture_in_a_result_becomes_a_text_in_a_tier_without_media() -> None:
    request = read(Endpoint.MESSAGES, CLAUDE_CODE)
    document = sent(Endpoint.MESSAGES, CLAUDE_CODE)
    assert document["messages"][2]["content"][0]["content"] == [{"type": "text", "text": NO_IMAGE}]
    assert "tool_result.image" in request.changed
    assert sent(Endpoint.MESSAGES, CLAUDE_CODE, caps=MEDIA)["messages"][2] == CLAUDE_CODE["messages"][2]


def test_blocks_of_anthropics_server_tools_are_dropped_and_named() -> None:
    document = sent(Endpoint.MESSAGES, CLAUDE_CODE)
    assert [block["type"] for block in document["messages"][1]["content"]] == ["thinking", "tool_use"]
    assert {"messages.server_tool_use", "messages.web_search_tool_result"} <= set(
        read(Endpoint.MESSAGES, CLAUDE_CODE).changed
    )


def test_message_whose_blocks_are_all_dropped_becomes_empty() -> None:
    message = {"role": "assistant", "content": [{"type": "compaction", "content": "x"}]}
    assert sent(Endpoint.MESSAGES, {**MESSAGES, "messages": [message]})["messages"] == [
        {"role": "assistant", "content": ""}
    ]


def test_picture_in_an_output_becomes_a_text_in_a_tier_without_media() -> None:
    item = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:,"}]}
    document = {**RESPONSES, "input": [item, said("user", "hi")]}
    assert sent(Endpoint.RESPONSES, document)["input"][0]["output"] == [{"type": "input_text", "text": NO_IMAGE}]
    assert read(Endpoint.RESPONSES, document).changed == ("tool_result.input_image",)
    assert sent(Endpoint.RESPONSES, document, caps=MEDIA)["input"][0] == item


def test_file_in_a_result_becomes_a_text_in_every_tier() -> None:
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block, {"type": "text", "text": "two pages"}]}
    document = {**MESSAGES, "messages": [{"role": "user", "content": [result]}]}
    for caps in (Caps(), MEDIA):
        content = sent(Endpoint.MESSAGES, document, caps=caps)["messages"][0]["content"][0]["content"]
        assert content == [{"type": "text", "text": left_out("document")}, {"type": "text", "text": "two pages"}]
    assert read(Endpoint.MESSAGES, document).changed == ("tool_result.document",)


def test_picture_in_a_user_message_is_refused_in_a_tier_without_media() -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\]\.content\[0\]: images"):
        read(Endpoint.MESSAGES, {**MESSAGES, "messages": [{"role": "user", "content": [PICTURE]}]})


def test_deep_nesting_beside_content_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    for endpoint, document in (
        (Endpoint.CHAT, {**CHAT, "messages": [{"role": "user", "content": "hi", "x": deep}]}),
        (Endpoint.RESPONSES, {**RESPONSES, "input": [{"type": "custom_tool_call", "input": deep}]}),
    ):
        with pytest.raises(BadRequest, match="nested too deeply"):
            read(endpoint, document)


def test_number_of_items_is_checked_before_any_item_is_read() -> None:
    items = [{"type": "additional_tools", "tools": [SHELL, 7]}] * 20_001
    with pytest.raises(BadRequest, match="input: must have at most 20000 entries"):
        parse(Endpoint.RESPONSES, orjson.dumps({"model": "m", "input": items}), Caps(), 10**6)


def test_tools_in_many_items_of_the_input_are_collected_once() -> None:
    message = {"type": "message", "role": "user", "content": "hi"}
    tools = [{**SHELL, "name": f"f{number}"} for number in range(1000)]
    items = [message, *({"type": "additional_tools", "tools": [tool]} for tool in tools)]
    asked = {"model": "m", "input": items, "tools": [SHELL]}
    parsed = parse(Endpoint.RESPONSES, orjson.dumps(asked), Caps())
    assert parsed.fields["tools"] == [SHELL, *tools]
