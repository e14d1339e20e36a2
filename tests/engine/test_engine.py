"""The same requests with and without the gateway, and how the gateway handles the engine's own features."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from time import monotonic
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.policy import load_text
from gateway.settings import Settings

from .engine import Engine, payload_of, recording

HELLO = [{"role": "user", "content": "Tell me about the sea, and about those who sail it."}]
SAME = {"temperature": 0.0, "seed": 1}
"""Fields that make an answer repeatable."""
GONE_S = 1.0


async def _joined(stream: openai.AsyncStream) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


# ---- the five endpoints


async def test_engine_answers_a_chat_completion(
    engine: Engine, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI
) -> None:
    ask = {"model": engine.model, "messages": HELLO, "max_tokens": 24} | SAME
    whole = await client.chat.completions.create(**ask)
    past = await direct.chat.completions.create(**ask)
    assert whole.choices[0].message.content == past.choices[0].message.content
    assert whole.usage == past.usage
    assert await _joined(await client.chat.completions.create(**ask, stream=True)) == past.choices[0].message.content


async def test_stream_has_usage_if_the_client_requested_it(engine: Engine, client: openai.AsyncOpenAI) -> None:
    ask = {"model": engine.model, "messages": HELLO, "max_tokens": 8, "stream": True}
    plain = [chunk async for chunk in await client.chat.completions.create(**ask)]
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    asked = await client.chat.completions.create(**ask, stream_options={"include_usage": True})
    *_, last = [chunk async for chunk in asked]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8


async def test_engine_answers_completions(
    engine: Engine, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI
) -> None:
    await engine.wants("/v1/completions", {"prompt": "x", "max_tokens": 1})
    ask = {"model": engine.model, "prompt": "Once upon a time", "max_tokens": 24} | SAME
    whole = await client.completions.create(**ask)
    past = await direct.completions.create(**ask)
    assert whole.choices[0].text == past.choices[0].text
    assert whole.usage == past.usage
    stream = await client.completions.create(**ask, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == past.choices[0].text
    batch = await client.completions.create(**ask | {"prompt": ["one", "two"], "temperature": 1.0}, n=2)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]


async def test_engine_answers_responses(engine: Engine, client: openai.AsyncOpenAI) -> None:
    await engine.wants("/v1/responses", {"input": "x", "max_output_tokens": 1})
    ask = {"model": engine.model, "input": "Tell me about the sea.", "max_output_tokens": 24, "temperature": 0.0}
    whole = await client.responses.create(**ask)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 24
    events = [event async for event in await client.responses.create(**ask, stream=True)]
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text


async def test_engine_answers_messages(engine: Engine, messaging: anthropic.AsyncAnthropic) -> None:
    await engine.wants("/v1/messages", {"messages": HELLO, "max_tokens": 1})
    ask = {"model": engine.model, "messages": HELLO, "max_tokens": 24}
    whole = await messaging.messages.create(**ask, extra_body={"temperature": 0.0})
    assert whole.usage.output_tokens == 24
    assert whole.stop_reason == "max_tokens"
    async with messaging.messages.stream(**ask, extra_body={"temperature": 0.0}) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert said == whole.content[0].text
    assert final.usage.output_tokens == 24


async def test_engine_answers_embeddings(engine: Engine, client: openai.AsyncOpenAI) -> None:
    await engine.wants("/v1/embeddings", {"input": "x"})
    answer = await client.embeddings.create(model=engine.model, input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens > 0


async def test_gateway_lists_the_models_of_its_policy(engine: Engine, client: openai.AsyncOpenAI) -> None:
    async with asyncio.timeout(10):
        while True:
            models = {model.id: model.model_extra or {} async for model in client.models.list()}
            if models[engine.model].get("max_model_len") == engine.max_model_len:
                break
    assert {"default", engine.model} <= set(models)


# ---- what passes through


async def test_stream_events_of_the_engine_are_passed_on_unchanged(engine: Engine) -> None:
    """Byte for byte, for a client that asked for usage; for others, without the usage."""
    body = {"model": engine.model, "messages": HELLO, "max_tokens": 12, "stream": True}
    async with recording(engine.url) as (url, said):
        policy = f"""\
