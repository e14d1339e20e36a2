"""Chat completions, through the official client and on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from loadtests.emulator import Emulator

from .wire import chat

HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{emulator.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_emulated_stream_has_the_text_of_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="emulated", messages=HELLO)
    stream = await client.chat.completions.create(
        model="emulated", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    told, wanted = chunks[-1].usage.model_dump(exclude_none=True), whole.usage.model_dump(exclude_none=True)
    assert told == wanted
    assert len([c for c in chunks if c.choices]) == 1 + whole.usage.completion_tokens


async def test_emulated_stream_has_usage_only_if_requested(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="emulated", messages=HELLO, stream=True, max_tokens=4)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


async def test_emulated_continuous_usage_counts_up(client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.chat.completions.create(
        model="emulated", messages=HELLO, stream=True, max_tokens=4, stream_options=options
    )
    assert [c.usage.completion_tokens async for c in stream if c.usage] == [0, 1, 2, 3, 4, 4]


async def test_emulated_stream_has_one_http_chunk_per_event_and_ends_with_done(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, chat(stream=True, max_tokens=5, stream_options={"include_usage": True}))
    answer = await wire.answer()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.ended
    assert len(answer.chunks) == 1 + 5 + 1 + 1
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in answer.chunks)
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    role, *tokens, usage = answer.events()[:-1]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None] * 4 + ["length"]
    assert usage["choices"] == []


async def test_emulated_answer_is_a_function_of_the_request(emulator: Emulator) -> None:
    said = []
    for url in emulator.urls:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            for content in ("Hello there", "Who is it?"):
                messages = [{"role": "user", "content": content}]
                answer = await client.chat.completions.create(model="emulated", messages=messages, max_tokens=64)
                said.append(answer.choices[0].message.content)
    assert said[:2] == said[2:]
    assert said[0] != said[1]


async def test_emulated_choices_differ_and_each_counts_its_tokens(client: openai.AsyncOpenAI) -> None:
    body = {"ignore_eos": True}
    whole = await client.chat.completions.create(
        model="emulated", messages=HELLO, n=3, max_tokens=8, seed=7, extra_body=body
    )
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole.usage.completion_tokens == 24
    stream = await client.chat.completions.create(
        model="emulated", messages=HELLO, n=3, max_tokens=8, seed=7, stream=True, extra_body=body
    )
    streamed = ["", "", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({"max_tokens": 5}, 5, "length"),
        ({"max_tokens": 50, "max_completion_tokens": 5}, 5, "length"),
        ({"max_tokens": "5"}, 5, "length"),
        ({"max_tokens": 5.0}, 5, "length"),
        ({"max_tokens": True}, 1, "length"),
        ({"max_tokens": 300, "min_tokens": 300}, 300, "length"),
        ({"max_tokens": 2000, "ignore_eos": True}, 2000, "length"),
        ({"ignore_eos": True, "max_tokens": 4096}, 4096 - 10, "length"),
    ],
)
async def test_emulated_output_length_follows_the_token_fields(
    client: openai.AsyncOpenAI, fields: dict[str, object], tokens: int, reason: str
) -> None:
    answer = await client.chat.completions.create(model="emulated", messages=HELLO, extra_body=fields)
    assert answer.usage.prompt_tokens == 3 + 4 + 3  # generation prompt, message, 11 bytes
    assert answer.usage.completion_tokens == tokens
    assert answer.choices[0].finish_reason == reason


async def test_emulated_lengths_are_drawn_with_the_given_median() -> None:
    lengths = []
    async with (
        Emulator(profile="test", output_median_tokens=40, output_sigma=0.5) as emulator,
        openai.AsyncOpenAI(base_url=f"{emulator.url}/v1", api_key="none") as client,
    ):
        for number in range(200):
            messages = [{"role": "user", "content": f"Question {number}"}]
            answer = await client.chat.completions.create(model="emulated", messages=messages)
            assert answer.choices[0].finish_reason == "stop"
            lengths.append(answer.usage.completion_tokens)
    assert 34 <= sorted(lengths)[100] <= 47
    assert min(lengths) < 25
    assert max(lengths) > 70


async def test_emulated_answer_ends_before_its_stop_string(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="emulated", messages=HELLO, max_tokens=40, extra_body={"ignore_eos": True}
    )
    text = whole.choices[0].message.content
    stop = text[30:37]  # across tokens
    stopped = await client.chat.completions.create(
        model="emulated", messages=HELLO, max_tokens=40, stop=["never said", stop], extra_body={"ignore_eos": True}
    )
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra["stop_reason"] == stop
    assert stopped.usage.completion_tokens < 40


async def test_emulated_log_probabilities_cover_every_token(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="emulated", messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True}
    )
    tokens = whole.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == whole.choices[0].message.content
    assert all(bytes(token.bytes).decode() == token.token and token.logprob < 0 for token in tokens)
    assert [len(token.top_logprobs) for token in tokens] == [3] * 6
    stream = await client.chat.completions.create(
        model="emulated",
        messages=HELLO,
        max_tokens=6,
        logprobs=True,
        top_logprobs=2,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    streamed = [
        t for chunk in [c async for c in stream] if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content
    ]
    assert streamed == tokens
