"""The other endpoints with OpenAI's client: completions, embeddings, responses, models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import openai
import pytest

from gateway.app import Gateway

from .conftest import in_thread
from .policies import ALIAS, KEY, MODEL


async def test_completions_are_answered(chatting: openai.AsyncOpenAI) -> None:
    whole = await chatting.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=10)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 10
    stream = await chatting.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=10, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    stream = await chatting.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=10, stream=True, stream_options={"include_usage": True}
    )
    *_, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.model_copy(update={"prompt_tokens_details": None}) == whole.usage.model_copy(
        update={"prompt_tokens_details": None}
    ), "but for what the engine has cached by now"


async def test_batch_of_completion_prompts_is_answered(chatting: openai.AsyncOpenAI) -> None:
    batch = await chatting.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=4)
    assert [choice.index for choice in batch.choices] == [0, 1]
    ids = await chatting.completions.create(model=MODEL, prompt=[1, 2, 3, 4, 5], max_tokens=4)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 5


async def test_transcription_is_answered(chatting: openai.AsyncOpenAI) -> None:
    """The client sends the file after the fields, and marks lists by brackets."""
    whole = await chatting.audio.transcriptions.create(
        model=ALIAS, file=("a.wav", bytes(64_000)), timestamp_granularities=["word"], temperature=0.2
    )
    bare = await chatting.audio.transcriptions.create(model=MODEL, file=bytes(64_000), response_format="text")
    assert whole.text == bare.strip() != ""


async def test_embeddings_are_answered(chatting: openai.AsyncOpenAI) -> None:
    """The client asks for Base64 by itself, and unpacks it."""
    unpacked = await chatting.embeddings.create(model=MODEL, input="A sentence.")
    plain = await chatting.embeddings.create(model=MODEL, input="A sentence.", encoding_format="float")
    assert unpacked.data[0].embedding == pytest.approx(plain.data[0].embedding)
    batch = await chatting.embeddings.create(model=MODEL, input=["one", "two", "three"])
    assert [item.index for item in batch.data] == [0, 1, 2]
    assert batch.usage.prompt_tokens == batch.usage.total_tokens > 0


async def test_responses_are_answered(chatting: openai.AsyncOpenAI) -> None:
    whole = await chatting.responses.create(model=MODEL, input="Hello", max_output_tokens=9, instructions="Be short.")
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 9
    stream = await chatting.responses.create(
        model=MODEL, input="Hello", max_output_tokens=9, instructions="Be short.", stream=True
    )
    events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.usage == whole.usage


async def test_openai_response_helper_assembles_the_response(chatting: openai.AsyncOpenAI) -> None:
    async with chatting.responses.stream(model=MODEL, input=[{"role": "user", "content": "Hello"}]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text
    assert final.usage is not None


async def test_openai_sdk_lists_and_retrieves_models(chatting: openai.AsyncOpenAI) -> None:
    listed = [model async for model in chatting.models.list()]
    assert [model.id for model in listed] == [MODEL, ALIAS]
    one = await chatting.models.retrieve(ALIAS)
    assert (one.id, one.owned_by) == (ALIAS, "tailgate")
    with pytest.raises(openai.NotFoundError) as refused:
        await chatting.models.retrieve("nobody/nothing")
    assert refused.value.code == "model_not_found"


async def test_model_listing_has_the_context_length_once_it_is_known(
    gateway: Gateway, openai_of: Callable[..., openai.AsyncOpenAI]
) -> None:
    client = openai_of(gateway)
    model = await client.models.retrieve(MODEL)
    async with asyncio.timeout(10):
        while (model.model_extra or {}).get("max_model_len") is None:
            model = await client.models.retrieve(MODEL)
    assert (model.model_extra or {})["max_model_len"] == 4096


async def test_blocking_openai_client_uses_the_other_endpoints(gateway: Gateway) -> None:
    def ask() -> None:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY) as client:
            assert [model.id for model in client.models.list()] == [MODEL, ALIAS]
            assert len(client.embeddings.create(model=MODEL, input="x").data) == 1
            assert client.completions.create(model=MODEL, prompt="x", max_tokens=3).choices[0].text
            whole = client.responses.create(model=MODEL, input="x", max_output_tokens=3)
            with client.responses.create(model=MODEL, input="x", max_output_tokens=3, stream=True) as stream:
                said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            assert said == whole.output_text

    await in_thread(ask)
