"""Whole answers that are assembled from a stream cannot be told from others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest

from gateway.app import Gateway
from gateway.core.results import Outcome, Reason
from loadtests.emulator import Emulator
from tests.scorecard.waiting import until

from .conftest import Start
from .policies import HELLO, KEY, MODEL
from .scripted import Scripted, scripted

Openai = Callable[..., openai.AsyncOpenAI]
Anthropic = Callable[..., anthropic.AsyncAnthropic]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
AGGREGATE = "aggregate: true"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture
async def post() -> AsyncIterator[Callable[..., Any]]:
    """`await post(gateway, path, **fields)`: the answer as it is on the wire."""
    async with httpx.AsyncClient(trust_env=False) as client:

        async def post(gateway: Gateway, path: str, **fields: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {KEY}"}
            return await client.post(f"{gateway.url}{path}", json={"model": MODEL} | fields, headers=headers)

        yield post


def _undated(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without its varying fields. A message gets `stop_sequence`, which vLLM leaves out if it is null."""
    text = json.dumps({name: value for name, value in answer.items() if name not in ("created", "created_at")})
    text = text.replace(', "stop_sequence": null', "")
    number = answer["id"].rpartition("_" if "_" in answer["id"] else "-")[2]
    undated = json.loads(text.replace(number, "ID"))
    details = undated["usage"].get("prompt_tokens_details")
    if details is not None:  # vLLM leaves nulls out of a stream's usage
        undated["usage"]["prompt_tokens_details"] = {
            name: count for name, count in details.items() if count is not None
        }
    return undated


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": HELLO, "max_tokens": 9}),
        (CHAT, {"messages": HELLO, "max_tokens": 2000}),
        (CHAT, {"messages": HELLO, "max_tokens": 7, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"messages": HELLO, "max_tokens": 7, "stop": [" the"]}),
        (COMPLETIONS, {"prompt": "Hello", "max_tokens": 9}),
        (COMPLETIONS, {"prompt": "Hello", "max_tokens": 6, "logprobs": 3}),
        (COMPLETIONS, {"prompt": ["Hello", "Good bye", "Well"], "max_tokens": 5}),
        (RESPONSES, {"input": "Hello", "max_output_tokens": 9}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 9}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 2000}),
    ],
)
async def test_assembled_answer_equals_the_answer_in_one_piece(
    start: Start, post: Callable[..., Any], replicas: Emulator, path: str, fields: dict[str, Any]
) -> None:
    plain, assembling = await start(), await start(tier=AGGREGATE)
    one, other = await post(plain, path, **fields), await post(assembling, path, **fields)
    assert _undated(one.json()) == _undated(other.json())
    assert one.headers["content-type"] == other.headers["content-type"]
    bodies = [json.loads(received.body) for replica in replicas.replicas for received in replica.requests]
    assert sorted(bool(body.get("stream")) for body in bodies) == [False, True]


async def test_assembled_answer_with_several_choices_is_refused_by_name(start: Start, openai_of: Openai) -> None:
    client = openai_of(await start(tier=AGGREGATE))
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model=MODEL, messages=HELLO, n=2)
    assert raised.value.param == "n"
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, n=2, max_tokens=2, stream=True)
    assert {choice.index async for chunk in stream for choice in chunk.choices} == {0, 1}