apiVersion: tailgate/v1
models: {{{engine.model}: {{pools: [main]}}}}
pools: {{main: {{engine: openai, replicas: [{url}], health: {{interval: 100s}}}}}}
tiers: {{standard: {{max_tokens: {{limit: 100}}}}}}
"""
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
        async with (
            Gateway(settings, load_text(policy, "policy.yaml", {})) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=60) as http,
        ):
            everything = await http.post(
                "/v1/chat/completions", json=body | {"stream_options": {"include_usage": True}}
            )
            streams = [bytes(kept) for kept in said.values() if b"text/event-stream" in kept]
            assert [payload_of(stream) for stream in streams] == [everything.content]
            less = (await http.post("/v1/chat/completions", json=body)).content
    assert b'"usage":{' in everything.content
    assert b'"usage":{' not in less
    assert less.endswith(b"data: [DONE]\n\n")


async def test_sampling_fields_of_a_request_reach_the_engine(engine: Engine, client: openai.AsyncOpenAI) -> None:
    ask = {"model": engine.model, "messages": HELLO, "max_tokens": 12} | SAME
    answer = await client.chat.completions.create(**ask | {"temperature": 1.0}, n=2, logprobs=True, top_logprobs=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content[0].top_logprobs) >= 3
    said = (await client.chat.completions.create(**ask)).choices[0].message.content or ""
    stop = said[len(said) // 2 :][:3]
    stopped = await client.chat.completions.create(**ask, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in (stopped.choices[0].message.content or "")


async def test_alias_is_echoed_and_the_default_cap_reaches_the_engine(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="default", messages=HELLO)
    answer = raw.parse()
    assert answer.model == "default", "the name that the client asked for"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16, "the tier's default"


# ---- what the gateway learns


async def test_token_estimate_learns_the_counts_of_the_engine(
    engine: Engine, gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    before = gateway.controller.prompts.estimate(engine.model, 10_000)
    prompt = output = 0
    for number in range(24):
        messages = [{"role": "user", "content": f"{number} " + "the sea and the ships " * (10 + number)}]
        ask = {"model": engine.model, "messages": messages, "max_tokens": 2}
        if number % 2:
            stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
            *_, last = [chunk async for chunk in stream]
            usage = last.usage
        else:
            usage = (await client.chat.completions.create(**ask)).usage
        assert usage is not None
        prompt, output = prompt + usage.prompt_tokens, output + usage.completion_tokens
    lane = gateway.metrics.lanes["standard", "main"]
    assert (lane.prompt_tokens[True], lane.output_tokens[True]) == (prompt, output)
    assert (lane.prompt_tokens[False], lane.output_tokens[False]) == (0, 0)
    assert gateway.controller.prompts.estimate(engine.model, 10_000) != before


async def test_health_load_and_models_of_the_engine_are_read(engine: Engine, gateway: Gateway) -> None:
    """Health, load and models, read in the form of this engine."""
    async with asyncio.timeout(10):
        while True:
            (pool,) = gateway.controller.snapshot(monotonic()).pools
            (replica,) = pool.replicas
            if engine.kind == "openai" or replica.sample is not None:
                break
            await asyncio.sleep(0.01)
    assert replica.state.value == "up"
    if replica.sample is not None:
        assert replica.sample.running is not None
        assert replica.sample.waiting is not None
    assert [report.errors for report in gateway.fleet.reports()] == [{}]


# ---- leaving


async def _freed(engine: Engine, leave: Awaitable[None]) -> None:
    """The engine works on one request, whose client leaves now."""
    await engine.until_running(lambda running: running == 1, 60)
    await leave
    assert await engine.until_running(lambda running: running == 0, 30) <= GONE_S


def _endless(engine: Engine, most: int = 2**20) -> dict[str, Any]:
    """A request whose answer fills the context, or has `most` tokens."""
    room = min(most, (engine.max_model_len or 4096) - 500)
    ask = {"model": engine.model, "messages": HELLO, "max_tokens": room, "temperature": 0.0}
    return ask | ({"extra_body": {"min_tokens": room}} if engine.kind == "vllm" else {})


async def test_engine_stops_when_the_client_of_a_stream_leaves(engine: Engine, client: openai.AsyncOpenAI) -> None:
    assert await engine.running() == 0, "somebody else uses this engine"
    stream = await client.chat.completions.create(**_endless(engine), stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 5:
            break
    await _freed(engine, stream.close())


async def test_engine_stops_when_the_client_of_an_unstreamed_answer_leaves(
    engine: Engine, client: openai.AsyncOpenAI
) -> None:
    assert await engine.running() == 0, "somebody else uses this engine"
    waiting = asyncio.create_task(client.chat.completions.create(**_endless(engine)))

    async def leave() -> None:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    await _freed(engine, leave())


def _twice(engine: Engine, address: str, kind: str) -> Policy:
    """A policy with the engine as two replicas: itself, and the relay at `address`."""
    text = f"""\
