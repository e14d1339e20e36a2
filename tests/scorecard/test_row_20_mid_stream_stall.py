"""Row 20: a silent replica is given up at the limit: the client gets an error, and the slot becomes free."""

from __future__ import annotations

from time import monotonic

import pytest

from gateway.core.results import Outcome, Reason
from gateway.wire.errors.reasons import ROWS
from loadtests.emulator import Emulator

from .answers import STREAMED, asking, is_never_complete
from .capture import DONE, STREAM_HEAD, Capture, token
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import CHAT, chat

IDLE_S, TTFT_S, TOTAL_S = 0.1, 0.2, 0.3
QUICK = "timeouts: {idle: 100ms, ttft: 200ms, total: 30s}"
FIRST_EVENTS = {CHAT: 1, "/v1/completions": 0, "/v1/responses": 4, "/v1/messages": 2}
"""Events of the emulated replica before the first that has content."""


async def _replica_is_free(emulator: Emulator) -> None:
    (replica,) = emulator.replicas
    await replica.until(lambda replica: replica.in_flight == 0 and replica.running == 0)


@pytest.mark.parametrize("path", STREAMED)
async def test_stall_after_the_first_token_ends_at_the_idle_timeout(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, path: str
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, slots=1, tier=QUICK))
    for after in (1, 2):
        replicas.replicas[0].fault("stall", after_events=FIRST_EVENTS[path] + after)
        client = await connect(gw.url)
        waiting = await connect(gw.url)
        client.send(asking(path, stream=True))
        await replicas.replicas[0].until(lambda replica: replica.in_flight == 1)
        replicas.replicas[0].fault(None)
        waiting.send(chat(max_tokens=2))
        start = monotonic()
        response = await client.response()
        assert monotonic() - start >= IDLE_S
        assert response.status == 200
        assert is_never_complete(path, response) == ""
        assert response.events[-1]["error"]["message"] == ROWS[Reason.IDLE_TIMEOUT].message
        assert (await waiting.response()).status == 200, "the slot went to the one who waited"
        assert (await client.ask(chat(max_tokens=2))).status == 200, "nothing follows the error but the next answer"
        await _replica_is_free(replicas)
    assert gw.metrics.lanes["free", "main"].requests["emulated", Outcome.TIMEOUT, Reason.IDLE_TIMEOUT] == [2]


@pytest.mark.parametrize("path", STREAMED)
async def test_stall_before_the_first_token_ends_at_the_ttft_timeout(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, path: str
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, slots=1, tier=QUICK))
    client = await connect(gw.url)
    for after in {0, FIRST_EVENTS[path]}:
        replicas.replicas[0].fault("stall", after_events=after)
        start = monotonic()
        response = await client.ask(asking(path, stream=True))
        assert monotonic() - start >= TTFT_S
        assert (response.status, response.reason) == (504, "ttft-timeout")
        assert int(response.headers["retry-after"]) >= 1
        await _replica_is_free(replicas)
    replicas.replicas[0].fault(None)
    assert (await client.ask(chat(max_tokens=2))).status == 200


async def test_stalled_unstreamed_answer_ends_at_the_total_timeout(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    """Such an answer shows no tokens, so silence means nothing before the total timeout."""
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, slots=1, tier="timeouts: {idle: 20ms, ttft: 20ms, total: 300ms}"))
    client = await connect(gw.url)
    for fault in ({"after_events": 0}, {"after_bytes": 0}, {"after_bytes": 17}):
        replicas.replicas[0].fault("stall", **fault)
        start = monotonic()
        response = await client.ask(chat())
        assert monotonic() - start >= TOTAL_S - 0.01
        assert (response.status, response.reason) == (504, "total-timeout")
        await _replica_is_free(replicas)
    replicas.replicas[0].fault(None)
    assert (await client.ask(chat(max_tokens=2))).status == 200


async def test_stall_after_the_last_token_ends_at_the_idle_timeout(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: call.send(STREAM_HEAD + token("Hi", "stop"))
    gw = await gateway(rules(capture.url, slots=1, tier=QUICK))
    client = await connect(gw.url)
    response = await client.ask(chat(stream=True))
    assert is_never_complete(CHAT, response) == ""
    await capture.until(lambda: capture.calls[0].aborted)


async def test_stall_after_done_is_a_complete_answer(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: call.send(STREAM_HEAD + token("Hi", "stop") + DONE)
    gw = await gateway(rules(capture.url, slots=1, tier=QUICK))
    client = await connect(gw.url)
    response = await client.ask(chat(stream=True))
    assert response.whole
    assert b"[DONE]" in response.body
    await capture.until(lambda: capture.calls[0].aborted)
