"""`/v1/messages/count_tokens`: counted by an engine, else by the gateway; never refused for load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.results import CountSource
from gateway.proxy.count_tokens import MAX_ASKED_OF_ONE

from .capture import Answer, Call, Capture, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import MODEL, chat, request
from .state import held

PATH = "/v1/messages/count_tokens"
ASKED = {
    "model": MODEL,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "x" * 1000}],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
}
NOT_FOUND = whole(b'{"detail":"Not Found"}', "404 Not Found")


def count(path: str = PATH, *lines: str, **fields: Any) -> bytes:
    return request(path, json.dumps(ASKED | fields).encode(), *lines)


async def test_count_tokens_answers_with_the_count_of_the_engine(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(whole(b'{"input_tokens":258,"context_management":null}'))
    answer = await client.ask(count(PATH + "?beta=true", metadata={"user_id": "u"}, max_tokens=5, stream=True))
    assert (answer.status, answer.json()) == (200, {"input_tokens": 258})
    call = capture.calls[0]
    assert call.path == PATH
    assert json.loads(call.body) == {**ASKED, "tools": ASKED["tools"][:1]}


async def test_estimate_answers_where_no_engine_counts(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(NOT_FOUND)
    for _ in range(3):
        answer = await client.ask(count())
        assert answer.status == 200
        assert 200 <= answer.json()["input_tokens"] <= 600
    assert len(capture.calls) == 1  # the gateway knows by then that the engine cannot count
    assert held(gw) == {"client connections": 1}


async def test_counts_have_the_limits_of_requests_and_use_up_none_of_them(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, tier="limits: {requests: 2/min, tokens: 100/min, concurrency: 1}"))
    client, other = await connect(gw.url), await connect(gw.url)
    waiting: list[Call] = []
    capture.answer = waiting.append
    client.send(count())
    await capture.until(lambda: waiting)
    answer = await other.ask(count())
    assert (answer.status, answer.reason) == (429, "limit-concurrency")
    waiting[0].send(NOT_FOUND)
    assert (await client.response()).status == 200
    capture.answer = lambda call: Answer(whole())
    assert (await client.ask(count())).status == 200
    answer = await client.ask(count())
    assert (answer.status, answer.reason) == (429, "limit-requests")
    assert float(answer.headers["retry-after"]) > 0
    for _ in range(2):
        assert (await client.ask(chat())).status == 200
    assert (await client.ask(chat())).reason == "limit-requests"


async def test_counts_use_up_no_quota(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url, tier="limits: {requests: 2/day}"))
    client = await connect(gw.url)
    for _ in range(3):
        assert (await client.ask(count())).status == 200


async def test_engine_is_asked_for_a_few_counts_of_one_tenant_at_a_time(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    waiting: list[Call] = []
    capture.answer = waiting.append
    clients = [await connect(gw.url) for _ in range(MAX_ASKED_OF_ONE + 1)]
    for client in clients[:-1]:
        client.send(count())
    await capture.until(lambda: len(waiting) == MAX_ASKED_OF_ONE)
    assert (await clients[-1].ask(count())).status == 200
    assert len(waiting) == MAX_ASKED_OF_ONE
    clients[0].rst()
    await capture.until(lambda: any(call.aborted for call in waiting))
    for call in waiting:
        call.send(whole(b'{"input_tokens":7}'))
    for client in clients[1:-1]:
        assert (await client.response()).json() == {"input_tokens": 7}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "unknown"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "tool", "name": "web_search"}}, 400, "invalid_request_error"),
    ],
)
async def test_uncountable_request_is_refused_in_the_anthropic_format(
    gateway: GatewayFactory, capture: Capture, connect: Connect, body: dict[str, Any], status: int, kind: str
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    answer = await client.ask(count(**body))
    assert (answer.status, answer.error["type"], answer.json()["type"]) == (status, kind, "error")


async def test_counting_tokens_needs_a_key_and_the_method_post(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url, keys={"secret": "t"}))
    client = await connect(gw.url)
    assert (await client.ask(count())).status == 401
    capture.answer = lambda call: Answer(whole(b'{"input_tokens":7}'))
    assert (await client.ask(count(PATH, "x-api-key: secret"))).json() == {"input_tokens": 7}
    answer = await client.ask(request(PATH))
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/batches/msgbatch_1/results"])
async def test_batch_of_messages_is_refused_with_advice_to_send_each_alone(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for asked in (request(path), request(path, b"{}")):
        answer = await client.ask(asked)
        assert (answer.status, answer.json()["type"], answer.error["type"]) == (404, "error", "not_found_error")
        assert "/v1/messages" in answer.error["message"]


async def test_token_count_is_not_asked_of_a_drained_replica_and_has_a_request_id(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    async with Capture() as other:
        gw = await gateway(rules(capture.url, other.url))
        client = await connect(gw.url)
        capture.answer = other.answer = lambda call: Answer(whole(b'{"input_tokens":7}'))
        (pool,) = gw.handler.policy.pools.values()
        gw.driver.drain(pool.replicas[0].name, True)
        for _ in range(8):
            answer = await client.ask(count(PATH, "X-Request-Id: mine"))
            assert answer.json() == {"input_tokens": 7}
            assert (answer.headers["x-request-id"], answer.headers["request-id"]) == ("mine", "mine")
        assert (len(capture.calls), len(other.calls)) == (0, 8)
        ids = [call.header("x-request-id")[0] for call in other.calls]
        assert len(set(ids)) == 8
        assert all(rid.startswith("mine-") for rid in ids)


async def test_token_count_error_has_a_request_id(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for asked in (count(PATH, "X-Request-Id: mine", model="unknown"), request(PATH, b"{", "X-Request-Id: mine")):
        answer = await client.ask(asked)
        assert answer.status in (400, 404)
        assert (answer.headers["request-id"], answer.json()["request_id"]) == ("mine", "mine")


async def test_token_counts_are_counted_in_metrics_by_their_source(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    capture.answer = lambda call: Answer(whole(b'{"input_tokens":7}'))
    for _ in range(2):
        assert (await client.ask(count())).status == 200
    capture.answer = lambda call: Answer(NOT_FOUND)
    assert (await client.ask(count())).status == 200
    assert gw.metrics.token_counts == {
        CountSource.ENGINE: 2,
        CountSource.ESTIMATE: 1,
    }
