"""Each fault has its effect over a real socket, and ends when it is switched off."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtests.emulator import Emulator, FaultKind
from loadtests.emulator.faults import parse_fault

from .wire import BODIES, chat, generation, http

STREAM = chat(stream=True, max_tokens=8)
EVENTS = 1 + 8 + 1  # role, tokens, [DONE]


async def well(emulator: Emulator, connect, replica: int = 0) -> bool:
    """Whether it now sends a complete stream."""
    wire = await connect(emulator.urls[replica], STREAM)
    answer = await wire.answer()
    return answer.status == 200 and answer.ended and answer.events()[-1] == "[DONE]" and len(answer.chunks) == EVENTS


async def switch(emulator: Emulator, connect, **fault: object) -> None:
    """Switch a fault over HTTP, by way of the second replica."""
    wire = await connect(emulator.urls[1], http("/emulator/faults", json.dumps({"replica": 0} | fault).encode()))
    answer = await wire.answer()
    assert answer.status == 200, answer.body


async def test_slow_fault_stretches_every_step_until_it_ends(emulator: Emulator) -> None:
    engine = emulator.replicas[0].engine
    emulator.replicas[0].fault("slow", factor=8)
    assert engine.model.slowdown == 8
    assert emulator.replicas[1].engine.model.slowdown == 1
    emulator.replicas[0].fault(None)
    assert engine.model.slowdown == 1


async def test_pause_fault_stops_answers_and_resumes_them(real_time: Emulator, connect) -> None:
    replica = real_time.replicas[0]
    streaming = await connect(real_time.url, chat(stream=True, max_tokens=40))
    await streaming.reader.readuntil(b"\n\n\r\n")
    replica.fault("pause")
    silent = await connect(real_time.url, chat(), http("/health"))
    await replica.until(lambda r: r.received_total == 2)
    at = replica.engine.model.step_at()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(silent.reader.read(1), 0.05)
    assert replica.engine.model.step_at() == at
    assert replica.running == 1
    replica.fault(None)
    assert (await silent.answer()).status == 200
    assert (await silent.answer()).status == 200
    assert (await streaming.rest_of_chunks())[1]
    assert replica.received_total == 2


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_refuse_fault_refuses_connections_until_it_ends(emulator: Emulator, connect, how: str) -> None:
    idle = await connect(emulator.url, http("/health"))
    await idle.answer()
    await switch(emulator, connect, fault="refuse", how=how)
    assert await idle.rest() == b""
    if how == "close":
        with pytest.raises(ConnectionRefusedError):
            await connect(emulator.url)
    else:
        wire = await connect(emulator.url, STREAM)
        assert await wire.rest() == b""
        assert wire.reset
    assert await well(emulator, connect, replica=1)
    await switch(emulator, connect, fault=None)
    await emulator.replicas[0].until(lambda r: r.listening)
    assert await well(emulator, connect)


async def test_dead_fault_resets_all_connections_until_the_replica_is_revived(real_time: Emulator, connect) -> None:
    replica = real_time.replicas[0]
    wire = await connect(real_time.url, chat(stream=True, max_tokens=1000))
    await wire.reader.readuntil(b"data: ")
    replica.fault("dead")
    assert (replica.running, replica.in_flight) == (0, 0)
    await wire.rest()
    assert wire.reset
    with pytest.raises(ConnectionRefusedError):
        await connect(real_time.url)
    replica.fault(None)
    await replica.until(lambda r: r.listening)
    again = await connect(real_time.url, chat())
    assert (await again.answer()).status == 200


async def test_poison_marker_in_a_prompt_kills_only_its_replica(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="die_on_marker", marker="poison")
    assert await well(emulator, connect)
    bystander = await connect(emulator.url, http("/health"))
    await bystander.answer()
    wire = await connect(emulator.url, generation("/v1/completions", prompt="a poisonous question"))
    assert await wire.rest() == b""
    assert wire.reset
    assert await bystander.rest() == b""
    assert bystander.reset
    with pytest.raises(ConnectionRefusedError):
        await connect(emulator.url)
    assert await well(emulator, connect, replica=1)
    assert emulator.replicas[0].received_total == 2


@pytest.mark.parametrize("path", list(BODIES))
async def test_status_503_fault_answers_at_once_with_retry_after(emulator: Emulator, connect, path: str) -> None:
    await switch(emulator, connect, fault="status_503", retry_after_s=7)
    wire = await connect(emulator.url, generation(path, stream=True), http("/health"))
    answer = await wire.answer()
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert "currently busy" in answer.json()["error"]["message"]
    assert (await wire.answer()).status == 200


async def test_status_500_fault_answers_like_a_draining_vllm(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="status_500")
    wire = await connect(emulator.url, STREAM)
    assert (await wire.answer()).json()["error"]["code"] == 500


async def test_an_emulated_replica_that_is_unhealthy_fails_health_checks_and_answers_requests(
    emulator: Emulator, connect
) -> None:
    await switch(emulator, connect, fault="unhealthy")
    wire = await connect(emulator.url, http("/health"))
    assert (await wire.answer()).status == 503
    assert await well(emulator, connect)


@pytest.mark.parametrize("path", list(BODIES))
async def test_error_200_fault_puts_a_503_into_the_stream(emulator: Emulator, connect, path: str) -> None:
    await switch(emulator, connect, fault="error_200")
    wire = await connect(emulator.url, generation(path, stream=True), generation(path))
    answer = await wire.answer()
    assert (answer.status, answer.ended) == (200, True)
    error, done = answer.events()
    assert done == "[DONE]"
    assert error["error"]["type"] == "Service Unavailable"
    assert path == "/v1/messages" or error["error"]["code"] == 503
    assert (await wire.answer()).status == 503


@pytest.mark.parametrize("after_events", [0, 1, 4, EVENTS - 1])
@pytest.mark.parametrize("kind", ["reset", "truncated"])
async def test_truncated_fault_breaks_a_stream_after_a_number_of_events(
    emulator: Emulator, connect, kind: str, after_events: int
) -> None:
    await switch(emulator, connect, fault=kind, after_events=after_events)
    wire = await connect(emulator.url, STREAM)
    answer = await wire.answer()
    assert not answer.ended
    assert len(answer.chunks) == after_events
    assert wire.reset == (kind == "reset")
    await emulator.replicas[0].until(lambda r: (r.running, r.in_flight) == (0, 0))
    await switch(emulator, connect, fault=None)
    assert await well(emulator, connect)


@pytest.mark.parametrize("kind", ["reset", "truncated"])
async def test_truncated_fault_breaks_a_whole_answer_in_its_body(emulator: Emulator, connect, kind: str) -> None:
    await switch(emulator, connect, fault=kind)
    wire = await connect(emulator.url, chat())
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert 0 < len(body) < int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    assert wire.reset == (kind == "reset")


@pytest.mark.parametrize("stream", [True, False])
async def test_cut_fault_can_break_an_answer_at_every_byte(emulator: Emulator, connect, stream: bool) -> None:
    replica = emulator.replicas[0]
    request = chat(stream=stream, max_tokens=2).replace(b"Host:", b"Connection: close\r\nHost:")
    whole = await (await connect(emulator.url, request)).rest()
    for cut in range(0, len(whole), 7):
        replica.fault("truncated", after_bytes=cut)
        wire = await connect(emulator.url, request)
        assert len(await wire.rest()) == cut
        assert not wire.reset
    replica.fault("truncated", after_bytes=len(whole))
    assert len(await (await connect(emulator.url, request)).rest()) == len(whole)


@pytest.mark.parametrize("after_events", [0, 3])
async def test_stall_fault_keeps_a_stream_open_and_silent(emulator: Emulator, connect, after_events: int) -> None:
    await switch(emulator, connect, fault="stall", after_events=after_events)
    wire = await connect(emulator.url, STREAM)
    await wire.reader.readuntil(b"\r\n\r\n")
    for _ in range(after_events):
        await wire.reader.readuntil(b"\n\n\r\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wire.reader.read(1), 0.05)
    assert wire.writer.transport.is_closing() is False
    replica = emulator.replicas[0]
    assert replica.in_flight == 1
    await wire.close()
    await replica.until(lambda r: r.in_flight == 0, timeout_s=1.0)


async def test_the_garbage_fault_of_the_emulator_answers_without_http(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="garbage")
    wire = await connect(emulator.url, STREAM)
    assert not (await wire.rest()).startswith(b"HTTP/")


async def test_json_garbage_fault_sends_garbage_in_valid_framing(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="garbage", how="json", after_events=2)
    wire = await connect(emulator.url, STREAM, chat())
    answer = await wire.answer()
    assert (answer.ended, len(answer.chunks)) == (True, EVENTS)
    for index, chunk in enumerate(answer.chunks[:-1]):
        if index == 2:
            with pytest.raises(json.JSONDecodeError):
                json.loads(chunk[6:])
        else:
            json.loads(chunk[6:])
    whole = await wire.answer()
    assert whole.status == 200
    with pytest.raises(json.JSONDecodeError):
        whole.json()


async def test_the_long_line_fault_of_the_emulator_sends_ten_megabytes_without_a_line_end(
    emulator: Emulator, connect
) -> None:
    await switch(emulator, connect, fault="long_line", after_events=1)
    wire = await connect(emulator.url, STREAM)
    answer = await wire.answer()
    assert len(answer.chunks[1]) > 10_000_000
    assert b"\n" not in answer.chunks[1]


@pytest.mark.parametrize("path", list(BODIES))
async def test_shutdown_like_fault_ends_a_stream_cleanly_after_an_error(emulator: Emulator, connect, path: str) -> None:
    await switch(emulator, connect, fault="shutdown_like", after_events=3)
    wire = await connect(emulator.url, generation(path, stream=True))
    answer = await wire.answer()
    assert answer.ended
    assert b"EngineCore" in answer.body
    assert (answer.events()[-1] == "[DONE]") == ("completions" in path)
    await emulator.replicas[0].until(lambda r: (r.running, r.in_flight) == (0, 0))


async def test_balloon_fault_runs_answers_to_max_tokens(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="balloon")
    wire = await connect(emulator.url, chat(ignore_eos=False, max_tokens=2000, stop=[" ", "a", "e"]))
    assert (await wire.answer()).json()["usage"]["completion_tokens"] == 2000


async def test_repeat_fault_repeats_one_phrase_without_end(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="repeat")
    wire = await connect(emulator.url, chat(ignore_eos=False, max_tokens=500))
    text = (await wire.answer()).json()["choices"][0]["message"]["content"]
    assert text == " all work and no play" * 100


@pytest.mark.parametrize("stream", [True, False])
async def test_set_cookie_fault_sets_a_cookie(emulator: Emulator, connect, stream: bool) -> None:
    await switch(emulator, connect, fault="set_cookie")
    wire = await connect(emulator.url, chat(stream=stream))
    assert (await wire.answer()).headers["set-cookie"].startswith("emulator=")


async def test_emulated_fault_can_strike_a_number_of_times(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="status_503", count=2)
    wire = await connect(emulator.url, *[STREAM] * 3)
    assert [(await wire.answer()).status for _ in range(3)] == [503, 503, 200]
    assert emulator.replicas[0].active is None


async def test_truncated_fault_with_count_one_cuts_one_emulated_answer(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="truncated", after_events=2, count=1)
    wire = await connect(emulator.url, STREAM)
    assert len((await wire.answer()).chunks) == 2
    assert await well(emulator, connect)


async def test_an_emulated_fault_ends_after_its_time(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="refuse", for_s=0.02)
    await emulator.replicas[0].until(lambda r: r.active is None and r.listening)
    assert await well(emulator, connect)


async def test_emulator_lists_active_faults(emulator: Emulator, connect) -> None:
    await switch(emulator, connect, fault="slow", factor=3)
    wire = await connect(emulator.urls[1], http("/emulator/faults"))
    first, second = (await wire.answer()).json()
    assert (first["kind"], first["factor"], second) == ("slow", 3, None)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({}, "fault: missing"),
        ([], "fault: missing"),
        ({"fault": "earthquake"}, "fault: 'earthquake' is unknown"),
        ({"fault": "slow", "faktor": 8}, "faktor: unknown"),
        ({"fault": "slow", "factor": "8"}, "factor: '8' has the wrong type"),
        ({"fault": "slow", "factor": 0}, "factor: 0"),
        ({"fault": "stall", "after_events": -1}, "after_events: -1"),
        ({"fault": "stall", "after_bytes": -1}, "after_bytes: -1"),
        ({"fault": "stall", "count": 0}, "count: 0"),
        ({"fault": "stall", "for_s": 0}, "for_s: 0"),
        ({"fault": "garbage", "how": "loudly"}, "how: 'loudly'"),
        ({"fault": "die_on_marker", "marker": ""}, "marker: ''"),
        ({"fault": "slow", "replica": 2}, "replica: 2"),
        ({"fault": "slow", "replica": "0"}, "replica: '0'"),
    ],
)
async def test_emulator_refuses_a_bad_fault_by_field(emulator: Emulator, connect, wanted: object, field: str) -> None:
    wire = await connect(emulator.url, http("/emulator/faults", json.dumps(wanted).encode()))
    answer = await wire.answer()
    assert answer.status == 400
    assert answer.json()["detail"].startswith(field)
    assert emulator.replicas[0].active is None


def test_every_emulator_fault_can_be_set_by_name() -> None:
    for kind in FaultKind:
        assert parse_fault({"fault": kind.value}).kind is kind
    assert parse_fault({"fault": None}) is None
