"""A replica that refuses `stream_options` gets none afterwards, unseen by the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Call, Capture, token, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat

WITHOUT_USAGE = STREAM_HEAD + token("Hi") + token(" there", "stop") + DONE + LAST_CHUNK
AZURE = whole(
    b'{"error":{"message":"Unknown parameter: \'stream_options\'.","type":"invalid_request_error",'
    b'"param":"stream_options","code":"unknown_parameter"}}',
    "400 Bad Request",
)
MISTRAL = whole(
    b'{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}',
    "422 Unprocessable Entity",
)


def has_options(call: Call) -> bool:
    return "stream_options" in json.loads(call.body)


@pytest.mark.parametrize("refusal", [AZURE, MISTRAL])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
async def test_refusal_of_stream_options_is_hidden_from_the_client_and_remembered(
    gateway: GatewayFactory, capture: Capture, connect: Connect, refusal: bytes, fields: dict[str, Any]
) -> None:
    gw = await gateway(rules(capture.url, pool="engine: openai"))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(refusal if has_options(call) else WITHOUT_USAGE)
    for _ in range(3):
        answer = await client.ask(chat("X-Request-Id: mine", **fields))
        assert (answer.status, answer.whole, answer.events[-1]) == (200, True, "[DONE]")
    assert [has_options(call) for call in capture.calls] == [True, False, False, False]
    ids = [call.header("x-request-id")[0] for call in capture.calls]
    assert len(set(ids)) == 3, "the same id of a client is another one at the replica for each of its requests"
    assert all(rid.startswith("mine-") for rid in ids)
    sent = [json.loads(call.body) for call in capture.calls]
    assert all({**sent[0], "stream_options": None} == {**body, "stream_options": None} for body in sent)


async def test_refusal_for_another_reason_reaches_the_client_and_changes_nothing(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, pool="engine: openai"))
    client = await connect(gw.url)
    refusal = whole(b'{"error":{"message":"no such thing as stream_options in a user name"}}', "400 Bad Request")
    capture.answer = lambda call: Answer(refusal)
    for _ in range(2):
        assert (await client.ask(chat(stream=True))).status == 400
    assert [has_options(call) for call in capture.calls] == [True, False, True, False]
    assert (await client.ask(chat())).status == 400
    assert len(capture.calls) == 5  # without a stream there are no stream_options


async def test_stream_usage_is_still_requested_from_other_replicas(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url, pool="engine: openai, router: round-robin"))
        client = await connect(gw.url)
        capture.answer = lambda call: Answer(AZURE if has_options(call) else WITHOUT_USAGE)
        for _ in range(8):
            assert (await client.ask(chat(stream=True))).status == 200
        assert all(map(has_options, other.calls))
        assert sum(map(has_options, capture.calls)) == 1
        assert other.calls
