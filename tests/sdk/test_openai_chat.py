"""Chat completions with OpenAI's client: whole and streamed, with tools, with usage and without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import openai
import pytest

from gateway.app import Gateway
from loadtests.emulator import Emulator

from .conftest import Start, in_thread
from .policies import ALIAS, HELLO, KEY, MODEL
from .scripted import Scripted, scripted

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


async def _texts(stream: openai.AsyncStream) -> list[str]:
    return [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]


@pytest.mark.parametrize("model", [MODEL, ALIAS])
async def test_streamed_chat_equals_the_whole_chat(chatting: openai.AsyncOpenAI, model: str) -> None:
    whole = await chatting.chat.completions.create(model=model, messages=HELLO, max_tokens=12)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    stream = await chatting.chat.completions.create(model=model, messages=HELLO, max_tokens=12, stream=True)
    texts = await _texts(stream)
    assert "".join(texts) == whole.choices[0].message.content
    assert len(texts) == 1 + 12, "a role, and one chunk for each token"


async def test_stream_has_usage_if_the_client_requested_it(chatting: openai.AsyncOpenAI, replicas: Emulator) -> None:
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 6, "stream": True}
    plain = [chunk async for chunk in await chatting.chat.completions.create(**ask)]
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    stream = await chatting.chat.completions.create(**ask, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 6
    # The gateway always asks for usage, to learn from it.
    bodies = [json.loads(received.body) for replica in replicas.replicas for received in replica.requests]
    assert [body["stream_options"] for body in bodies] == [{"include_usage": True}] * 2


async def test_openai_stream_helper_assembles_the_chat(chatting: openai.AsyncOpenAI) -> None:
    async with chatting.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=2000) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.delta" in kinds
    whole = await chatting.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2000)
    assert final.choices[0].message.content == whole.choices[0].message.content


async def test_blocking_openai_client_gets_a_chat(gateway: Gateway) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY) as client:
            whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=9)
            with client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=9, stream=True) as stream:
                return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    whole, streamed = await in_thread(ask)
    assert whole
    assert streamed == whole


async def test_several_choices_reach_the_client(chatting: openai.AsyncOpenAI) -> None:
    whole = await chatting.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=7, seed=1)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    said = ["", "", ""]
    async for chunk in await chatting.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, max_tokens=7, seed=1, stream=True
    ):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == texts


async def test_log_probabilities_and_stop_strings_reach_the_client(chatting: openai.AsyncOpenAI) -> None:
    whole = await chatting.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    )
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [3, 3, 3]
    words = (await chatting.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20)).choices[0].message
    stop = (words.content or "").split()[5]
    stopped = await chatting.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, stop=[f" {stop}"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in (stopped.choices[0].message.content or "").split()


async def test_answer_headers_name_tier_and_changed_fields(chatting: openai.AsyncOpenAI) -> None:
    raw = await chatting.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=200_000, extra_headers={"X-Request-Id": "mine-1"}, seed=5, stop=["the"]
    )
    assert raw.headers["x-tailgate-tier"] == "standard"
    assert raw.headers["x-tailgate-pool"] == "main"
    assert raw.headers["x-tailgate-max-tokens"].isdigit()
    completion = raw.parse()
    assert raw.request_id == completion._request_id == "mine-1"


@pytest.fixture
async def tool_caller() -> AsyncIterator[Scripted]:
    """A replica that calls a tool, as vLLM does."""
    async with scripted() as replica:
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        head = {"id": "c-1", "created": 1, "model": MODEL}
        usage = {"prompt_tokens": 90, "completion_tokens": 9, "total_tokens": 99}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        replica.whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
        head |= {"object": "chat.completion.chunk"}

        def chunk(finish: str | None = None, **delta: object) -> tuple[str, object]:
            return "", head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        def part(arguments: str, **more: object) -> tuple[str, object]:
            function = {"arguments": arguments} | ({"name": "weather"} if more else {})
            return chunk(tool_calls=[{"index": 0, "function": function} | more])

        replica.events = [
            chunk(role="assistant", content=""),
            part("", id="call_1", type="function"),
            part('{"place": '),
            part('"Ulm"}'),
            chunk("tool_calls"),
            ("", head | {"choices": [], "usage": usage}),
            ("", "[DONE]"),
        ]
        yield replica


async def test_openai_tool_call_reaches_the_client(
    start: Start, openai_of: Callable[..., openai.AsyncOpenAI], tool_caller: Scripted
) -> None:
    client = openai_of(await start(urls=[tool_caller.url]))
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="auto")
    (call,) = whole.choices[0].message.tool_calls or []
    assert (call.id, call.type) == ("call_1", "function")
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Ulm"})

    async with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="auto") as stream:
        final = await stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or []
    assert streamed.function.name == "weather"
    assert json.loads(streamed.function.arguments) == {"place": "Ulm"}
    assert final.choices[0].finish_reason == "tool_calls"

    # The result is sent back unchanged.
    answer = [*HELLO, whole.choices[0].message, {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
    await client.chat.completions.create(model=MODEL, messages=answer, tools=TOOLS)
    assert tool_caller.bodies[0]["tools"] == TOOLS
    assert tool_caller.bodies[-1]["messages"][1]["tool_calls"][0]["function"]["name"] == "weather"
    assert tool_caller.bodies[-1]["messages"][2] == answer[2]


async def test_tool_call_counts_as_a_first_token(
    start: Start, openai_of: Callable[..., openai.AsyncOpenAI], tool_caller: Scripted
) -> None:
    """The tool call commits the answer, which has no text."""
    gateway = await start(urls=[tool_caller.url])
    stream = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS, stream=True)
    assert len([chunk async for chunk in stream]) == len(tool_caller.events) - 2
    (cell,) = [cell for (tier, _, _), cell in gateway.metrics.cells.items() if tier == "standard"]
    assert sum(cell.ttft.counts) == 1
