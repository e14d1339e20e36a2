"""Refused bodies: each error names the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.core.results import Reason
from gateway.wire.apis.table import API_OF
from gateway.wire.fingerprint import fingerprint
from gateway.wire.render import render
from gateway.wire.request import BadRequest, only_of, parse

from .bodies import CAPS, CHAT, MESSAGES, MINIMAL, RESPONSES, read


def refusal(endpoint: Endpoint, document: dict[str, Any], caps: Caps = CAPS) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(endpoint, document, caps)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b'{"model":"a"',
        b'{"model":"a"} {}',
        b'{"model":"a"}\x00',
        '{"model":"a"}'.encode("utf-16"),
        '{"model":"a"}'.encode("utf-16-le"),
        '{"model":"a"}'.encode("utf-32"),
        b'{"model":"\xff"}',
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":-Infinity}',
        b'{"temperature":1e400}',
        b"{'model':'a'}",
        b'{"model":"a",}',
        b'{"max_tokens":0x10}',
        b'{"max_tokens":+7}',
        b'{"max_tokens":1_000}',
        b'{"max_tokens":007}',
    ],
)
@pytest.mark.parametrize("endpoint", MINIMAL)
def test_only_a_json_object_in_utf8_is_read(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(endpoint, body, CAPS)
    assert (caught.value.field, caught.value.why, caught.value.code) == (None, Reason.BAD_REQUEST, None)
    assert caught.value.message.startswith("the body")


@pytest.mark.parametrize("depth", [254, 255, 1000, 1024, 1025, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_body_nested_too_deeply_is_refused(depth: int, opening: str, closing: str) -> None:
    deep = opening * depth + "1" + closing * depth
    body = f'{{"model":"a","messages":[{{"role":"user","content":"x"}}],"metadata":{deep}}}'
    with pytest.raises(BadRequest, match="the body"):
        parse(Endpoint.CHAT, body.encode(), CAPS)


@pytest.mark.parametrize("endpoint", MINIMAL)
def test_field_nested_too_deeply_to_be_rendered_is_refused_or_dropped(endpoint: Endpoint) -> None:
    deep: Any = orjson.loads("[" * 400 + "]" * 400)
    for name in API_OF[endpoint].shape.rules:
        for inner in ("type", "display", "a", "include_usage", "enable_thinking"):
            for value in (deep, [deep], {inner: deep}, [{inner: deep}]):
                document = {**MINIMAL[endpoint], name: value, **({"stream": True} if name == "stream_options" else {})}
                try:
                    parsed = parse(endpoint, json.dumps(document).encode(), CAPS)
                except BadRequest:
                    continue
                render(parsed, "m", 10)
                fingerprint(parsed)


def test_nesting_within_the_limit_is_accepted() -> None:
    body = '{"model":"a","messages":[{"role":"user","content":"x"}],"metadata":' + "[" * 253 + "]" * 253 + "}"
    assert parse(Endpoint.CHAT, body.encode(), CAPS).changed == ()


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (Endpoint.CHAT, "messages"),
        (Endpoint.COMPLETIONS, "prompt"),
        (Endpoint.EMBEDDINGS, "input"),
        (Endpoint.RESPONSES, "input"),
        (Endpoint.MESSAGES, "messages"),
        (Endpoint.MESSAGES, "max_tokens"),
    ],
)
def test_a_refusal_names_the_required_field_that_is_missing(endpoint: Endpoint, name: str) -> None:
    for document in (
        {key: value for key, value in MINIMAL[endpoint].items() if key != name},
        {**MINIMAL[endpoint], name: None},
    ):
        refused = refusal(endpoint, document)
        assert (refused.field, refused.code) == (name, "missing_required_parameter")
        assert refused.message == f"{name}: field required"


def unnamed(names: list[str]) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        only_of(names)
    return refused.value


def test_refusal_of_a_request_without_a_model_names_the_models_to_choose_from() -> None:
    assert unnamed([]).message == "model: field required"
    assert unnamed(["a", "b"]).message == "model: field required: name one of a, b"
    many = unnamed([f"m{number}" for number in range(40)])
    assert many.message.endswith("m14, m15 and 24 more")
    assert (many.field, many.code) == ("model", "missing_required_parameter")


NOT_INTEGERS = [True, False, 5.0, 5.5, 1e5, "5", "1_000", "+7", " 5", [5], {"value": 5}, "", 10**30]
OUT_OF_BOUNDS = [0, -1, 2**53 + 1, 2**63, -(2**63), 2**64 - 1]


@pytest.mark.parametrize("value", NOT_INTEGERS)
@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (Endpoint.CHAT, "max_tokens"),
        (Endpoint.CHAT, "max_completion_tokens"),
        (Endpoint.COMPLETIONS, "max_tokens"),
        (Endpoint.RESPONSES, "max_output_tokens"),
        (Endpoint.MESSAGES, "max_tokens"),
        (Endpoint.CHAT, "n"),
        (Endpoint.COMPLETIONS, "best_of"),
        (Endpoint.CHAT, "min_tokens"),
        (Endpoint.CHAT, "top_logprobs"),
        (Endpoint.COMPLETIONS, "logprobs"),
        (Endpoint.CHAT, "prompt_logprobs"),
        (Endpoint.CHAT, "thinking_token_budget"),
        (Endpoint.EMBEDDINGS, "dimensions"),
    ],
)
def test_non_integer_count_is_refused_as_invalid_type(endpoint: Endpoint, name: str, value: object) -> None:
    refused = refusal(endpoint, {**MINIMAL[endpoint], name: value})
    assert (refused.field, refused.code) == (name, "invalid_type")


@pytest.mark.parametrize("value", OUT_OF_BOUNDS)
@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (Endpoint.CHAT, "max_tokens"),
        (Endpoint.CHAT, "max_completion_tokens"),
        (Endpoint.COMPLETIONS, "max_tokens"),
        (Endpoint.RESPONSES, "max_output_tokens"),
        (Endpoint.MESSAGES, "max_tokens"),
        (Endpoint.CHAT, "n"),
        (Endpoint.COMPLETIONS, "best_of"),
    ],
)
def test_integers_out_of_bounds_are_refused(endpoint: Endpoint, name: str, value: int) -> None:
    if (endpoint, name, value) == (Endpoint.COMPLETIONS, "max_tokens", 0):
        return  # only the prompt is asked for
    assert refusal(endpoint, {**MINIMAL[endpoint], name: value}).field == name


@pytest.mark.parametrize(
    ("endpoint", "fields", "name", "bound"),
    [
        (Endpoint.CHAT, {"n": 5}, "n", "at most 4"),
        (Endpoint.COMPLETIONS, {"n": 5}, "n", "at most 4"),
        (Endpoint.COMPLETIONS, {"best_of": 5}, "best_of", "at most 4"),
        (Endpoint.CHAT, {"logprobs": True, "top_logprobs": 6}, "top_logprobs", "at most 5"),
        (Endpoint.CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "at least 0"),
        (Endpoint.RESPONSES, {"top_logprobs": 6}, "top_logprobs", "at most 5"),
        (Endpoint.COMPLETIONS, {"logprobs": 6}, "logprobs", "at most 5"),
        (Endpoint.CHAT, {"prompt_logprobs": 3}, "prompt_logprobs", "at most 2"),
        (Endpoint.CHAT, {"prompt_logprobs": -1}, "prompt_logprobs", "at least 0"),
        (Endpoint.CHAT, {"logprobs": True, "logprob_token_ids": [1] * 6}, "logprob_token_ids", "at most 5"),
        # With `echo`, vLLM treats `logprobs` as `prompt_logprobs`.
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 3}, "logprobs", "at most 2"),
    ],
)
def test_field_that_changes_the_answer_format_is_refused(
    endpoint: Endpoint, fields: dict[str, Any], name: str, bound: str
) -> None:
    refused = refusal(endpoint, {**MINIMAL[endpoint], **fields})
    assert refused.field == name
    assert bound in refused.message


@pytest.mark.parametrize(
    ("endpoint", "fields", "name"),
    [
        (Endpoint.CHAT, {"logprobs": True}, "logprobs"),
        (Endpoint.CHAT, {"top_logprobs": 1}, "top_logprobs"),
        (Endpoint.COMPLETIONS, {"logprobs": 0}, "logprobs"),
        (Endpoint.CHAT, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (Endpoint.CHAT, {"logprob_token_ids": [1]}, "logprob_token_ids"),
        (Endpoint.RESPONSES, {"include": ["message.output_text.logprobs"]}, "include"),
    ],
)
def test_log_probabilities_can_be_forbidden(endpoint: Endpoint, fields: dict[str, Any], name: str) -> None:
    caps = Caps(top_logprobs=0, prompt_logprobs=0)
    assert refusal(endpoint, {**MINIMAL[endpoint], **fields}, caps).field == name
    read(endpoint, {**MINIMAL[endpoint], "logprobs": False} if endpoint is Endpoint.CHAT else MINIMAL[endpoint], caps)


DISGUISES = {
    "Max_Tokens": "max_tokens",
    "MAX_TOKENS": "max_tokens",
    "max_to\u212aens": "max_tokens",  # the Kelvin sign
    "\u017ftream": "stream",
    "STREAM": "stream",
    "\uff4e": "n",
    "N": "n",
    "max_tokens ": "max_tokens",
    "Priority": "priority",
    "Ignore_EOS": "ignore_eos",
}


@pytest.mark.parametrize(("disguise", "name"), DISGUISES.items())
def test_known_field_name_in_other_letter_case_is_refused(disguise: str, name: str) -> None:
    refused = refusal(Endpoint.CHAT, {**CHAT, disguise: 1})
    assert (refused.field, refused.code) == (name, "unknown_parameter")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {str(i): True for i in range(17)}}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stop": 1}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"model": 5}, "model"),
        ({"model": "a" * 257}, "model"),
        ({"model": "a\r\nx: 1"}, "model"),
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"documents": [{}] * 1025}, "documents"),
        # vLLM 0.32 answers 500 to these
        ({"tools": [{"type": "function"}], "tool_choice": {"function": {"name": "f"}}}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": None}}]}, "tools[0].function"),
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"response_format": [1]}, "response_format"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"logprobs": 1}, "logprobs"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "x" * 65}, "reasoning_effort"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({f"field{i}": 1 for i in range(255)}, None),
    ],
)
def test_malformed_request_field_is_refused_by_name(fields: dict[str, Any], name: str | None) -> None:
    assert refusal(Endpoint.CHAT, {**CHAT, **fields}).field == name


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"background": True}, "background"),
        ({"background": "true"}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_input_messages": [{}]}, "previous_input_messages"),
        ({"store": "yes"}, "store"),
        ({"reasoning": "high"}, "reasoning"),
    ],
)
def test_responses_that_need_state_are_refused(fields: dict[str, Any], name: str) -> None:
    assert refusal(Endpoint.RESPONSES, {**RESPONSES, **fields}).field == name


@pytest.mark.parametrize("fields", [{"background": True}, {"input": [{"type": "item_reference", "id": "msg_1"}]}])
def test_refusal_in_a_tier_with_stored_responses_does_not_say_that_none_is_kept(fields: dict[str, Any]) -> None:
    refused = refusal(Endpoint.RESPONSES, {**RESPONSES, **fields}, replace(CAPS, stored_responses=True))
    assert "is not served here" in str(refused)
    assert "kept" not in str(refused)


@pytest.mark.parametrize("budget", [True, "5", 2.0, 0, -1, None, 2**60])
def test_the_budget_of_anthropic_thinking_is_a_real_integer(budget: object) -> None:
    document = {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": budget}}
    assert refusal(Endpoint.MESSAGES, document).field == "thinking.budget_tokens"


@pytest.mark.parametrize("value", ["x", [1], ["a"] * 5])
def test_stop_sequences_of_messages_are_a_short_list(value: object) -> None:
    assert str(refusal(Endpoint.MESSAGES, {**MESSAGES, "stop_sequences": value}).field).startswith("stop_sequences")
