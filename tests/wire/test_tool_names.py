"""Names of functions in answers are the client's own."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.answers.tool_names import put_back

RENAMED = {"mcp__disk__ls": ("mcp__disk", "ls"), 'ü__"': ("ü", '"')}


def restored(document: Any, **how: Any) -> Any:
    return json.loads(b"".join(put_back([json.dumps(document, **how).encode()], RENAMED)))


def test_tool_call_gets_its_namespace_back_whatever_the_json_spelling() -> None:
    for flat, (namespace, name) in RENAMED.items():
        call = {"type": "function_call", "name": flat, "arguments": "{}"}
        for how in ({}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 1}):
            assert restored({"item": call}, **how) == {"item": {**call, "name": name, "namespace": namespace}}


def test_text_that_looks_like_a_tool_call_keeps_its_tool_name() -> None:
    document = {"delta": '{"name":"mcp__disk__ls"}', "name": "other", "arguments": '"name": "mcp__disk__ls"'}
    assert restored(document) == document


def test_renamed_tool_name_in_metadata_stays_while_the_call_gets_its_own_back() -> None:
    call = {"arguments": '{"type":"function"}', "name": "mcp__disk__ls", "type": "function_call"}
    metadata = {"name": "mcp__disk__ls", "inner": {"type": "function_call"}}
    for how in ({}, {"indent": 1}):
        found = restored({"metadata": metadata, "output": [call]}, **how)
        assert found == {"metadata": metadata, "output": [{**call, "name": "ls", "namespace": "mcp__disk"}]}


def test_tool_definition_echoed_in_an_answer_gets_its_name_back() -> None:
    tool = {"type": "function", "name": "mcp__disk__ls", "parameters": {"properties": {"name": {"type": "string"}}}}
    tool_back = restored({"tools": [tool]})["tools"]
    assert tool_back == [{**tool, "name": "ls", "namespace": "mcp__disk"}]


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_document_without_renamed_tool_calls_stays_unchanged(document: Any) -> None:
    data = json.dumps({"name": document}).encode()
    assert put_back([data], RENAMED) == [data]


def test_answer_bytes_that_are_no_json_stay_unchanged_by_tool_renaming() -> None:
    data = b'"name":"\xff\\q" "name": "unended'
    assert put_back([data], RENAMED) == [data]


def test_answer_that_echoes_thousands_of_tools_is_renamed_in_one_pass() -> None:
    # A scan for each name would take minutes and block all other clients.
    renamed = {f"n__f{i}": ("n", f"f{i}") for i in range(4000)}
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"type": "function", "name": name, "parameters": parameters} for name in renamed]
    (found,) = put_back([json.dumps({"tools": tools}).encode()], renamed)
    assert [(tool["namespace"], tool["name"]) for tool in json.loads(found)["tools"]] == list(renamed.values())


def test_unterminated_string_in_a_stream_is_passed_on_in_one_pass() -> None:
    data = b'{"name":"' + rb"\"a" * 300_000
    assert put_back([data], RENAMED) == [data]
