"""The API over TLS: requests, streams, clients that leave, and bytes that are not TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from . import raw
from .capture import STREAM_HEAD, Capture, never, token
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, chat, head
from .state import held
from .waiting import until

LIMIT_S = 1.0


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Settings with a self-signed certificate for 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    files = {"ssl_certfile": folder / "cert.pem", "ssl_keyfile": folder / "key.pem"}
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    outs: list[str | Path] = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-out",
        files["ssl_certfile"],
        "-keyout",
        files["ssl_keyfile"],
    ]
    subprocess.run([openssl, *options, *outs], check=True, capture_output=True)
    return files


@pytest.fixture
def trust(certificate: dict[str, Path]) -> ssl.SSLContext:
    """A client's context that trusts it."""
    return ssl.create_default_context(cafile=str(certificate["ssl_certfile"]))


async def test_tls_serves_whole_answers_and_streams(
    gateway: GatewayFactory, capture: Capture, connect: Connect, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    gw = await gateway(rules(capture.url), **certificate)
    assert gw.url.startswith("https://")
    client = await connect(gw.url, tls=trust)
    for stream in (False, True, False):
        response = await client.ask(chat(stream=stream))
        assert (response.status, response.whole) == (200, True)
    response = await client.ask(head(CHAT, "Content-Length: 99999999999"))
    assert (response.status, response.headers["connection"]) == (413, "close")


@pytest.mark.parametrize("streaming", [False, True], ids=["prefilling", "streaming"])
async def test_client_that_leaves_over_tls_frees_the_replica(
    gateway: GatewayFactory,
    capture: Capture,
    connect: Connect,
    certificate: dict[str, Path],
    trust: ssl.SSLContext,
    streaming: bool,
) -> None:
    capture.answer = (lambda call: call.send(STREAM_HEAD + token("Hi"))) if streaming else never
    gw = await gateway(rules(capture.url), **certificate)
    for leave in (raw.Client.fin, raw.Client.rst, lambda client: client.send(chat())):
        capture.calls.clear()
        client = await connect(gw.url, tls=trust)
        client.send(chat(stream=True))
        if streaming:
            assert (await client.head())[0] == 200
        await capture.until(lambda: capture.calls)
        (call,) = capture.calls
        leave(client)
        assert await capture.until(lambda call=call: call.aborted) <= LIMIT_S
        await client.close()
    await until(lambda: not held(gw), seen=lambda: held(gw))


async def test_plain_text_and_garbage_on_the_tls_port_get_no_answer(
    gateway: GatewayFactory, capture: Capture, connect: Connect, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    gw = await gateway(rules(capture.url), **certificate)
    for data in (chat(), b"\x16\x03\x01\xff\xff" + b"\0" * 100, b"\x00" * 1000):
        client = await connect(gw.url)
        client.send(data)
        assert b"HTTP/1.1 200" not in await client.rest()
    assert not capture.calls
    client = await connect(gw.url, tls=trust)
    assert (await client.ask(chat())).status == 200


async def test_slow_senders_over_tls_are_timed_out(
    gateway: GatewayFactory, capture: Capture, connect: Connect, certificate: dict[str, Path], trust: ssl.SSLContext
) -> None:
    gw = await gateway(rules(capture.url), receive_timeout_s=0.5, keep_alive_s=0.5, **certificate)
    clients = [await connect(gw.url, tls=trust) for _ in range(3)]
    idle, half, kept = clients
    half.send(head(CHAT, "Content-Length: 100"))
    assert (await kept.ask(chat())).status == 200
    assert await asyncio.gather(idle.rest(), kept.rest()) == [b"", b""]
    assert (await half.response()).status == 408
    await half.close()
    await until(lambda: gw.limits.connections == 0)
