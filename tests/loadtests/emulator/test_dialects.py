"""The other endpoints, through the official clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from loadtests.emulator import Emulator

from .wire import generation


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{emulator.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(emulator: Emulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=emulator.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("prompt", "choices", "prompt_tokens"),
    [("Hello there", 1, 3), (["Hello there", "b"], 2, 4), ([5, 6, 7], 1, 3), ([[5, 6, 7], [8]], 2, 4)],
)
async def test_emulated_completions_accept_text_token_ids_and_batches(
    client: openai.AsyncOpenAI, prompt: object, choices: int, prompt_tokens: int
) -> None:
    body = {"ignore_eos": True}
    whole = await client.completions.create(model="emulated", prompt=prompt, max_tokens=7, extra_body=body)
    assert [choice.index for choice in whole.choices] == list(range(choices))
    assert whole.usage.prompt_tokens == prompt_tokens
    assert whole.usage.completion_tokens == 7 * choices
    stream = await client.completions.create(
        model="emulated",
        prompt=prompt,
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=body,
    )
    chunks = [chunk async for chunk in stream]
    texts = [""] * choices
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert chunks[-1].usage.model_dump(exclude_none=True) == whole.usage.model_dump(exclude_none=True)


async def test_completions_report_log_probabilities_with_offsets(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="emulated", prompt="Hello", max_tokens=4, logprobs=2)
    logprobs = whole.choices[0].logprobs
    text = whole.choices[0].text
    assert [text[at : at + len(token)] for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True)] == (
        logprobs.tokens
    )
    assert [len(top) for top in logprobs.top_logprobs] == [3] * 4


async def test_emulated_embeddings_are_floats_or_base64(client: openai.AsyncOpenAI) -> None:
    plain = await client.embeddings.create(model="emulated", input=["Hello there", "b"], encoding_format="float")
    packed = await client.embeddings.create(model="emulated", input=["Hello there", "b"])
    assert [entry.index for entry in plain.data] == [0, 1]
    assert plain.data[0].embedding == pytest.approx(packed.data[0].embedding, abs=1e-6)
    assert plain.data[0].embedding != plain.data[1].embedding
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == 4


async def test_streamed_and_whole_responses_are_answered(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="emulated", input="Hello there", max_output_tokens=9)
    assert whole.usage.output_tokens == 9
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = await client.responses.create(model="emulated", input="Hello there", max_output_tokens=9, stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[4:13] == ["response.output_text.delta"] * 9
    assert types[13:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events[4:13]) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage


async def test_emulated_response_that_ends_by_itself_has_status_completed(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(model="emulated", input=[{"role": "user", "content": "Hello"}])
    assert (whole.status, whole.incomplete_details) == ("completed", None)


async def test_streamed_and_whole_messages_are_answered(claude: anthropic.AsyncAnthropic) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    whole = await claude.messages.create(model="emulated", max_tokens=9, messages=messages)
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (10, 9)
    assert whole.stop_reason == "max_tokens"
    async with claude.messages.stream(model="emulated", max_tokens=9, messages=messages) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert types[0] == "message_start"
    assert types[-1] == "message_stop"
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 9)


async def test_emulated_message_stops_at_a_stop_sequence_or_the_end_of_the_turn(
    claude: anthropic.AsyncAnthropic,
) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    whole = await claude.messages.create(model="emulated", max_tokens=4000, messages=messages)
    assert whole.stop_reason == "end_turn"
    stop = whole.content[0].text[10:13]
    stopped = await claude.messages.create(model="emulated", max_tokens=4000, messages=messages, stop_sequences=[stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == whole.content[0].text[: whole.content[0].text.index(stop)]


async def test_emulated_message_stream_has_named_events_and_no_done(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, generation("/v1/messages", stream=True, max_tokens=3))
    answer = await wire.answer()
    names = [chunk.split(b"\n")[0].decode() for chunk in answer.chunks]
    assert names == [
        "event: message_start",
        "event: content_block_start",
        *["event: content_block_delta"] * 3,
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
    ]


async def test_emulated_prompt_tokens_include_system_prompts_and_tools(
    claude: anthropic.AsyncAnthropic, client: openai.AsyncOpenAI
) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    plain = await claude.messages.create(model="emulated", max_tokens=1, messages=messages)
    led = await claude.messages.create(model="emulated", max_tokens=1, messages=messages, system="12345678")
    assert plain.usage.input_tokens == 10
    assert led.usage.input_tokens + (led.usage.cache_creation_input_tokens or 0) == 10 + 4 + 2
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    armed = await client.chat.completions.create(model="emulated", max_tokens=1, messages=messages, tools=[tool])
    assert armed.usage.prompt_tokens > 20
