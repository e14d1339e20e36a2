"""Recordings over real sockets: forms in, text out, whole, bare and in chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .capture import Answer, Capture, whole
from .conftest import Connect, EmulatorFactory, GatewayFactory
from .policies import rules
from .raw import MODEL, head

PATHS = ["/v1/audio/transcriptions", "/v1/audio/translations"]
RECORDING = bytes(range(256)) * 500
"""Four seconds, by the emulator's count."""


def form(path: str, file: bytes = RECORDING, *lines: str, **fields: str) -> bytes:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    sound = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + file
    body = b"".join(b"--mine\r\n" + part + b"\r\n" for part in [sound, *parts]) + b"--mine--\r\n"
    kind = "Content-Type: multipart/form-data; boundary=mine"
    return head(path, kind, f"Content-Length: {len(body)}", *lines) + body


@pytest.mark.parametrize("path", PATHS)
async def test_recording_is_transcribed(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, path: str
) -> None:
    replicas = await emulator()
    client = await connect((await gateway(rules(replicas.url))).url)
    response = await client.ask(form(path, model=MODEL))
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.json()["usage"] == {"type": "duration", "seconds": 4}
    bare = await client.ask(form(path, model=MODEL, response_format="text"))
    assert bare.body.decode() == response.json()["text"]
    assert [received.path for received in replicas.replicas[0].requests] == [path, path]


@pytest.mark.parametrize("wanted", [True, False])
async def test_transcription_stream_is_whole_and_has_usage_if_requested(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect, wanted: bool
) -> None:
    replicas = await emulator()
    gw = await gateway(rules(replicas.url, tier="limits: {tokens: 100k/min}"))
    client = await connect(gw.url)
    text = (await client.ask(form(PATHS[0], model=MODEL))).json()["text"]
    more: dict[str, Any] = {"stream_include_usage": "true"} if wanted else {}
    response = await client.ask(form(PATHS[0], model=MODEL, stream="true", **more))
    *chunks, done = response.events
    assert (response.status, response.whole, done) == (200, True, "[DONE]")
    usage = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert usage == ([{"prompt_tokens": 200, "total_tokens": 208, "completion_tokens": 8}] if wanted else [])
    said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert said.strip() == text
    after = await client.ask(form(PATHS[0], model=MODEL))
    assert int(after.headers["x-ratelimit-remaining-tokens"]) < 100_000


async def test_replica_gets_an_audio_form_written_by_the_gateway(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    capture.answer = lambda call: Answer(whole(b'{"text":"Hi"}'))
    client = await connect((await gateway(rules(capture.url))).url)
    cheats = {"priority": "-9", "request_id": "mine", "chunking_strategy": "auto"}
    response = await client.ask(form(PATHS[0], RECORDING, "X-Data-Parallel-Rank: 3", model="default", **cheats))
    assert (response.status, response.body) == (200, b'{"text":"Hi"}')
    assert set(response.headers["x-tailgate-changed"].split(", ")) == set(cheats)
    (call,) = capture.calls
    (kind,) = call.header("content-type")
    boundary = kind.removeprefix("multipart/form-data; boundary=").encode()
    assert len(boundary) == 40
    assert b"mine" not in call.body
    assert call.body == (
        b'--%b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n'
        b'--%b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n'
        b"%b\r\n--%b--\r\n" % (boundary, MODEL.encode(), boundary, RECORDING, boundary)
    )


async def test_recording_above_the_body_limit_is_refused_before_it_is_sent(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url), max_body_bytes=100_000)
    response = await (await connect(gw.url)).ask(form(PATHS[0], model=MODEL))
    assert (response.status, response.reason) == (413, "body-too-large")
    assert not capture.calls


async def test_recording_is_retried_at_another_replica_if_the_first_is_gone(
    gateway: GatewayFactory, emulator: EmulatorFactory, connect: Connect
) -> None:
    replicas = await emulator(replicas=2)
    client = await connect((await gateway(rules(*replicas.urls, tier="retry: {budget: 100%}"))).url)
    broken, well = replicas.replicas
    broken.fault("reset", after_bytes=0)
    for asked in range(1, 21):
        assert (await client.ask(form(PATHS[0], model=MODEL))).status == 200
        assert well.received_total == asked
        if broken.received_total:
            break
    assert broken.requests[-1].body == well.requests[-1].body


async def test_json_body_on_an_audio_path_is_refused_with_an_explanation(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    body = json.dumps({"model": MODEL, "file": "a.wav"}).encode()
    client = await connect((await gateway(rules(capture.url))).url)
    response = await client.ask(head(PATHS[0], f"Content-Length: {len(body)}") + body)
    assert (response.status, response.reason) == (400, "bad-request")
    assert "must be multipart/form-data" in response.error["message"]