apiVersion: tailgate/v1
models: {{{engine.model}: {{pools: [main]}}}}
pools: {{main: {{engine: {kind}, replicas: [{engine.url}, {address}]}}}}
tiers: {{standard: {{max_tokens: {{limit: 100000}}, timeouts: {{total: 300s}}}}}}
"""
    return load_text(text, "policy.yaml", {})


@pytest.mark.parametrize("metrics", [True, False], ids=["with metrics", "without metrics"])
async def test_burst_beside_a_long_whole_answer_reaches_both_replicas(engine: Engine, metrics: bool) -> None:
    """The whole answer takes several times as long as the silence after which a streaming replica is ejected."""
    assert await engine.running() == 0, "somebody else uses this engine"
    shares: Counter[str | None] = Counter()
    short: dict[str, Any] = {"model": engine.model, "messages": HELLO, "max_tokens": 4, "stream": True}
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with recording(engine.url) as (address, _):
        policy = _twice(engine, address, engine.kind if metrics else "openai")
        async with (
            Gateway(settings, policy) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
        ):

            async def ask() -> None:
                answer = await client.chat.completions.with_raw_response.create(**short)
                await _joined(answer.parse())
                shares[answer.headers.get("x-tailgate-replica")] += 1

            began = monotonic()
            whole = asyncio.create_task(client.chat.completions.create(**_endless(engine, 3000)))
            await engine.until_running(lambda running: running == 1, 60)
            while not whole.done():
                await asyncio.gather(*(ask() for _ in range(8)))
            took_s = monotonic() - began
            (pool,) = gateway.controller.snapshot(monotonic()).pools
    assert (await whole).choices[0].finish_reason == "length"
    assert took_s > 6, "this engine is too fast to show anything"
    assert [replica.state.value for replica in pool.replicas] == ["up", "up"]
    assert [sum(count for _, count in replica.health.ejections) for replica in pool.replicas] == [0, 0]
    assert len(shares) == 2, shares
    assert min(shares.values()) > 0.2 * shares.total()


def _hurried(engine: Engine, on_total: str = "cut") -> Policy:
    """A policy with a total timeout of one second."""
    text = f"""\
apiVersion: tailgate/v1
models: {{{engine.model}: {{pools: [main]}}}}
pools: {{main: {{engine: {engine.kind}, replicas: [{engine.url}]}}}}
tiers: {{standard: {{max_tokens: {{limit: 100000}}, timeouts: {{total: 1s, on_total: {on_total}}}}}}}
"""
    return load_text(text, "policy.yaml", {})


async def test_stream_at_its_total_timeout_is_cut_and_frees_the_engine(
    engine: Engine, client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    assert await engine.running() == 0, "somebody else uses this engine"
    gateway.reloads.configure(_hurried(engine))
    *_, last = [chunk async for chunk in await client.chat.completions.create(**_endless(engine), stream=True)]
    assert last.choices[0].finish_reason == "length"
    assert last.model_extra["tailgate"]["cut"] == "total-timeout"
    assert await engine.until_running(lambda running: running == 0, 30) <= GONE_S


@pytest.mark.parametrize("stream", [True, False])
async def test_request_at_its_total_timeout_may_end_in_an_error_and_frees_the_engine(
    engine: Engine, client: openai.AsyncOpenAI, gateway: Gateway, stream: bool
) -> None:
    """A whole answer fails entirely: there is nothing to keep."""
    assert await engine.running() == 0, "somebody else uses this engine"
    gateway.reloads.configure(_hurried(engine, "error" if stream else "cut"))

    async def ask() -> None:
        answer = await client.chat.completions.create(**_endless(engine), stream=stream)
        async for _ in answer:
            pass

    with pytest.raises(openai.APIError) as raised:
        await ask()
    assert raised.value.code == "deadline_exceeded"
    assert await engine.until_running(lambda running: running == 0, 30) <= GONE_S


# ---- what the engine refuses


async def test_overlong_prompt_is_refused(
    engine: Engine, client: openai.AsyncOpenAI, messaging: anthropic.AsyncAnthropic
) -> None:
    if engine.max_model_len is None:
        pytest.skip("this engine does not say how long a prompt may be")
    messages = [{"role": "user", "content": "the sea " * engine.max_model_len}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model=engine.model, messages=messages, max_tokens=4, stream=stream)
        assert raised.value.code == "context_length_exceeded"
        assert str(engine.max_model_len) in raised.value.message
    await engine.wants("/v1/messages", {"messages": HELLO, "max_tokens": 1})
    with pytest.raises(anthropic.BadRequestError):
        await messaging.messages.create(model=engine.model, messages=messages, max_tokens=4)


async def test_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    """A model unknown to the gateway, or only to the engine."""
    for model in ("nobody", "not-there"):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as raised:
                await client.chat.completions.create(model=model, messages=HELLO, stream=stream)
            assert raised.value.message


async def test_engine_refusal_of_a_value_is_a_400_and_no_replica_failure(
    engine: Engine, gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    for changes in ({"temperature": -5.0}, {"top_p": 7.0}, {"presence_penalty": 99.0}):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model=engine.model, messages=HELLO, max_tokens=4, **changes)
        assert raised.value.message
        assert isinstance(raised.value.code, str | None)
    (pool,) = gateway.controller.snapshot(monotonic()).pools
    assert pool.replicas[0].failures == 0, "what is wrong with a request is not the engine's fault"
