"""The official SDKs raise the right classes for our errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import anthropic
import httpx2
import openai
import pytest

from gateway.core.results import Reason
from gateway.wire.apis.messages import ANTHROPIC
from gateway.wire.apis.responses import RESPONSES
from gateway.wire.errors.replies import OPENAI, Problem, error_event, error_response

MESSAGES = [{"role": "user", "content": "hi"}]


def transport(raw: bytes) -> tuple[httpx2.MockTransport, list[httpx2.Request]]:
    """Answers every request with these bytes. The list has the received requests."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(int(status_line.split()[1]), headers=headers, content=body)

    return httpx2.MockTransport(answer), seen


def openai_client(mock: httpx2.MockTransport, retries: int = 0) -> openai.OpenAI:
    client = httpx2.Client(transport=mock)
    return openai.OpenAI(api_key="k", base_url="http://gateway/v1", max_retries=retries, http_client=client)


def anthropic_client(mock: httpx2.MockTransport, retries: int = 0) -> anthropic.Anthropic:
    client = httpx2.Client(transport=mock)
    return anthropic.Anthropic(api_key="k", base_url="http://gateway", max_retries=retries, http_client=client)


OPENAI_CLASSES = [
    (Reason.BAD_REQUEST, openai.BadRequestError),
    (Reason.CONTEXT_LENGTH, openai.BadRequestError),
    (Reason.UNAUTHORIZED, openai.AuthenticationError),
    (Reason.FORBIDDEN_MODEL, openai.PermissionDeniedError),
    (Reason.MODEL_NOT_FOUND, openai.NotFoundError),
    (Reason.LIMIT_TOKENS, openai.RateLimitError),
    (Reason.QUEUE_FULL, openai.RateLimitError),
    (Reason.NO_REPLICAS, openai.InternalServerError),
    (Reason.TTFT_TIMEOUT, openai.InternalServerError),
    (Reason.BODY_TOO_LARGE, openai.APIStatusError),
]


@pytest.mark.parametrize(("why", "error"), OPENAI_CLASSES)
def test_openai_sdk_raises_its_class_for_each_reason(why: Reason, error: type[openai.APIStatusError]) -> None:
    mock, _ = transport(error_response(OPENAI, Problem(why, "said so", param="n", code="c0de"), "req-1"))
    with openai_client(mock) as client, pytest.raises(error) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES)
    raised = caught.value
    assert (raised.param, raised.code, raised.request_id) == ("n", "c0de", "req-1")
    assert isinstance(raised.body, dict)
    assert raised.body["message"] == "said so"


ANTHROPIC_CLASSES = [
    (Reason.BAD_REQUEST, anthropic.BadRequestError),
    (Reason.UNAUTHORIZED, anthropic.AuthenticationError),
    (Reason.FORBIDDEN_MODEL, anthropic.PermissionDeniedError),
    (Reason.MODEL_NOT_FOUND, anthropic.NotFoundError),
    (Reason.QUEUE_FULL, anthropic.RateLimitError),
    (Reason.BODY_TOO_LARGE, anthropic.APIStatusError),
    (Reason.NO_REPLICAS, anthropic.APIStatusError),
    (Reason.TTFT_TIMEOUT, anthropic.APIStatusError),
]


@pytest.mark.parametrize(("why", "error"), ANTHROPIC_CLASSES)
def test_anthropic_sdk_raises_its_class_for_each_reason(why: Reason, error: type[anthropic.APIStatusError]) -> None:
    mock, _ = transport(error_response(ANTHROPIC, Problem(why, "said so"), "req-1"))
    with anthropic_client(mock) as client, pytest.raises(error) as caught:
        client.messages.create(model="m", max_tokens=1, messages=MESSAGES)
    raised = caught.value
    assert raised.request_id == "req-1"
    assert isinstance(raised.body, dict)
    assert raised.body["error"]["message"] == "said so"


@pytest.mark.parametrize(
    ("why", "requests"),
    [(Reason.QUEUE_FULL, 2), (Reason.NO_REPLICAS, 2), (Reason.TOTAL_TIMEOUT, 1), (Reason.MODEL_NOT_FOUND, 1)],
)
def test_sdks_retry_exactly_the_reasons_that_may_succeed_later(why: Reason, requests: int) -> None:
    problem = Problem(why, retry_after_s=0.001)
    mock, seen = transport(error_response(OPENAI, problem, "r"))
    with openai_client(mock, retries=1) as client, pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert len(seen) == requests
    mock, seen = transport(error_response(ANTHROPIC, problem, "r"))
    with anthropic_client(mock, retries=1) as other, pytest.raises(anthropic.APIStatusError):
        other.messages.create(model="m", max_tokens=1, messages=MESSAGES)
    assert len(seen) == requests


def stream(*events: bytes) -> httpx2.MockTransport:
    mock, _ = transport(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(events))
    return mock


def until_error(chunks: Iterator[object], error: type[Exception]) -> tuple[int, Exception]:
    """The number of chunks before the error, and the error."""
    count = 0
    with pytest.raises(error) as caught:  # noqa: PT012
        for _ in chunks:
            count += 1
    return count, caught.value


PROBLEM = Problem(Reason.IDLE_TIMEOUT)
CHAT_CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)
TEXT_CHUNK = (
    b'data: {"id":"c","object":"text_completion","created":1,"model":"m",'
    b'"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
)


def test_openai_raises_inside_a_stream_of_chat() -> None:
    with openai_client(stream(CHAT_CHUNK, error_event(OPENAI, PROBLEM))) as client:
        chunks = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        count, error = until_error(iter(chunks), openai.APIError)
    assert (count, cast(Any, error).code) == (1, "deadline_exceeded")


def test_openai_raises_inside_a_stream_of_completions() -> None:
    with openai_client(stream(TEXT_CHUNK, error_event(OPENAI, PROBLEM))) as client:
        chunks = client.completions.create(model="m", prompt="x", stream=True)
        assert until_error(iter(chunks), openai.APIError)[0] == 1


def test_openai_raises_inside_a_stream_of_responses() -> None:
    delta = (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":1,'
        b'"item_id":"i","output_index":0,"content_index":0,"delta":"a","logprobs":[]}\n\n'
    )
    with openai_client(stream(delta, error_event(RESPONSES.dialect, PROBLEM))) as client:
        chunks = client.responses.create(model="m", input="x", stream=True)
        count, error = until_error(iter(chunks), openai.APIError)
    assert (count, cast(Any, error).code) == (1, "deadline_exceeded")


def test_anthropic_raises_inside_a_stream() -> None:
    delta = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"a"}}\n\n'
    )
    with anthropic_client(stream(delta, error_event(ANTHROPIC, PROBLEM))) as client:
        chunks = client.messages.create(model="m", max_tokens=1, messages=MESSAGES, stream=True)
        count, error = until_error(iter(chunks), anthropic.APIStatusError)
    assert count == 1
    assert cast(Any, error).body["error"]["type"] == "timeout_error"
