"""Errors of OpenAI's client: the class, the text, and whether and when it retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import openai
import pytest

from gateway.app import Gateway
from gateway.core.results import Reason
from gateway.core.snapshot import ReplicaState
from loadtests.emulator import Emulator

from .conftest import Start, in_thread
from .policies import HELLO, KEY, MODEL
from .scripted import Scripted, scripted

Clients = Callable[..., openai.AsyncOpenAI]
ASK = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
TRIES = 3


def _everywhere(replicas: Emulator, fault: str | None, **details: Any) -> None:
    for replica in replicas.replicas:
        replica.fault(fault, **details)


def _received(replicas: Emulator) -> int:
    return sum(replica.received_total for replica in replicas.replicas)


@pytest.mark.parametrize(
    ("changes", "error", "status", "code", "param", "why"),
    [
        ({"max_tokens": "many"}, openai.BadRequestError, 400, "invalid_type", "max_tokens", Reason.BAD_REQUEST),
        ({"n": 99}, openai.BadRequestError, 400, "integer_above_max_value", "n", Reason.BAD_REQUEST),
        ({"messages": "hello"}, openai.BadRequestError, 400, None, "messages", Reason.BAD_REQUEST),
        ({"model": "gpt-9"}, openai.NotFoundError, 404, "model_not_found", "model", Reason.MODEL_NOT_FOUND),
        (
            {"messages": [{"role": "user", "content": "x" * 2**21}]},
            openai.APIStatusError,
            413,
            "request_too_large",
            None,
            Reason.BODY_TOO_LARGE,
        ),
    ],
)
async def test_permanent_error_is_not_retried_by_the_sdk(
    gateway: Gateway,
    openai_of: Clients,
    replicas: Emulator,
    changes: dict[str, Any],
    error: type[openai.APIStatusError],
    status: int,
    code: str | None,
    param: str | None,
    why: Reason,
) -> None:
    client = openai_of(gateway, max_retries=TRIES)
    for stream in (False, True):
        with pytest.raises(error) as raised:
            await client.chat.completions.create(**ASK | changes, stream=stream)
        assert raised.value.status_code == status
        assert raised.value.param == param
        assert raised.value.code == code if code else raised.value.code
        assert raised.value.type == "invalid_request_error"
        assert raised.value.message
        assert raised.value.request_id
    assert gateway.metrics.early[why] == 2
    assert _received(replicas) == 0


async def test_wrong_key_is_an_authentication_error(gateway: Gateway, openai_of: Clients) -> None:
    client = openai_of(gateway, api_key="nobody", max_retries=TRIES)
    for call in (client.chat.completions.create(**ASK), client.models.retrieve(MODEL)):
        with pytest.raises(openai.AuthenticationError) as raised:
            await call
        assert raised.value.code == "invalid_api_key"
    assert gateway.metrics.early[Reason.UNAUTHORIZED] == 2


async def test_unknown_path_is_a_not_found_error(gateway: Gateway, openai_of: Clients) -> None:
    with pytest.raises(openai.NotFoundError):
        await openai_of(gateway).files.list()


async def test_overlong_prompt_is_a_bad_request_error(gateway: Gateway, openai_of: Clients, replicas: Emulator) -> None:
    """Too long by the engine's own count: its refusal arrives in OpenAI's form."""
    client = openai_of(gateway, max_retries=TRIES)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "word " * 6000}], stream=stream
            )
        assert raised.value.code == "context_length_exceeded"
        assert "4096" in raised.value.message


async def test_sdk_retries_a_replica_that_is_busy_for_a_moment(
    start: Start, openai_of: Clients, replicas: Emulator
) -> None:
    gateway = await start(urls=replicas.urls[:1])
    replicas.replicas[0].fault("status_503", count=2, retry_after_s=0)
    raw = await openai_of(gateway, max_retries=TRIES).chat.completions.with_raw_response.create(**ASK)
    assert raw.retries_taken == 2
    assert raw.parse().choices[0].message.content


async def test_replica_that_stays_busy_is_a_503(gateway: Gateway, openai_of: Clients, replicas: Emulator) -> None:
    _everywhere(replicas, "status_503", retry_after_s=7)
    with pytest.raises(openai.InternalServerError) as raised:
        await openai_of(gateway).chat.completions.create(**ASK)
    assert (raised.value.status_code, raised.value.code) == (503, "upstream_busy")
    assert 7 <= int(raised.value.response.headers["retry-after"]) <= 9  # told times are spread by a quarter
    assert 7000 <= int(raised.value.response.headers["retry-after-ms"]) <= 8750


async def test_busy_error_inside_a_stream_of_status_200_is_a_503(
    gateway: Gateway, openai_of: Clients, replicas: Emulator
) -> None:
    _everywhere(replicas, "error_200")
    with pytest.raises(openai.InternalServerError) as raised:
        await openai_of(gateway).chat.completions.create(**ASK, stream=True)
    assert (raised.value.status_code, raised.value.code) == (503, "upstream_busy")


async def test_request_without_a_living_replica_is_a_503(start: Start, openai_of: Clients, replicas: Emulator) -> None:
    gateway = await start(pool="health: {failures: 1, interval: 20ms}")
    _everywhere(replicas, "dead")
    client = openai_of(gateway)
    async with asyncio.timeout(10):
        while True:
            with pytest.raises(openai.InternalServerError) as raised:
                await client.chat.completions.create(**ASK)
            assert raised.value.status_code in (502, 503)
            if raised.value.code == "no_replicas":
                break
    assert int(raised.value.response.headers["retry-after"]) >= 1


async def test_request_past_its_deadline_is_a_504(start: Start, openai_of: Clients, replicas: Emulator) -> None:
    gateway = await start(tier="timeouts: {ttft: 50ms, total: 150ms}")
    _everywhere(replicas, "stall")
    client = openai_of(gateway)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(**ASK, stream=stream)
        assert (raised.value.status_code, raised.value.code) == (504, "deadline_exceeded")
        assert raised.value.type == "timeout_error"


@pytest.fixture
async def endless() -> AsyncIterator[Scripted]:
    """A replica that sends one word, then waits for the test."""
    async with scripted() as replica:
        head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        delta = {"index": 0, "delta": {"content": "word"}, "finish_reason": None}
        replica.events = [
            ("", head | {"choices": [delta]}),
            ("", head | {"choices": [delta | {"finish_reason": "stop"}]}),
        ]
        message = {"role": "assistant", "content": "word"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        replica.whole = head | {"object": "chat.completion", "choices": [choice], "usage": usage}
        replica.hold = asyncio.Event()
        yield replica


async def test_sdk_waits_for_the_retry_after_of_a_rate_limit(
    start: Start, openai_of: Clients, endless: Scripted
) -> None:
    """1,000 tokens are refilled every second; the first request holds nearly all tokens."""
    gateway = await start(urls=[endless.url], tier="limits: {tokens: 60k/min}", limit=100_000)
    client = openai_of(gateway)
    first = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=59_900, stream=True)
    with pytest.raises(openai.RateLimitError) as raised:
        await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=300)
    assert (raised.value.status_code, raised.value.code) == (429, "rate_limit_exceeded")
    assert raised.value.response.headers["x-ratelimit-limit-tokens"] == "60000"
    wait_ms = int(raised.value.response.headers["retry-after-ms"])
    assert 100 < wait_ms <= 400

    start_at = monotonic()
    patient = client.with_options(max_retries=1)
    raw = await patient.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=300)
    assert raw.retries_taken <= 1
    assert monotonic() - start_at < 10
    assert raw.parse().choices[0].message.content == "word"
    await first.close()


async def test_request_over_the_concurrency_limit_is_a_rate_limit_error(
    start: Start, openai_of: Clients, endless: Scripted
) -> None:
    gateway = await start(urls=[endless.url], tier="limits: {concurrency: 1}")
    client = openai_of(gateway)
    first = await client.chat.completions.create(**ASK, stream=True)
    with pytest.raises(openai.RateLimitError) as raised:
        await client.chat.completions.create(**ASK)
    assert raised.value.response.headers["x-tailgate-reason"] == "limit-concurrency"
    assert int(raised.value.response.headers["retry-after"]) >= 1
    assert endless.hold is not None
    endless.hold.set()
    assert [chunk.choices[0].finish_reason async for chunk in first] == [None, "stop"]
    assert (await client.chat.completions.create(**ASK)).choices


async def test_full_queue_is_a_rate_limit_error(start: Start, openai_of: Clients, endless: Scripted) -> None:
    gateway = await start(urls=[endless.url], pool="queue: {limit: 0}")
    client = openai_of(gateway)
    held = [await client.chat.completions.create(**ASK, stream=True) for _ in range(16)]
    with pytest.raises(openai.RateLimitError) as raised:
        await client.chat.completions.create(**ASK)
    assert (raised.value.code, raised.value.type) == ("queue_full", "overloaded_error")
    for stream in held:
        await stream.close()


FAULTS = {
    "truncated": {"fault": "truncated", "after_events": 3},
    "reset": {"fault": "reset", "after_events": 3},
    "shut down": {"fault": "shutdown_like", "after_events": 3},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_broken_chat_stream_raises(gateway: Gateway, openai_of: Clients, replicas: Emulator, fault: str) -> None:
    client = openai_of(gateway, max_retries=TRIES)
    _everywhere(replicas, **FAULTS[fault])
    said: list[str | None] = []
    stream = await client.chat.completions.create(**ASK | {"max_tokens": 20}, stream=True)

    async def listen() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError) as raised:
        await listen()
    assert said[0] == ""
    assert 2 <= len(said) <= 3
    assert raised.value.code in ("upstream_truncated", "upstream_error")
    assert _received(replicas) == 1, "what has begun is not tried again"


async def test_stream_event_that_is_no_json_is_passed_on_without_replica_failure(
    gateway: Gateway, openai_of: Clients, replicas: Emulator
) -> None:
    _everywhere(replicas, "garbage", how="json", after_events=3)
    for _ in range(5):
        stream = await openai_of(gateway, max_retries=0).chat.completions.create(
            **ASK | {"max_tokens": 20}, stream=True
        )
        with pytest.raises(json.JSONDecodeError):
            [chunk async for chunk in stream]
    assert all(state is ReplicaState.UP for _, _, state, _ in gateway.controller.states())


async def test_broken_streams_of_other_endpoints_raise(
    gateway: Gateway, openai_of: Clients, replicas: Emulator
) -> None:
    client = openai_of(gateway)
    _everywhere(replicas, "truncated", after_events=8)
    calls = (
        client.completions.create(model=MODEL, prompt="x", max_tokens=20, stream=True),
        client.responses.create(model=MODEL, input="x", max_output_tokens=20, stream=True),
    )
    for call in calls:
        with pytest.raises(openai.APIError) as raised:
            async for _ in await call:
                pass
        assert raised.value.code == "upstream_truncated"


async def test_stalled_chat_stream_raises(start: Start, openai_of: Clients, replicas: Emulator) -> None:
    gateway = await start(tier="timeouts: {idle: 50ms}")
    _everywhere(replicas, "stall", after_events=4)
    stream = await openai_of(gateway).chat.completions.create(**ASK | {"max_tokens": 20}, stream=True)
    with pytest.raises(openai.APIError) as raised:
        async for _ in stream:
            pass
    assert raised.value.code == "deadline_exceeded"


async def test_a_client_that_leaves_frees_the_replica(start: Start, openai_of: Clients, replicas: Emulator) -> None:
    _everywhere(replicas, "stall", after_events=3)
    gateway = await start(urls=replicas.urls[:1])
    stream = await openai_of(gateway).chat.completions.create(**ASK | {"max_tokens": 20}, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await replicas.replicas[0].until(lambda replica: replica.in_flight == 0 and replica.received_total == 1)


async def test_blocking_openai_client_raises_the_same_errors(gateway: Gateway, replicas: Emulator) -> None:
    def ask() -> tuple[str | None, str | None]:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.NotFoundError) as refused:
                client.chat.completions.create(**ASK | {"model": "gpt-9"})
            with pytest.raises(openai.APIError) as broken:
                for _ in client.chat.completions.create(**ASK | {"max_tokens": 20}, stream=True):
                    pass
            return refused.value.code, broken.value.code

    _everywhere(replicas, "truncated", after_events=5)
    assert await in_thread(ask) == ("model_not_found", "upstream_truncated")
