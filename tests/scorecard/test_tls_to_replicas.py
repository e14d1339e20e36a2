"""Replicas behind https, with names, certificates, tokens and paths of their own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.policy import PolicyErrors, load, load_text
from gateway.settings import Settings
from tests.certificates import Authority

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import chat
from .waiting import until

HEALTH = "health: {interval: 10ms, scrape_interval: 10ms}"
Served = Callable[[ssl.SSLContext], Awaitable[Capture]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """`await served(context)`: a replica behind TLS."""
    async with AsyncExitStack() as stack:

        async def start(context: ssl.SSLContext) -> Capture:
            capture = Capture()
            await capture.start(tls=context)
            stack.push_async_callback(capture.stop)
            return capture

        yield start


def errors_of(gw: Gateway) -> list[str]:
    return [error for report in gw.fleet.reports() for error in report.errors.values()]


async def test_requests_and_checks_reach_a_replica_over_tls_below_its_path_with_its_host_and_token(
    gateway: GatewayFactory, served: Served, connect: Connect, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret-of-a-file\n")
    capture = await served(authority.server("DNS:llama.internal", clients=True))
    certificate, key = authority.issue("gateway")
    tls = f"{{ca_file: {authority.file}, cert_file: {certificate}, key_file: {key}, server_name: llama.internal}}"
    pool = f"{HEALTH}, tls: {tls}, host: llama.internal, api_key_file: {tmp_path / 'token'}"
    gw = await gateway(rules(f"{capture.url}/models/llama/", pool=pool))
    client = await connect(gw.url)
    for stream in (False, True, True):
        answer = await client.ask(chat(stream=stream))
        assert (answer.status, answer.whole) == (200, True)
    own = {"/health", "/metrics", "/v1/models"}
    await until(lambda: len({call.path for call in capture.probes}) >= len(own))
    assert {call.path for call in capture.probes} == {f"/models/llama{path}" for path in own}
    assert {call.path for call in capture.calls} == {"/models/llama/v1/chat/completions"}
    for call in capture.calls + capture.probes:
        assert call.header("host") == ["llama.internal"]
        assert call.header("authorization") == ["Bearer s3cret-of-a-file"]
    assert len(capture.traffic) == 1  # the connection is kept


@pytest.mark.parametrize(
    ("names", "tls", "said"),
    [
        ("IP:127.0.0.1", "", "the certificate of 127.0.0.1 is not trusted: unable to get local issuer certificate; "),
        ("IP:127.0.0.1", "", "it was checked against the certificates of the system"),
        ("DNS:other", "{ca}", "certificate is not valid for '127.0.0.1'; it was checked against "),
        ("DNS:other", "{ca}, server_name: llama", "the certificate of llama is not trusted: Hostname mismatch"),
    ],
)
async def test_certificate_that_does_not_fit_is_named_with_host_and_reason(
    gateway: GatewayFactory, served: Served, connect: Connect, authority: Authority, names: str, tls: str, said: str
) -> None:
    capture = await served(authority.server(names))
    section = tls.format(ca=f"ca_file: {authority.file}")
    gw = await gateway(rules(capture.url, pool=f"{HEALTH}, tls: {{{section}}}"))
    await until(lambda: any(said in error for error in errors_of(gw)), seen=lambda: errors_of(gw))
    client = await connect(gw.url)
    assert (await client.ask(chat())).status in (502, 503)
    assert not capture.calls


async def test_replica_that_wants_a_certificate_of_the_gateway_is_reported_as_such(
    gateway: GatewayFactory, served: Served, authority: Authority
) -> None:
    capture = await served(authority.server("IP:127.0.0.1", clients=True))
    gw = await gateway(rules(capture.url, pool=f"{HEALTH}, tls: {{ca_file: {authority.file}}}"))
    wanted = "; if it wants a certificate of the gateway, write tls.cert_file"
    await until(lambda: wanted in str(errors_of(gw)), seen=lambda: errors_of(gw))


async def test_replica_without_tls_at_an_https_url_is_reported_as_such(
    gateway: GatewayFactory,
) -> None:
    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        gw = await gateway(rules(f"https://127.0.0.1:{port}", pool=HEALTH))
        wanted = "TLS with 127.0.0.1 failed: it does not speak TLS: write http:// in its URL"
        await until(lambda: wanted in str(errors_of(gw)), seen=lambda: errors_of(gw))


async def test_token_and_certificate_are_read_again_when_their_files_change(
    served: Served, connect: Connect, authority: Authority, tmp_path: Path
) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text("first")
    capture = await served(authority.server("IP:127.0.0.1"))
    ca.write_text(Authority(tmp_path, "another authority").file.read_text())
    pool = f"{HEALTH}, tls: {{ca_file: ca.pem}}, api_key_file: token"
    (tmp_path / "policy.yaml").write_text(rules(capture.url, pool=pool))
    path = tmp_path / "policy.yaml"
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, load(path), path) as gw:
        await until(lambda: "not trusted" in str(errors_of(gw)))
        ca.write_bytes(authority.file.read_bytes())
        await until(lambda: gw.controller.alive() and "not trusted" not in str(errors_of(gw)))
        client = await connect(gw.url)
        assert (await client.ask(chat())).status == 200
        token.write_text("a token with spaces")
        await until(lambda: "pools.main.api_key_file" in gw.reloads.latest.error)
        assert "with spaces" not in gw.reloads.latest.error
        assert (await client.ask(chat())).status == 200
        token.write_text("second")
        await until(lambda: not gw.reloads.latest.error)
        assert (await client.ask(chat())).status == 200
        tokens = [call.header("authorization")[0] for call in capture.calls]
        assert tokens == ["Bearer first", "Bearer first", "Bearer second"]
        await client.close()


async def test_listener_shows_a_renewed_certificate_to_new_connections(
    gateway: GatewayFactory, capture: Capture, authority: Authority, tmp_path: Path
) -> None:
    files = {"ssl_certfile": tmp_path / "cert.pem", "ssl_keyfile": tmp_path / "key.pem"}

    def write(name: str) -> None:
        for target, source in zip(files.values(), authority.issue(name, "IP:127.0.0.1"), strict=True):
            target.write_bytes(source.read_bytes())

    write("old")
    gw = await gateway(rules(capture.url), **files)
    port = int(gw.url.rsplit(":", 1)[1])
    trust = ssl.create_default_context(cafile=str(authority.file))

    async def shown() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        try:
            return str(writer.get_extra_info("peercert")["subject"])
        finally:
            writer.close()
            await writer.wait_closed()

    assert "old" in await shown()
    files["ssl_keyfile"].write_text("damaged")
    write("new")
    async with asyncio.timeout(30):
        while "new" not in await shown():  # noqa: ASYNC110 - the listener tells nobody
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ("ca_file: absent.pem", "pools.main.tls.ca_file: absent.pem cannot be read: No such file or directory"),
        ("ca_file: text.pem", "pools.main.tls.ca_file: text.pem has no certificates in PEM"),
        ("cert_file: gateway.pem, key_file: other.key", "other.key is not the key of the certificate gateway.pem"),
        ("cert_file: text.pem", "pools.main.tls.cert_file: text.pem and the key in text.pem cannot be used"),
    ],
)
async def test_files_of_tls_that_cannot_be_used_are_named_at_the_start(
    authority: Authority, tmp_path: Path, tls: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "gateway.pem").write_bytes(authority.issue("gateway")[0].read_bytes())
    (tmp_path / "other.key").write_bytes(authority.issue("other")[1].read_bytes())
    monkeypatch.chdir(tmp_path)
    policy = load_text(rules("https://127.0.0.1:1", pool=f"tls: {{{tls}}}"), "policy.yaml", {})
    with pytest.raises(PolicyErrors) as caught:
        Gateway(Settings(port=0, admin_port=0), policy)
    assert said in str(caught.value)
