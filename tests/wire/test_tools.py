"""Tools of clients: functions reach the engine; tools that the client does not run are dropped and named."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.request import Endpoint
from gateway.wire.request import BadRequest

from .agents import CLAUDE_CODE, CODEX_FIRST, LIST, PATCH, PLAN, READ, SEARCH, SERVER, SHELL
from .bodies import CHAT, MESSAGES, RESPONSES, read, sent

FUNCTION: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
CUSTOM: dict[str, Any] = {"type": "custom", "custom": {"name": "c"}}
BASH: dict[str, Any] = {"type": "bash_20250124", "name": "bash"}


def test_codex_first_request_is_served_with_its_functions() -> None:
    document = sent(Endpoint.RESPONSES, CODEX_FIRST)
    assert document["tools"] == [SHELL, PLAN, {**LIST, "name": "mcp__disk__list_files"}]
    assert document["include"] == ["reasoning.encrypted_content"]
    assert document["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert document["store"] is False
    kept = ("input", "instructions", "tool_choice", "parallel_tool_calls", "prompt_cache_key", "text", "stream")
    assert {name: document[name] for name in kept} == {name: CODEX_FIRST[name] for name in kept}
    assert set(read(Endpoint.RESPONSES, CODEX_FIRST).changed) == {
        *("tools.custom", "tools.web_search", "tools.tool_search", "tools.namespace"),
        *("include", "reasoning", "client_metadata", "service_tier", "stream_options.reasoning_summary_delivery"),
    }


def test_function_of_a_namespace_is_known_by_both_of_its_names() -> None:
    assert read(Endpoint.RESPONSES, CODEX_FIRST).renamed == {"mcp__disk__list_files": ("mcp__disk", "list_files")}


def test_second_function_with_the_same_flattened_name_is_dropped() -> None:
    other = {"type": "namespace", "name": "mcp", "tools": [{**LIST, "name": "disk__list_files"}]}
    document = {**RESPONSES, "tools": [SERVER, other]}
    assert [tool["name"] for tool in sent(Endpoint.RESPONSES, document)["tools"]] == ["mcp__disk__list_files"]
    assert read(Endpoint.RESPONSES, document).changed == ("tools.namespace", "tools.function")


def test_first_of_a_plain_and_a_flattened_function_of_one_name_is_kept() -> None:
    plain = {**LIST, "name": "mcp__disk__list_files", "description": "another"}
    for tools, left in (([SERVER, plain], {**LIST, "name": plain["name"]}), ([plain, SERVER], plain)):
        request = read(Endpoint.RESPONSES, {**RESPONSES, "tools": tools})
        assert request.fields["tools"] == [left]
        assert "tools.function" in request.changed
        assert bool(request.renamed) is (left is not plain)


def test_server_tool_of_claude_code_is_dropped_and_its_other_tools_remain() -> None:
    assert [tool["name"] for tool in sent(Endpoint.MESSAGES, CLAUDE_CODE)["tools"]] == ["Read", "Write"]
    assert "tools.web_search_20250305" in read(Endpoint.MESSAGES, CLAUDE_CODE).changed


def test_chat_tool_of_unknown_type_is_dropped() -> None:
    document = {**CHAT, "tools": [CUSTOM, FUNCTION], "tool_choice": "required"}
    assert sent(Endpoint.CHAT, document)["tools"] == [FUNCTION]
    assert sent(Endpoint.CHAT, document)["tool_choice"] == "required"
    assert read(Endpoint.CHAT, document).changed == ("tools.custom",)


@pytest.mark.parametrize(
    ("endpoint", "document"),
    [
        (Endpoint.CHAT, {**CHAT, "tools": [CUSTOM], "tool_choice": "auto", "parallel_tool_calls": True}),
        (Endpoint.RESPONSES, {**RESPONSES, "tools": [SEARCH], "tool_choice": "none"}),
        (Endpoint.RESPONSES, {**RESPONSES, "tools": [{**SERVER, "tools": []}], "parallel_tool_calls": False}),
        (Endpoint.MESSAGES, {**MESSAGES, "tools": [BASH], "tool_choice": {"type": "auto"}}),
    ],
)
def test_tool_choice_is_dropped_when_no_tool_is_left(endpoint: Endpoint, document: dict[str, Any]) -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & sent(endpoint, document).keys()


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_empty_list_of_tools_is_accepted(endpoint: Endpoint) -> None:
    document = {Endpoint.CHAT: CHAT, Endpoint.RESPONSES: RESPONSES, Endpoint.MESSAGES: MESSAGES}[endpoint]
    assert sent(endpoint, {**document, "tools": []})["tools"] == []


@pytest.mark.parametrize(
    ("endpoint", "tools", "choice"),
    [
        (Endpoint.CHAT, [CUSTOM, FUNCTION], {"type": "custom", "custom": {"name": "c"}}),
        (Endpoint.CHAT, [CUSTOM], "required"),
        (
            Endpoint.CHAT,
            [CUSTOM, FUNCTION],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CUSTOM]}},
        ),
        (Endpoint.RESPONSES, [SHELL, SEARCH], {"type": "web_search"}),
        (Endpoint.RESPONSES, [SHELL, PATCH], {"type": "custom", "name": "apply_patch"}),
        (Endpoint.RESPONSES, [SHELL, {"type": "mcp", "server_label": "x"}], {"type": "mcp", "server_label": "x"}),
        (Endpoint.RESPONSES, [SEARCH], "required"),
        (Endpoint.RESPONSES, [SHELL, SEARCH], {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}),
        (Endpoint.RESPONSES, [SHELL, SEARCH], {"type": "allowed_tools", "tools": 5}),
        (Endpoint.RESPONSES, [SHELL, SEARCH], ["auto"]),
        (Endpoint.MESSAGES, [READ, BASH], {"type": "tool", "name": "bash"}),
        (Endpoint.MESSAGES, [BASH], {"type": "any"}),
    ],
)
def test_tool_choice_of_a_dropped_tool_is_refused(endpoint: Endpoint, tools: list[Any], choice: object) -> None:
    document = {Endpoint.CHAT: CHAT, Endpoint.RESPONSES: RESPONSES, Endpoint.MESSAGES: MESSAGES}[endpoint]
    with pytest.raises(BadRequest, match="tool_choice"):
        read(endpoint, {**document, "tools": tools, "tool_choice": choice})


def test_tool_choice_of_a_function_in_a_namespace_is_renamed_too() -> None:
    choice = {"type": "function", "namespace": "mcp__disk", "name": "list_files"}
    document = sent(Endpoint.RESPONSES, {**RESPONSES, "tools": [SERVER, SEARCH], "tool_choice": choice})
    assert document["tool_choice"] == {"type": "function", "name": "mcp__disk__list_files"}


def test_tool_call_with_a_namespace_that_is_no_string_is_refused_by_field() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "namespace": 5, "arguments": "{}"}
    with pytest.raises(BadRequest, match=r"input\[0\]\.namespace"):
        read(Endpoint.RESPONSES, {**RESPONSES, "input": [call]})
    with pytest.raises(BadRequest, match=r"tool_choice\.namespace"):
        read(Endpoint.RESPONSES, {**RESPONSES, "tools": [SERVER], "tool_choice": {"namespace": 5, "name": "f"}})


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "namespace", "tools": []}, "tools[0].name"),
        ({"type": "namespace", "name": "n"}, "tools[0].tools"),
        ({"type": "namespace", "name": "n", "tools": ["f"]}, "tools[0].tools[0]"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
        ({"type": "namespace", "name": "n", "tools": [{**LIST, "name": str(i)} for i in range(1025)]}, "tools"),
    ],
)
def test_malformed_namespace_is_refused_by_name(tool: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(Endpoint.RESPONSES, {**RESPONSES, "tools": [tool]})
    assert caught.value.field == field
