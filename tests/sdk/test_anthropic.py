"""The Messages API with Anthropic's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest

from gateway.app import Gateway

from .conftest import Start, in_thread
from .policies import ALIAS, HELLO, KEY, MODEL
from .scripted import Scripted, scripted

TOOLS = [
    {
        "name": "weather",
        "description": "The weather at a place.",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    }
]


def _prompt_tokens(usage: anthropic.types.Usage) -> int:
    """All tokens of the prompt: vLLM's `input_tokens` leave out cached and newly cached ones."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


@pytest.mark.parametrize("model", [MODEL, ALIAS])
async def test_streamed_message_equals_the_whole_message(messaging: anthropic.AsyncAnthropic, model: str) -> None:
    whole = await messaging.messages.create(model=model, messages=HELLO, max_tokens=11, system="Be short.")
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 11
    async with messaging.messages.stream(model=model, messages=HELLO, max_tokens=11, system="Be short.") as stream:
        said = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(said) == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert _prompt_tokens(final.usage) == _prompt_tokens(whole.usage)


async def test_message_events_come_in_order(messaging: anthropic.AsyncAnthropic) -> None:
    stream = await messaging.messages.create(model=MODEL, messages=HELLO, max_tokens=3, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_stop_sequence_and_request_id_reach_the_client(messaging: anthropic.AsyncAnthropic) -> None:
    words = (await messaging.messages.create(model=MODEL, messages=HELLO, max_tokens=20)).content[0].text.split()
    stopped = await messaging.messages.create(
        model=MODEL, messages=HELLO, max_tokens=20, stop_sequences=[f" {words[4]}"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", f" {words[4]}")
    assert stopped._request_id


async def test_blocking_anthropic_client_is_served(gateway: Gateway) -> None:
    def ask() -> tuple[str, str]:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY) as client:
            whole = client.messages.create(model=MODEL, messages=HELLO, max_tokens=9)
            with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=9) as stream:
                return whole.content[0].text, "".join(stream.text_stream)

    whole, streamed = await in_thread(ask)
    assert whole
    assert streamed == whole


async def test_anthropic_sdk_auth_token_is_accepted_as_a_key(
    gateway: Gateway, anthropic_of: Callable[..., anthropic.AsyncAnthropic]
) -> None:
    client = anthropic_of(gateway, api_key=None, auth_token=KEY)
    assert (await client.messages.create(model=MODEL, messages=HELLO, max_tokens=2)).content


@pytest.fixture
async def tool_caller() -> AsyncIterator[Scripted]:
    """A replica that calls a tool, as vLLM does."""
    async with scripted() as replica:
        use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Ulm"}}
        message = {"id": "m-1", "type": "message", "role": "assistant", "model": MODEL}
        usage = {"input_tokens": 90, "output_tokens": 9}
        replica.whole = message | {"content": [use], "stop_reason": "tool_use", "stop_sequence": None, "usage": usage}
        start = message | {"content": list[Any](), "stop_reason": None, "stop_sequence": None, "usage": usage}
        pieces = ('{"place"', ': "Ulm"}')
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events: list[dict[str, object]] = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": use | {"input": {}}},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        replica.events = [(str(event["type"]), event) for event in events]
        yield replica


async def test_anthropic_tool_call_reaches_the_client(
    start: Start, anthropic_of: Callable[..., anthropic.AsyncAnthropic], tool_caller: Scripted
) -> None:
    client = anthropic_of(await start(urls=[tool_caller.url]))
    whole = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=99, tools=TOOLS)
    (use,) = whole.content
    assert (use.type, use.name, use.input) == ("tool_use", "weather", {"place": "Ulm"})
    async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=99, tools=TOOLS) as stream:
        final = await stream.get_final_message()
    assert final.content[0].input == {"place": "Ulm"}
    assert final.stop_reason == "tool_use"

    # The result is sent back unchanged.
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}
    told = [*HELLO, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    await client.messages.create(model=MODEL, messages=told, max_tokens=99, tools=TOOLS)
    assert tool_caller.bodies[0]["tools"] == TOOLS
    assert tool_caller.bodies[-1]["messages"][2]["content"] == [result]
    assert tool_caller.bodies[-1]["messages"][1]["content"][0]["name"] == "weather"


async def test_anthropic_sdk_counts_tokens(messaging: anthropic.AsyncAnthropic) -> None:
    counted = await messaging.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "x" * 1000}], system="Be brief."
    )
    assert 100 <= counted.input_tokens <= 600
    beta = await messaging.beta.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert 0 < beta.input_tokens < counted.input_tokens


async def test_message_batches_raise_an_error_class_of_the_sdk(messaging: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="Batches of messages are not served here"):
        await messaging.messages.batches.list()
