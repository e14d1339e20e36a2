"""Connections: kept alive, pipelined, left in the middle, idle, malformed."""

from __future__ import annotations

import json

import pytest

from loadtests.emulator import Emulator

from .wire import BODIES, chat, generation, http

LONG = 30_000


async def test_emulator_keeps_a_connection_for_the_next_request(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url)
    for stream in (False, True, False):
        wire.send(chat(stream=stream))
        assert (await wire.answer()).status == 200
    assert emulator.replicas[0].connections_total == 1
    assert {received.connection for received in emulator.replicas[0].requests} == {1}


async def test_emulator_answers_pipelined_requests_in_order(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, chat(max_tokens=9) + chat(stream=True, max_tokens=3) + http("/version"))
    assert (await wire.answer()).json()["usage"]["completion_tokens"] == 9
    assert len((await wire.answer()).chunks) == 1 + 3 + 1
    assert (await wire.answer()).json() == {"version": "0.32.0"}


@pytest.mark.parametrize("how", ["fin", "reset", "pipelined"])
@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_frees_the_emulated_engine(
    real_time: Emulator, connect, how: str, stream: bool
) -> None:
    replica = real_time.replicas[0]
    wire = await connect(real_time.url, chat(stream=stream, max_tokens=LONG))
    await replica.until(lambda r: r.running == 1)
    if how == "pipelined":
        wire.send(chat())
    if how == "reset":
        wire.writer.transport.abort()
    else:
        wire.writer.close()
    await replica.until(lambda r: (r.running, r.waiting) == (0, 0), timeout_s=1.0)
    assert replica.engine.aborted_total == 1
    assert replica.in_flight == 0


async def test_client_that_leaves_during_the_prefill_frees_the_emulated_engine(connect) -> None:
    async with Emulator(profile="long", time_scale=0.01) as emulator:  # minutes of prefill
        replica = emulator.replicas[0]
        wire = await connect(emulator.url, generation("/v1/completions", prompt=[1] * 100_000))
        await replica.until(lambda r: r.running == 1)
        assert replica.engine.model.kv_fraction == 0
        wire.writer.close()
        await replica.until(lambda r: r.running == 0, timeout_s=1.0)


async def test_client_that_leaves_the_queue_of_the_emulator_frees_its_place(connect) -> None:
    async with Emulator(profile="default", time_scale=1.0) as emulator:
        replica = emulator.replicas[0]
        await connect(emulator.url, chat(max_tokens=LONG, n=64))
        await replica.until(lambda r: r.running == 64)
        wire = await connect(emulator.url, chat(max_tokens=LONG, n=3))
        await replica.until(lambda r: r.waiting == 3)
        wire.writer.close()
        await replica.until(lambda r: r.waiting == 0, timeout_s=1.0)
        assert replica.running == 64


async def test_emulator_closes_idle_connections(connect) -> None:
    async with Emulator(keep_alive_s=0.05) as emulator:
        wire = await connect(emulator.url, http("/health"))
        assert (await wire.answer()).status == 200
        assert await wire.rest() == b""
        assert not wire.reset


async def test_emulator_closes_after_connection_close_and_http_1_0(emulator: Emulator, connect) -> None:
    body = json.dumps(BODIES["/v1/completions"]).encode()
    for request in (
        http("/v1/completions", body, "Connection: close"),
        http("/v1/completions", body, version="1.0"),
    ):
        wire = await connect(emulator.url, request)
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await wire.rest() == b""


async def test_emulator_keeps_received_bytes_unchanged(emulator: Emulator, connect) -> None:
    request = generation("/v1/completions", prompt="Grüße")
    head, _, body = request.partition(b"\r\n\r\n")
    wire = await connect(emulator.url)
    for cut in (3, 40, len(head) + 2, len(head) + 10):  # split anywhere
        wire.send(request[:cut])
        await wire.writer.drain()
        wire.send(request[cut:])
        await wire.answer()
    for received in emulator.replicas[0].requests:
        assert received.head == head + b"\r\n\r\n"
        assert received.body == body
        assert received.header("Content-Type") == "application/json"
    seen = await connect(emulator.url, http("/emulator/requests"))
    assert [entry["body"] for entry in (await seen.answer()).json()] == [body.decode()] * 4


async def test_emulator_memory_of_received_requests_is_bounded(connect) -> None:
    async with Emulator(keep_requests=3) as emulator:
        wire = await connect(emulator.url)
        for number in range(5):
            wire.send(generation("/v1/completions", user=f"{number}"))
            await wire.answer()
        assert [json.loads(r.body)["user"] for r in emulator.replicas[0].requests] == ["2", "3", "4"]
        assert emulator.replicas[0].received_total == 5


async def test_emulator_reads_a_chunked_body(emulator: Emulator, connect) -> None:
    body = json.dumps(BODIES["/v1/completions"]).encode()
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    head = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = await connect(emulator.url, head + chunks[:20], chunks[20:])
    assert (await wire.answer()).status == 200
    assert emulator.replicas[0].requests[0].body == body


async def test_emulator_answers_expect_continue_with_100(emulator: Emulator, connect) -> None:
    body = json.dumps(BODIES["/v1/completions"]).encode()
    request = http("/v1/completions", body, "Expect: 100-continue")
    wire = await connect(emulator.url, request[: -len(body)])
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.send(body)
    assert (await wire.answer()).status == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"),
    ],
)
async def test_emulator_refuses_an_invalid_http_request_and_closes(
    emulator: Emulator, connect, request_: bytes, status: bytes
) -> None:
    wire = await connect(emulator.url, request_)
    assert (await wire.rest()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (http("/nothing"), 404),
        (http("/v1/models/other"), 404),
        (http("/v1/chat/completions"), 405),
        (http("/health", b"{}"), 405),
        (http("/emulator/faults", method="DELETE"), 405),
    ],
)
async def test_emulator_answers_other_paths_and_methods_like_vllm(
    emulator: Emulator, connect, request_: bytes, status: int
) -> None:
    wire = await connect(emulator.url, request_)
    assert (await wire.answer()).status == status
