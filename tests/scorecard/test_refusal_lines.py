"""A refused request has one log line with the reason; a flood has few lines, with the number left out."""

from __future__ import annotations

import logging
from time import monotonic

import pytest

from gateway.core.results import Reason
from gateway.proxy.logs import REFUSAL_LINES

from .capture import Answer, Capture, never, whole
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat, request
from .state import queued
from .waiting import until

PROMPT = "words-of-a-prompt"
KEY = "sk-secret-of-acme"
HEAD_WAIT_S = 0.05
"""After this time the queued request has waited longer than its TTFT objective allows."""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "tailgate.refusals")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    """The lines about requests; every other line of the gateway is left out."""
    found = [record for record in log.records if record.name == "tailgate.refusals"]
    assert {record.levelno for record in found} <= {logging.INFO}
    return [record.getMessage() for record in found]


async def test_refusal_log_line_names_request_reason_tier_pool_cause_and_retry(
    gateway: GatewayFactory, capture: Capture, connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    capture.answer = never
    tier = "limits: {tokens: 1000/min}, timeouts: {total: 60s, ttft: 60s}"
    gw = await gateway(rules(capture.url, slots=1, queue=0, tier=tier, keys={KEY: "acme"}))
    occupant = await connect(gw.url)
    occupant.send(chat(f"x-api-key: {KEY}", content=PROMPT))
    await capture.until(lambda: capture.calls)
    client = await connect(gw.url)
    answers = [
        await client.ask(request_bytes)
        for request_bytes in (
            chat("x-request-id: r-1", content=PROMPT),
            chat("x-request-id: r-2", f"x-api-key: {KEY}", content=PROMPT, max_tokens=PROMPT),
            chat("x-request-id: r-3", f"x-api-key: {KEY}", content=PROMPT, model=PROMPT),
            chat("x-request-id: r-4", f"x-api-key: {KEY}", content=PROMPT, max_tokens=3000),
            chat("x-request-id: r-5", f"x-api-key: {KEY}", content=PROMPT),
        )
    ]
    assert [answer.status for answer in answers] == [401, 400, 404, 429, 429]
    *early, tokens, full = lines(log)
    assert early == [
        "request r-1 refused: unauthorized",
        "request r-2 refused: bad-request, tier free: field max_tokens",
        "request r-3 refused: model-not-found, tier free: field model",
    ]
    assert tokens.startswith("request r-4 refused: limit-tokens, tier free: this request reserves 30")
    assert tokens.endswith("more than the limit of a whole minute; a retry cannot succeed")
    assert full.startswith("request r-5 refused: queue-full, tier free, pool main; retry after ")
    assert PROMPT not in log.text
    assert KEY not in log.text
    assert "acme" not in "".join(lines(log))


async def test_refusal_log_line_of_a_predicted_breach_has_the_forecast(
    gateway: GatewayFactory, capture: Capture, connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    capture.answer = never
    slo = "slo: {ttft: {p90: 10ms, p99: 60s}}, timeouts: {queue: 60s, ttft: 60s}, admission: {exploration: 0.0001%}"
    gw = await gateway(rules(capture.url, slots=1, tier=slo))
    occupant, waiting, client = [await connect(gw.url) for _ in range(3)]
    occupant.send(chat(stream=True))
    await capture.until(lambda: capture.calls)
    waiting.send(chat(stream=True))
    await until(lambda: queued(gw) == 1)
    began = monotonic()
    await until(lambda: monotonic() - began > HEAD_WAIT_S)
    answer = await client.ask(chat("x-request-id: r-1", stream=True))
    assert (answer.status, answer.reason) == (429, "predicted-breach")
    (line,) = lines(log)
    said = answer.error["message"].rstrip(".")
    assert line.startswith(f"request r-1 refused: predicted-breach, tier free, pool main: {said}; retry after ")
    assert "the first token comes later than 0.01 s with a probability of more than 0.99. With it, 0.33 of" in line


async def test_timed_out_request_is_logged_as_failed_and_an_answered_one_not_at_all(
    gateway: GatewayFactory, capture: Capture, connect: Connect, log: pytest.LogCaptureFixture
) -> None:
    gw = await gateway(rules(capture.url, tier="timeouts: {ttft: 50ms}, retry: {budget: 0%}"))
    client = await connect(gw.url)
    assert (await client.ask(chat())).status == 200
    capture.answer = never
    assert (await client.ask(chat("x-request-id: r-1", stream=True))).status == 504
    capture.answer = lambda call: Answer(whole(b"{}", "501 Not Implemented"))
    assert (await client.ask(chat("x-request-id: r-2"))).status == 502
    at = f"tier free, pool main: replica {capture.url.removeprefix('http://')}"
    assert [line.partition(";")[0] for line in lines(log)] == [
        f"request r-1 failed: ttft-timeout, {at}: cancelled",
        f"request r-2 failed: upstream-error, {at}: failed with HTTP 501",
    ]


async def test_flood_of_refusals_is_logged_in_a_few_lines_with_the_number_left_out(
    gateway: GatewayFactory,
    capture: Capture,
    connect: Connect,
    log: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    gw = await gateway(rules(capture.url, keys={KEY: "acme"}), lambda: now[0])
    client = await connect(gw.url)
    for number in range(200):
        assert (await client.ask(chat(f"x-request-id: flood-{number}"))).status == 401
    # Another kind is still logged in the flood.
    assert (await client.ask(request("/nothing", None, "x-request-id: other"))).status == 404
    now[0] += 1.0
    await client.ask(chat("x-request-id: late"))
    assert lines(log) == [
        *(f"request flood-{number} refused: unauthorized" for number in range(REFUSAL_LINES)),
        "request other refused: not-found",
        f"request late refused: unauthorized ({200 - REFUSAL_LINES} more like it since the last line)",
    ]
    assert gw.metrics.early[Reason.UNAUTHORIZED] == 201
