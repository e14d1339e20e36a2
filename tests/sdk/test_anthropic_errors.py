"""Errors of Anthropic's client: the class, the text, and whether it retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from gateway.app import Gateway
from gateway.core.results import Reason
from loadtests.emulator import Emulator

from .conftest import Start, in_thread
from .policies import HELLO, KEY, MODEL

Clients = Callable[..., anthropic.AsyncAnthropic]
ASK = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
TRIES = 3


def _everywhere(replicas: Emulator, fault: str | None, **details: Any) -> None:
    for replica in replicas.replicas:
        replica.fault(fault, **details)


def _kind(error: anthropic.APIStatusError) -> str:
    """The type in the body of an error."""
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["error"]["message"]
    return error.body["error"]["type"]


@pytest.mark.parametrize(
    ("changes", "error", "kind", "why"),
    [
        (
            {"max_tokens": 0},
            anthropic.BadRequestError,
            "invalid_request_error",
            Reason.BAD_REQUEST,
        ),
        ({"model": "claude"}, anthropic.NotFoundError, "not_found_error", Reason.MODEL_NOT_FOUND),
        (
            {"messages": [{"role": "user", "content": "x" * 2**21}]},
            anthropic.RequestTooLargeError,
            "request_too_large",
            Reason.BODY_TOO_LARGE,
        ),
    ],
)
async def test_permanent_error_is_not_retried_by_the_sdk(
    gateway: Gateway,
    anthropic_of: Clients,
    changes: dict[str, Any],
    error: type[anthropic.APIStatusError],
    kind: str,
    why: Reason,
) -> None:
    client = anthropic_of(gateway, max_retries=TRIES)
    for stream in (False, True):
        with pytest.raises(error) as raised:
            await client.messages.create(**ASK | changes, stream=stream)
        assert _kind(raised.value) == kind
        assert raised.value.request_id
    assert gateway.metrics.early[why] == 2


async def test_wrong_key_is_an_authentication_error(gateway: Gateway, anthropic_of: Clients) -> None:
    client = anthropic_of(gateway, api_key="nobody", max_retries=TRIES)
    with pytest.raises(anthropic.AuthenticationError) as raised:
        await client.messages.create(**ASK)
    assert _kind(raised.value) == "authentication_error"
    assert gateway.metrics.early[Reason.UNAUTHORIZED] == 1


async def test_unknown_path_is_a_not_found_error(gateway: Gateway, anthropic_of: Clients) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        await anthropic_of(gateway).beta.files.list()
    assert _kind(raised.value) == "not_found_error"


async def test_overlong_prompt_is_an_invalid_request_error(gateway: Gateway, anthropic_of: Clients) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        await anthropic_of(gateway).messages.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "word " * 6000}]
        )
    assert _kind(raised.value) == "invalid_request_error"
    assert "4096" in raised.value.message


async def test_request_over_the_rate_limit_is_a_rate_limit_error(start: Start, anthropic_of: Clients) -> None:
    client = anthropic_of(await start(tier="limits: {requests: 1/min}"))
    await client.messages.create(**ASK)
    with pytest.raises(anthropic.RateLimitError) as raised:
        await client.messages.create(**ASK)
    assert _kind(raised.value) == "rate_limit_error"
    assert 50 < int(raised.value.response.headers["retry-after"]) <= 60


async def test_sdk_retries_a_replica_that_is_busy_for_a_moment(
    start: Start, anthropic_of: Clients, replicas: Emulator
) -> None:
    gateway = await start(urls=replicas.urls[:1])
    replicas.replicas[0].fault("status_503", count=2, retry_after_s=0)
    raw = await anthropic_of(gateway, max_retries=TRIES).messages.with_raw_response.create(**ASK)
    assert raw.retries_taken == 2


async def test_replica_that_stays_busy_is_an_overloaded_error(
    gateway: Gateway, anthropic_of: Clients, replicas: Emulator
) -> None:
    _everywhere(replicas, "status_503", retry_after_s=7)
    with pytest.raises(anthropic.APIStatusError) as raised:
        await anthropic_of(gateway).messages.create(**ASK)
    assert raised.value.status_code == 503
    assert _kind(raised.value) == "overloaded_error"
    assert 7 <= int(raised.value.response.headers["retry-after"]) <= 9  # told times are spread by a quarter


async def test_request_past_its_deadline_is_a_504(start: Start, anthropic_of: Clients, replicas: Emulator) -> None:
    gateway = await start(tier="timeouts: {ttft: 50ms, total: 150ms}")
    _everywhere(replicas, "stall")
    client = anthropic_of(gateway)
    for stream in (False, True):
        with pytest.raises(anthropic.APIStatusError) as raised:
            await client.messages.create(**ASK, stream=stream)
        assert raised.value.status_code == 504
        assert _kind(raised.value) == "timeout_error"


@pytest.mark.parametrize("fault", ["truncated", "reset", "shutdown_like"])
async def test_broken_message_stream_raises(
    gateway: Gateway, anthropic_of: Clients, replicas: Emulator, fault: str
) -> None:
    client = anthropic_of(gateway, max_retries=TRIES)
    _everywhere(replicas, fault, after_events=5)
    said: list[str] = []

    async def listen() -> None:
        async with client.messages.stream(**ASK | {"max_tokens": 20}) as stream:
            async for text in stream.text_stream:
                said.append(text)

    with pytest.raises(anthropic.APIStatusError) as raised:
        await listen()
    assert said
    assert _kind(raised.value) == "api_error"
    assert sum(replica.received_total for replica in replicas.replicas) == 1


async def test_stalled_message_stream_raises(start: Start, anthropic_of: Clients, replicas: Emulator) -> None:
    gateway = await start(tier="timeouts: {idle: 50ms}")
    _everywhere(replicas, "stall", after_events=5)
    with pytest.raises(anthropic.APIStatusError) as raised:
        async with anthropic_of(gateway).messages.stream(**ASK | {"max_tokens": 20}) as stream:
            await stream.get_final_message()
    assert _kind(raised.value) == "timeout_error"


async def test_blocking_anthropic_client_raises_the_same_errors(gateway: Gateway, replicas: Emulator) -> None:
    def ask() -> None:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            with pytest.raises(anthropic.NotFoundError):
                client.messages.create(**ASK | {"model": "claude"})
            with (
                pytest.raises(anthropic.APIStatusError),
                client.messages.stream(**ASK | {"max_tokens": 20}) as stream,
            ):
                stream.get_final_message()

    _everywhere(replicas, "truncated", after_events=5)
    await in_thread(ask)
