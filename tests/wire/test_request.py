"""Accepted bodies: forwarded, clamped, and dropped fields with their report."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.table import API_OF
from gateway.wire.render import render
from gateway.wire.request import parse

from .bodies import CAPS, CHAT, COMPLETION, MESSAGES, MINIMAL, RESPONSES, read, sent


@pytest.mark.parametrize("endpoint", MINIMAL)
def test_minimal_request_of_each_endpoint_is_read(endpoint: Endpoint) -> None:
    parsed = read(endpoint, MINIMAL[endpoint])
    assert (parsed.endpoint, parsed.stream, parsed.wants_usage, parsed.changed) == (endpoint, False, False, ())
    assert parsed.model == MINIMAL[endpoint]["model"]
    assert parsed.choices == 1
    assert sent(endpoint, MINIMAL[endpoint])["model"] == "upstream"


ORDINARY: list[tuple[Endpoint, dict[str, Any]]] = [
    (
        Endpoint.CHAT,
        {
            "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "user": "u",
            "metadata": {"a": "b"}, "logit_bias": {"50256": -100},
            "frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
            "stop": ["a", "b"], "n": 2, "logprobs": True, "top_logprobs": 5, "reasoning_effort": "low",
            "structured_outputs": {"regex": "a+"}, "guided_json": {"type": "object"}, "min_tokens": 3,
            "stop_token_ids": [1, 2], "bad_words": ["x"], "chat_template_kwargs": {"enable_thinking": False},
            "skip_special_tokens": False, "include_stop_str_in_output": True, "prompt_logprobs": 1,
            "return_token_ids": True, "documents": [{"title": "t", "text": "x"}], "thinking_token_budget": 50,
        },
    ),
    (
        Endpoint.COMPLETIONS,
        {
            "suffix": "the end", "echo": True, "n": 2, "best_of": 3, "stop": "\n", "temperature": 0, "seed": 1,
            "frequency_penalty": 0.1, "user": "u", "logit_bias": {"1": 1}, "truncate_prompt_tokens": -1,
        },
    ),
    (Endpoint.COMPLETIONS, {"logprobs": 5}),
    (
        Endpoint.EMBEDDINGS,
        {"dimensions": 256, "encoding_format": "base64", "user": "u", "truncate_prompt_tokens": 512},
    ),
    (
        Endpoint.RESPONSES,
        {
            "instructions": "be brief", "temperature": 1, "top_p": 0.5, "metadata": {"k": "v"}, "truncation": "auto",
            "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "auto",
            "parallel_tool_calls": True, "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": {"type": "json_object"}}, "include": ["reasoning.encrypted_content"], "store": False,
            "top_logprobs": 2, "user": "u", "stop": ["x"],
        },
    ),
    (
        Endpoint.MESSAGES,
        {
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "temperature": 0.5, "top_k": 5, "top_p": 0.9, "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto"}, "output_config": {"effort": "low"}, "thinking": {"type": "disabled"},
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "fields"), ORDINARY)
def test_sdk_fields_pass_unchanged(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    document = {**MINIMAL[endpoint], **fields}
    assert read(endpoint, document).changed == ()
    forwarded = sent(endpoint, document)
    assert {name: forwarded[name] for name in document if name != "model" and name != "max_tokens"} == {
        name: value for name, value in document.items() if name != "model" and name != "max_tokens"
    }


@pytest.mark.parametrize("text", ["naïve", "日本語", "😀", '"\\\n\t\u2028\x00', "</script>"])
def test_text_of_a_message_is_forwarded_as_it_was_sent(text: str) -> None:
    document = {**CHAT, "messages": [{"role": "user", "content": text}]}
    assert sent(Endpoint.CHAT, document)["messages"] == document["messages"]


# ---- the output cap


@pytest.mark.parametrize(
    ("endpoint", "asked", "written"),
    [
        (Endpoint.CHAT, {}, {"max_tokens": 77}),
        (Endpoint.CHAT, {"max_tokens": 5}, {"max_tokens": 77}),
        (Endpoint.CHAT, {"max_completion_tokens": 5}, {"max_completion_tokens": 77}),
        (Endpoint.CHAT, {"max_tokens": 9, "max_completion_tokens": 5}, {"max_completion_tokens": 77}),
        (Endpoint.COMPLETIONS, {"max_tokens": 5}, {"max_tokens": 77}),
        (Endpoint.COMPLETIONS, {}, {"max_tokens": 77}),
        (Endpoint.RESPONSES, {}, {"max_output_tokens": 77}),
        (Endpoint.RESPONSES, {"max_output_tokens": 5}, {"max_output_tokens": 77}),
        (Endpoint.MESSAGES, {"max_tokens": 5}, {"max_tokens": 77}),
        (Endpoint.EMBEDDINGS, {}, {}),
    ],
)
def test_granted_output_cap_is_written_into_one_field(
    endpoint: Endpoint, asked: dict[str, int], written: dict[str, int]
) -> None:
    forwarded = sent(endpoint, {**MINIMAL[endpoint], **asked}, max_tokens=77)
    names = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
    assert {name: forwarded[name] for name in names if name in forwarded} == written


@pytest.mark.parametrize(
    ("asked", "expected", "changed"),
    [
        ({}, None, ()),
        ({"max_tokens": 5}, 5, ()),
        ({"max_tokens": 5000}, 5000, ("max_tokens",)),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7, ()),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5, ()),
    ],
)
def test_asked_token_cap_is_known_before_any_clamp(
    asked: dict[str, Any], expected: int | None, changed: tuple[str, ...]
) -> None:
    parsed = read(Endpoint.CHAT, {**CHAT, **asked})
    assert (parsed.max_tokens, parsed.changed) == (expected, changed)


def test_other_token_fields_are_lowered_to_the_granted_cap() -> None:
    forwarded = sent(Endpoint.CHAT, {**CHAT, "min_tokens": 500, "thinking_token_budget": 500}, max_tokens=50)
    assert (forwarded["min_tokens"], forwarded["thinking_token_budget"]) == (50, 50)
    assert read(Endpoint.CHAT, {**CHAT, "min_tokens": 5000}).changed == ("min_tokens",)


def test_unbounded_thinking_budget_is_dropped_since_the_output_cap_bounds_it() -> None:
    assert "thinking_token_budget" not in sent(Endpoint.CHAT, {**CHAT, "thinking_token_budget": -1})


@pytest.mark.parametrize(
    ("granted", "thinking"),
    [
        (4000, {"type": "enabled", "budget_tokens": 2000}),
        (2000, {"type": "enabled", "budget_tokens": 1999}),
        (1025, {"type": "enabled", "budget_tokens": 1024}),
        (1024, {"type": "disabled"}),
    ],
)
def test_anthropic_thinking_stays_below_the_granted_cap(granted: int, thinking: dict[str, Any]) -> None:
    document = {**MESSAGES, "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert sent(Endpoint.MESSAGES, document, max_tokens=granted)["thinking"] == thinking


# ---- fields that the gateway writes itself


def test_render_leaves_the_parsed_request_as_it_is() -> None:
    parsed = read(
        Endpoint.MESSAGES,
        {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 2000}, "stream": True},
        Caps(stop=("END",), engine_priority=3),
    )
    first = render(parsed, "a", 10)
    assert render(parsed, "a", 3000) != first
    assert render(parsed, "a", 10) == first


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize(
    ("options", "wants", "upstream"),
    [
        (None, False, {"include_usage": True}),
        ({}, False, {"include_usage": True}),
        ({"include_usage": False}, False, {"include_usage": True}),
        ({"include_usage": True}, True, {"include_usage": True}),
        ({"continuous_usage_stats": True}, False, {"include_usage": True}),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            True,
            {"include_usage": True, "continuous_usage_stats": True},
        ),
    ],
)
def test_usage_is_always_requested_from_engines_for_a_stream(
    endpoint: Endpoint, options: dict[str, bool] | None, wants: bool, upstream: dict[str, bool]
) -> None:
    document = {**MINIMAL[endpoint], "stream": True, "stream_options": options}
    assert read(endpoint, document).wants_usage is wants
    assert sent(endpoint, document)["stream_options"] == upstream


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_usage_is_not_requested_from_apis_that_always_stream_it(endpoint: Endpoint) -> None:
    document = {**MINIMAL[endpoint], "stream": True}
    assert "stream_options" not in sent(endpoint, document)
    document["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if endpoint is Endpoint.RESPONSES:
        assert "stream_options" not in sent(endpoint, document)


def test_usage_is_not_requested_from_engines_without_a_stream() -> None:
    assert "stream_options" not in sent(Endpoint.CHAT, {**CHAT, "stream": False})


@pytest.mark.parametrize(
    ("endpoint", "field", "own", "expected"),
    [
        (Endpoint.CHAT, "stop", None, ["END", "STOP"]),
        (Endpoint.CHAT, "stop", "x", ["x", "END", "STOP"]),
        (Endpoint.COMPLETIONS, "stop", ["a", "STOP"], ["a", "STOP", "END"]),
        (Endpoint.RESPONSES, "stop", [], ["END", "STOP"]),
        (Endpoint.MESSAGES, "stop_sequences", ["a", "b", "c", "d"], ["a", "b", "c", "d", "END", "STOP"]),
    ],
)
def test_stop_sequences_of_the_tier_are_added_to_those_of_the_client(
    endpoint: Endpoint, field: str, own: object, expected: list[str]
) -> None:
    forwarded = sent(endpoint, {**MINIMAL[endpoint], field: own}, caps=Caps(stop=("END", "STOP")))
    assert forwarded[field] == expected


@pytest.mark.parametrize("endpoint", MINIMAL)
def test_forwarded_priority_comes_from_the_tier_and_never_from_the_client(endpoint: Endpoint) -> None:
    document = {**MINIMAL[endpoint], "priority": -100}
    assert read(endpoint, document).changed == ("priority",)
    assert "priority" not in sent(endpoint, document)
    takes_one = API_OF[endpoint].shape.priority
    assert sent(endpoint, document, caps=Caps(engine_priority=7)).get("priority") == (7 if takes_one else None)


def test_a_forwarded_request_never_asks_an_engine_to_store_its_answer() -> None:
    assert sent(Endpoint.RESPONSES, RESPONSES)["store"] is False
    parsed = read(Endpoint.RESPONSES, {**RESPONSES, "store": True})
    assert (parsed.fields["store"], parsed.changed) == (False, ("store",))
    assert "store" not in sent(Endpoint.CHAT, {**CHAT, "store": True})
    assert "background" not in sent(Endpoint.RESPONSES, {**RESPONSES, "background": False})


# ---- dropped fields


@pytest.mark.parametrize(
    "name",
    [
        *("request_id", "cache_salt", "kv_transfer_params", "ec_transfer_params", "session_id", "service_tier"),
        *("bootstrap_host", "stream_interval", "brand_new_cost_field"),
    ],
)
@pytest.mark.parametrize("value", [True, 1, "x", {"a": 1}, ["x"]])
def test_control_and_unknown_fields_are_dropped_and_reported(name: str, value: object) -> None:
    document = {**CHAT, name: value}
    assert read(Endpoint.CHAT, document).changed == (name,)
    assert name not in sent(Endpoint.CHAT, document)


def test_unknown_stream_options_are_dropped_and_reported() -> None:
    document = {**CHAT, "stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    assert read(Endpoint.CHAT, document).changed == ("stream_options.include_obfuscation",)
    document = {**RESPONSES, "stream": True, "stream_options": {"include_obfuscation": False}}
    assert read(Endpoint.RESPONSES, document).changed == ("stream_options.include_obfuscation",)


def test_null_fields_count_as_absent() -> None:
    nulls = dict.fromkeys(["stop", "n", "max_tokens", "stream", "temperature", "tools", "logprobs", "user"])
    parsed = read(Endpoint.CHAT, {**CHAT, **nulls})
    assert (parsed.fields, parsed.changed) == ({"messages": CHAT["messages"]}, ())


def test_names_of_changed_fields_are_safe_in_a_header() -> None:
    names = ["evil\r\nx-injected: 1", "x" * 65, "ünïcode", "", *(f"f{i}" for i in range(40))]
    changed = read(Endpoint.CHAT, {**CHAT, **dict.fromkeys(names, 1)}).changed
    assert changed[:2] == ("?", "f0")
    assert len(changed) == 16
    assert all(name.isascii() and name.isprintable() and len(name) <= 64 for name in changed)


# ---- the facts of a request


@pytest.mark.parametrize(
    ("endpoint", "fields", "choices"),
    [
        (Endpoint.CHAT, {"n": 3}, 3),
        (Endpoint.COMPLETIONS, {"n": 2, "best_of": 4}, 4),
        (Endpoint.COMPLETIONS, {"n": 2, "prompt": ["a", "b", "c"]}, 6),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
    ],
)
def test_number_of_generated_sequences_is_read(endpoint: Endpoint, fields: dict[str, Any], choices: int) -> None:
    assert read(endpoint, {**MINIMAL[endpoint], **fields}).choices == choices


def test_request_with_duplicate_json_keys_is_forwarded_with_the_checked_values() -> None:
    body = b'{"model":"a","max_tokens":1000000,"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"n":1,"n":2}'
    parsed = parse(Endpoint.CHAT, body, CAPS)
    assert (parsed.max_tokens, parsed.choices) == (3, 2)
    assert render(parsed, "a", 3).count(b"max_tokens") == 1


def test_forwarded_request_has_no_max_tokens_without_a_cap() -> None:
    for endpoint, body in ((Endpoint.CHAT, CHAT), (Endpoint.COMPLETIONS, COMPLETION), (Endpoint.RESPONSES, RESPONSES)):
        parsed = parse(endpoint, orjson.dumps({**body, "min_tokens": 7}), Caps())
        document = orjson.loads(render(parsed, "m", 0))
        assert not {"max_tokens", "max_completion_tokens", "max_output_tokens"} & set(document)
        assert document.get("min_tokens", 7) == 7
        assert ("min_tokens" in document) == (endpoint is not Endpoint.RESPONSES)


@pytest.mark.parametrize("endpoint", MINIMAL)
def test_body_without_a_model_is_the_same_for_the_engine(endpoint: Endpoint) -> None:
    named = MINIMAL[endpoint]
    missing = {name: value for name, value in named.items() if name != "model"}
    for document in (missing, {**named, "model": None}):
        parsed = read(endpoint, document)
        assert (parsed.model, parsed.changed) == ("", ())
        assert sent(endpoint, document) == sent(endpoint, named)


def test_completion_may_ask_for_no_output_and_the_engine_is_told_so() -> None:
    body = {"model": "llama", "prompt": "once", "max_tokens": 0, "echo": True}
    parsed = parse(Endpoint.COMPLETIONS, orjson.dumps(body), CAPS)
    assert parsed.max_tokens == 0
    assert orjson.loads(render(parsed, "a", 0)) == body | {"model": "a"}
