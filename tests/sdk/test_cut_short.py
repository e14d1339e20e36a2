"""A stream that is cut by the total timeout ends like one that reached its length, in every client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, cast

import anthropic
import openai
import pytest

from gateway.app import Gateway
from gateway.core.results import Outcome, Reason
from loadtests.emulator import Emulator
from tests.scorecard.waiting import until

from .conftest import Start
from .policies import HELLO, MODEL
from .scripted import scripted

Openai = Callable[..., openai.AsyncOpenAI]
Silence = Callable[..., None]
Anthropic = Callable[..., anthropic.AsyncAnthropic]

TOTAL = "timeouts: {ttft: none, idle: none, total: 1h}"
SAID = 5
"""Tokens that came before the replica fell silent."""
WHY = {"cut": "total-timeout"}
WHY_AND_USAGE = {"cut": "total-timeout", "usage": "estimated"}


@pytest.fixture
async def gateway(start: Start, replicas: Emulator) -> Gateway:
    """A gateway in front of replicas that fall silent after a few tokens."""
    return await start(tier=TOTAL)


@pytest.fixture
async def an_hour_later(replicas: Emulator) -> AsyncIterator[Callable[..., None]]:
    """`an_hour_later(gateway, events)`: replicas fall silent after `events`; once those arrived, an hour passes."""
    tasks: list[asyncio.Task[None]] = []

    def begin(gateway: Gateway, events: int, tokens: int = SAID) -> None:
        for replica in replicas.replicas:
            replica.fault("stall", after_events=events)
        tasks.append(asyncio.create_task(_let_it_pass(gateway, tokens)))

    yield begin
    for task in tasks:
        await task


async def _let_it_pass(gateway: Gateway, tokens: int) -> None:
    driver = gateway.driver
    await until(lambda: any(request.tokens_seen >= tokens for request in driver.requests))
    driver.wake(monotonic() + 3600.0)


def _counted(gateway: Gateway, outcome: Outcome = Outcome.CUT) -> bool:
    """Whether exactly one request ended, and how."""
    (lane,) = gateway.metrics.lanes.values()
    facts = gateway.metrics.tiers["standard"]
    return lane.requests == {(MODEL, outcome, Reason.TOTAL_TIMEOUT): [1]} and facts.counts == [0, 0, 1]


async def test_chat_stream_cut_at_its_deadline_ends_with_length(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence, replicas: Emulator
) -> None:
    an_hour_later(gateway, 1 + SAID)
    stream = await openai_of(gateway).chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=99, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last, usage = [chunk async for chunk in stream]
    assert len(chunks) == 1 + SAID
    assert last.choices[0].finish_reason == "length"
    assert cast(Any, last).tailgate == WHY
    assert {last.id, usage.id, last.model} == {chunks[0].id, MODEL}
    assert usage.usage.completion_tokens == SAID
    assert usage.usage.prompt_tokens > 0
    assert usage.tailgate == WHY_AND_USAGE
    assert _counted(gateway)
    for replica in replicas.replicas:
        await replica.until(lambda replica: replica.in_flight == 0 and replica.running == 0)


async def test_cut_chat_stream_ends_every_choice_without_usage(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, 2 + SAID)
    stream = await openai_of(gateway).chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=99, n=2, stream=True
    )
    *_, last = [chunk async for chunk in stream]
    assert [(choice.index, choice.finish_reason) for choice in last.choices] == [(0, "length"), (1, "length")]


async def test_openai_chat_helper_reads_a_cut_stream(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence
) -> None:
    """The SDK raises, as for any answer that reached its length."""
    an_hour_later(gateway, 1 + SAID)
    async with openai_of(gateway).chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=99) as stream:
        with pytest.raises(openai.LengthFinishReasonError) as raised:
            await stream.get_final_completion()
    assert len((raised.value.completion.choices[0].message.content or "").split()) == SAID


async def test_completion_stream_cut_at_its_deadline_ends_with_length(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, SAID)
    stream = await openai_of(gateway).completions.create(model=MODEL, prompt="Hello", max_tokens=99, stream=True)
    *chunks, last = [chunk async for chunk in stream]
    assert len(chunks) == SAID
    assert (last.choices[0].text, last.choices[0].finish_reason) == ("", "length")
    assert cast(Any, last).tailgate == WHY


async def test_response_stream_cut_at_its_deadline_ends_incomplete(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, 4 + SAID)
    stream = await openai_of(gateway).responses.create(model=MODEL, input="Hello", max_output_tokens=99, stream=True)
    events: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert len(text.split()) == SAID
    assert events[-1].type == "response.incomplete"
    response = events[-1].response
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == text
    assert response.usage.output_tokens == SAID
    assert response.tailgate == WHY_AND_USAGE
    assert _counted(gateway)


async def test_message_stream_cut_at_its_deadline_ends_with_max_tokens(
    gateway: Gateway, anthropic_of: Anthropic, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, 2 + SAID)
    async with anthropic_of(gateway).messages.stream(model=MODEL, messages=HELLO, max_tokens=99) as stream:
        text = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()
    assert len(text.split()) == SAID
    assert message.content[0].text == text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == SAID
    assert _counted(gateway)


async def test_cut_message_says_why_and_its_usage(
    gateway: Gateway, anthropic_of: Anthropic, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, 2 + SAID)
    stream = await anthropic_of(gateway).messages.create(model=MODEL, messages=HELLO, max_tokens=99, stream=True)
    *_, delta, stop = [event async for event in stream]
    assert (delta.type, stop.type) == ("message_delta", "message_stop")
    assert delta.tailgate == WHY_AND_USAGE


async def test_stream_at_its_deadline_is_an_error_where_the_tier_says_error(
    start: Start, openai_of: Openai, an_hour_later: Silence
) -> None:
    gateway = await start(tier="timeouts: {ttft: none, idle: none, total: 1h, on_total: error}")
    an_hour_later(gateway, 1 + SAID)
    stream = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=99, stream=True)
    with pytest.raises(openai.APIError):
        _ = [chunk async for chunk in stream]
    assert _counted(gateway, Outcome.TIMEOUT)


async def test_total_timeout_before_the_first_token_is_a_504(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence
) -> None:
    an_hour_later(gateway, 1, tokens=0)
    with pytest.raises(openai.APIStatusError) as raised:
        await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=99, stream=True)
    assert raised.value.status_code == 504
    assert _counted(gateway, Outcome.TIMEOUT)


async def test_connection_of_a_cut_stream_serves_the_next_request(
    gateway: Gateway, openai_of: Openai, an_hour_later: Silence, replicas: Emulator
) -> None:
    client = openai_of(gateway)
    an_hour_later(gateway, 1 + SAID)
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=99, stream=True)
    assert [chunk async for chunk in stream]
    for replica in replicas.replicas:
        replica.fault(None)
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3)
    assert answer.usage.completion_tokens == 3


# ---- answers that repeat themselves


def _chunk(delta: dict[str, object]) -> tuple[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return "", {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


@pytest.mark.parametrize("field", ["content", "reasoning"])
async def test_repeating_answer_is_cut(start: Start, openai_of: Openai, field: str) -> None:
    async with scripted() as replica:
        words = [f"{word} " for word in ["it", "is", "a", "long", "road", "that", "has", "no", "turning", "and"]]
        circles = [_chunk({field: word}) for word in words * 200]
        replica.events = [_chunk({"role": "assistant", "content": ""}), *circles]
        replica.hold = asyncio.Event()
        gateway = await start([replica.url], tier="repetition: {characters: 500, repeats: 4}")
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4000, stream=True
        )
        *chunks, last = [chunk async for chunk in stream]
        assert last.choices[0].finish_reason == "length"
        assert cast(Any, last).tailgate == {"cut": "repetition"}
        said = "".join(getattr(chunk.choices[0].delta, field, "") or "" for chunk in chunks)
        assert len(said) >= 500
        (lane,) = gateway.metrics.lanes.values()
        assert lane.requests == {(MODEL, Outcome.CUT, Reason.REPETITION): [1]}


async def test_repeating_answer_that_has_already_ended_is_not_cut(start: Start, openai_of: Openai) -> None:
    async with scripted() as replica:
        *words, (_, last) = [_chunk({"content": "round and round "}) for _ in range(100)]
        assert isinstance(last, dict)
        last["choices"][0]["finish_reason"] = "stop"
        # All in one piece, as if the gateway had not read for a while.
        together = [json.dumps(data) for _, data in words] + [json.dumps(last), "[DONE]"]
        replica.events = [_chunk({"role": "assistant", "content": ""}), ("", "\n\ndata: ".join(together))]
        gateway = await start([replica.url], tier="repetition: {characters: 500, repeats: 4}")
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=4000, stream=True
        )
        assert [chunk.choices[0].finish_reason async for chunk in stream][-2:] == [None, "stop"]
        (lane,) = gateway.metrics.lanes.values()
        assert lane.requests == {(MODEL, Outcome.OK, None): [1]}


async def test_answer_without_repetition_is_not_cut(start: Start, openai_of: Openai) -> None:
    gateway = await start(tier="repetition: {characters: 500, repeats: 4}")
    whole = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=600)
    stream = await openai_of(gateway).chat.completions.create(model=MODEL, messages=HELLO, max_tokens=600, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == whole.choices[0].message.content