# ---- answers that emulated replicas do not give


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> tuple[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return "", {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        **more,
    }


def _end(finish: str) -> list[tuple[str, object]]:
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    return [
        _chunk({}, finish),
        ("", {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage}),
        ("", "[DONE]"),
    ]


def _call(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments}
    if name is None:
        return {"tool_calls": [{"index": index, "function": function}]}
    return {
        "tool_calls": [
            {"index": index, "id": f"call-{index}", "type": "function", "function": function | {"name": name}}
        ]
    }


@pytest.fixture
async def script() -> AsyncIterator[Scripted]:
    async with scripted() as replica:
        yield replica


async def test_interleaved_tool_calls_are_assembled(start: Start, openai_of: Openai, script: Scripted) -> None:
    script.events = [
        _chunk({"role": "assistant", "content": ""}),
        _chunk(_call(0, "weather", "")),
        _chunk(_call(0, None, '{"pla')),
        _chunk(_call(1, "weather", '{"place": ')),
        _chunk(_call(0, None, 'ce": "Oslo"}')),
        _chunk(_call(1, None, '"Rome"}')),
        *_end("tool_calls"),
    ]
    gateway = await start([script.url], tier=AGGREGATE)
    answer = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    calls = [(call.id, call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [
        ("call-0", "function", "weather", '{"place": "Oslo"}'),
        ("call-1", "function", "weather", '{"place": "Rome"}'),
    ]
    assert answer.usage.total_tokens == 16


async def test_reasoning_and_refusal_are_assembled(start: Start, openai_of: Openai, script: Scripted) -> None:
    parts = [
        {"reasoning": "Let me "},
        {"reasoning": "see."},
        {"content": "I "},
        {"content": "won't."},
        {"refusal": "No"},
    ]
    script.events = [_chunk({"role": "assistant", "content": ""}), *map(_chunk, parts), *_end("stop")]
    gateway = await start([script.url], tier=AGGREGATE)
    message = (await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO)).choices[0].message
    assert (cast(Any, message).reasoning, message.content, message.refusal) == ("Let me see.", "I won't.", "No")


async def test_message_with_thinking_and_a_tool_call_is_assembled(
    start: Start, anthropic_of: Anthropic, script: Scripted
) -> None:
    def event(kind: str, **fields: Any) -> tuple[str, object]:
        return kind, {"type": kind, **fields}

    def block(index: int, what: dict[str, Any], *deltas: dict[str, Any]) -> list[tuple[str, object]]:
        return [
            event("content_block_start", index=index, content_block=what),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        ]

    start_of: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": MODEL,
        "stop_reason": None,
    }
    tool = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    script.events = [
        event("message_start", message={**start_of, "usage": {"input_tokens": 9, "output_tokens": 0}}),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm, "},
            {"type": "thinking_delta", "thinking": "well."},
            {"type": "signature_delta", "signature": "sig"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Let me look."}),
        *block(2, tool, *({"type": "input_json_delta", "partial_json": part} for part in ('{"pl', 'ace": "Oslo"}'))),
        event("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 7}),
        event("message_stop"),
    ]
    gateway = await start([script.url], tier=AGGREGATE)
    message = await anthropic_of(gateway).messages.create(model=MODEL, messages=HELLO, max_tokens=99)
    thinking, text, use = message.content
    assert (thinking.thinking, thinking.signature) == ("Hm, well.", "sig")
    assert text.text == "Let me look."
    assert (use.name, use.input) == ("weather", {"place": "Oslo"})
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (9, 7)


# ---- answers that fail, or take too long


async def _an_hour_later(gateway: Gateway, tokens: int) -> None:
    driver = gateway.driver
    await until(lambda: any(request.tokens_seen >= tokens for request in driver.requests))
    driver.wake(monotonic() + 3600.0)


SLOW = f"{AGGREGATE}, timeouts: {{ttft: none, idle: none, total: 1h}}"


@pytest.mark.parametrize(
    ("path", "fields", "before"),
    [
        (CHAT, {"messages": HELLO, "max_tokens": 99}, 1),
        (COMPLETIONS, {"prompt": "Hello", "max_tokens": 99}, 0),
        (RESPONSES, {"input": "Hello", "max_output_tokens": 99}, 4),
        (MESSAGES, {"messages": HELLO, "max_tokens": 99}, 2),
    ],
)
async def test_assembled_answer_at_its_total_timeout_has_the_text_so_far(
    start: Start, post: Callable[..., Any], replicas: Emulator, path: str, fields: dict[str, Any], before: int
) -> None:
    gateway = await start(tier=SLOW)
    for replica in replicas.replicas:
        replica.fault("stall", after_events=before + 5)
    time = asyncio.create_task(_an_hour_later(gateway, 5))
    response = await post(gateway, path, **fields)
    await time
    assert response.status_code == 200
    answer = response.json()
    assert answer["tailgate"] == {"cut": "total-timeout", "usage": "estimated"}
    usage = answer["usage"]
    assert usage["completion_tokens" if "completion_tokens" in usage else "output_tokens"] == 5
    text, why = {
        CHAT: lambda: (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]),
        COMPLETIONS: lambda: (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]),
        RESPONSES: lambda: (answer["output"][0]["content"][0]["text"], answer["status"]),
        MESSAGES: lambda: (answer["content"][0]["text"], answer["stop_reason"]),
    }[path]()
    assert len(text.split()) == 5
    assert why in ("length", "incomplete", "max_tokens")
    (lane,) = gateway.metrics.lanes.values()
    assert lane.requests == {(MODEL, Outcome.CUT, Reason.TOTAL_TIMEOUT): [1]}


async def test_assembled_answer_at_its_total_timeout_is_a_504_where_the_tier_says_error(
    start: Start, post: Callable[..., Any], replicas: Emulator
) -> None:
    gateway = await start(tier=SLOW.replace("total: 1h", "total: 1h, on_total: error"))
    for replica in replicas.replicas:
        replica.fault("stall", after_events=6)
    time = asyncio.create_task(_an_hour_later(gateway, 5))
    response = await post(gateway, CHAT, messages=HELLO)
    await time
    assert (response.status_code, response.headers["x-tailgate-reason"]) == (504, "total-timeout")


async def test_assembled_answer_of_a_broken_stream_is_an_error(
    start: Start, post: Callable[..., Any], replicas: Emulator
) -> None:
    gateway = await start(tier=AGGREGATE)
    for replica in replicas.replicas:
        replica.fault("truncated", after_events=6)
    response = await post(gateway, CHAT, messages=HELLO)
    assert (response.status_code, response.headers["x-tailgate-reason"]) == (502, "upstream-truncated")
    assert response.json()["error"]["code"] == "upstream_truncated"


async def test_assembled_answer_that_falls_silent_after_its_first_token_is_a_504(
    start: Start, post: Callable[..., Any], replicas: Emulator
) -> None:
    gateway = await start(tier=f"{AGGREGATE}, timeouts: {{idle: 100ms}}")
    for replica in replicas.replicas:
        replica.fault("stall", after_events=6)
    response = await post(gateway, CHAT, messages=HELLO)
    assert (response.status_code, response.headers["x-tailgate-reason"]) == (504, "idle-timeout")


async def test_stream_that_cannot_be_assembled_is_a_502(
    start: Start, post: Callable[..., Any], script: Scripted
) -> None:
    strange = {"index": 0, "delta": {"content": "a", "tool_calls": [{"function": 5}]}, "finish_reason": None}
    script.events = [_chunk({"content": "a"}), ("", {"id": "c", "choices": [strange]}), *_end("stop")]
    gateway = await start([script.url], tier=AGGREGATE)
    response = await post(gateway, CHAT, messages=HELLO)
    assert (response.status_code, response.headers["x-tailgate-reason"]) == (502, "upstream-unreadable")


async def test_answer_of_an_engine_that_does_not_stream_is_passed_on(
    start: Start, openai_of: Openai, script: Scripted
) -> None:
    script.streams = False
    message = {"role": "assistant", "content": "Hello"}
    script.whole = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    gateway = await start([script.url], tier=AGGREGATE)
    answer = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Hello"
