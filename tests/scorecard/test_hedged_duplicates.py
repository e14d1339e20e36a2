"""A request with a late first token is sent to a second replica: the client sees one answer, the loser is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gateway.app import Gateway
from gateway.core.redundancy.ttft_quantiles import MIN_SAMPLES

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, USAGE, Call, Capture, by_default, token
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import Client, chat
from .state import held
from .waiting import until

LIMIT_S = 1.0
TIER = "hedge: {holdout: 0%, budget: 100%}, admission: {mode: off}"


@pytest.fixture
async def both() -> AsyncIterator[list[Capture]]:
    """Two replicas."""
    async with Capture() as one, Capture() as other:
        yield [one, other]


async def late(gateway: GatewayFactory, both: list[Capture], connect: Connect) -> tuple[Gateway, Client, Call, Call]:
    """A gateway that has learned TTFT, and a waiting request at its first and its second replica."""
    gw = await gateway(rules(*(capture.url for capture in both), tier=TIER))
    client = await connect(gw.url)
    for _ in range(MIN_SAMPLES):
        assert (await client.ask(chat(stream=True))).status == 200
    taken: list[Call] = []
    for capture in both:
        # and no answer, for now. Quantiles are read every few seconds; to avoid that wait:
        capture.answer = taken.append
    gw.controller.state.hedges.of_pool(next(iter(gw.controller.state.fleet))).first_tokens.refresh_at = 0.0
    client.send(chat(stream=True))
    await until(lambda: len(taken) == 2)
    first, second = taken
    return gw, client, first, second


def rest(call: Call, text: str) -> None:
    """The replica sends its whole answer."""
    call.send(STREAM_HEAD + token(text) + token(" there", "stop") + USAGE + DONE + LAST_CHUNK)
    call.finish()


async def test_duplicate_answers_and_the_first_attempt_is_closed(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    gw, client, first, second = await late(gateway, both, connect)
    assert first.body == second.body
    rest(second, "second")
    answer = await client.response()
    assert (answer.status, answer.whole, answer.headers["x-tailgate-hedged"]) == (200, True, "won")
    assert [event["choices"][0]["delta"]["content"] for event in answer.events[:2]] == ["second", " there"]
    assert answer.events[-1] == "[DONE]"
    await until(lambda: first.aborted, LIMIT_S)
    await until(lambda: set(held(gw)) <= {"client connections"}, LIMIT_S, seen=lambda: held(gw))


async def test_first_attempt_answers_and_the_duplicate_is_closed(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    gw, client, first, second = await late(gateway, both, connect)
    first.send(STREAM_HEAD + token("first"))
    assert (await client.head())[1]["x-tailgate-hedged"] == "lost"
    await until(lambda: second.aborted, LIMIT_S)
    first.send(token(" there", "stop") + DONE + LAST_CHUNK)
    first.finish()
    assert b"second" not in await client.reader.readuntil(b"0\r\n\r\n")
    await until(lambda: set(held(gw)) <= {"client connections"}, LIMIT_S, seen=lambda: held(gw))


async def test_empty_delta_does_not_commit_an_attempt(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    """The begin of an answer does not decide: the other attempt may have the first token."""
    _, client, first, second = await late(gateway, both, connect)
    first.send(STREAM_HEAD + token(""))
    rest(second, "second")
    answer = await client.response()
    assert answer.events[0]["choices"][0]["delta"]["content"] == "second"
    await until(lambda: first.aborted, LIMIT_S)


async def test_client_that_leaves_ends_both_attempts(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    gw, client, first, second = await late(gateway, both, connect)
    client.rst()
    await until(lambda: first.aborted and second.aborted, LIMIT_S)
    await until(lambda: set(held(gw)) <= {"client connections"}, LIMIT_S, seen=lambda: held(gw))


async def test_first_attempt_that_breaks_leaves_the_request_to_the_duplicate(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    _, client, first, second = await late(gateway, both, connect)
    cast(asyncio.Transport, first.connection.transport).abort()
    rest(second, "second")
    answer = await client.response()
    assert (answer.status, answer.headers["x-tailgate-hedged"]) == (200, "won")


async def test_hedge_is_counted_in_metrics_and_state(
    gateway: GatewayFactory, both: list[Capture], connect: Connect
) -> None:
    gw, client, _, second = await late(gateway, both, connect)
    rest(second, "second")
    await client.response()
    for capture in both:
        capture.answer = by_default
    await until(lambda: set(held(gw)) == {"client connections"}, LIMIT_S)
    (tier,) = gw.controller.snapshot(0.0).hedged_tiers
    assert dict(tier.outcomes) == {"won": 1, "lost": 0, "failed": 0}
    assert tier.wasted_prompt_tokens > 0
    admin = await connect(gw.admin_url)
    page = (await admin.ask(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")).body.decode()
    assert 'tailgate_hedges_total{outcome="won",tier="free"} 1.0' in page or (
        'tailgate_hedges_total{tier="free",outcome="won"} 1.0' in page
    )
