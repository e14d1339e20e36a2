"""Two gateways share a real store over TLS, with a private authority and a user of their own."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.driving.store import Store
from gateway.observe.usage.database import UsageDatabase
from gateway.observe.usage.sharing import UsageSharing
from gateway.store_client import StoreError
from loadtests.processes import free_port
from tests.certificates import Authority
from tests.stores import PROGRAM, needs_store, real_store

from .conftest import EmulatorFactory, GatewayFactory
from .policies import rules
from .test_store import LOAD, pair, shares, view
from .waiting import until

USER = "gateway:s3cret"


class TlsStore:
    """A store that speaks TLS at `port`; its certificate is of `authority`."""

    def __init__(self, authority: Authority) -> None:
        certificate, key = authority.issue("store", "IP:127.0.0.1")
        files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
        trusts = ("--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no", "--tls-replication", "yes")
        self.arguments = (*files, *trusts)
        self.port = free_port()
        self._query = f"?ssl_ca_certs={authority.file}"

    def url(self, user: str = USER, host: str = "127.0.0.1", query: str | None = None) -> str:
        return f"rediss://{user}@{host}:{self.port}/0{self._query if query is None else query}"

    def url_by(self, sentinel_port: int) -> str:
        return f"rediss+sentinel://{USER}@127.0.0.1:{sentinel_port}/main/0{self._query}"


def speaks_tls() -> bool:
    """Whether the program knows the option at all."""
    assert PROGRAM is not None
    tried = subprocess.run([PROGRAM, "--port", "0", "--tls-port", "x"], capture_output=True, text=True, check=False)
    return "Bad directive" not in tried.stdout + tried.stderr


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def store(authority: Authority) -> AsyncIterator[TlsStore]:
    if not speaks_tls():
        pytest.skip(f"{PROGRAM} was built without TLS")
    made = TlsStore(authority)
    async with real_store("--tls-port", str(made.port), *made.arguments) as running:
        await running.tell("ACL", "SETUSER", "gateway", "on", ">s3cret", "~{tailgate}*", "+@all")
        yield made


@needs_store
async def test_gateways_share_a_store_over_tls_by_an_authority_and_a_user_of_their_own(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: TlsStore, tmp_path: Path
) -> None:
    fleet = await emulator(replicas=1)
    await pair(gateway, rules(*fleet.urls), store.url())
    UsageDatabase(tmp_path / "usage.db").close()
    sharing = UsageSharing(store.url(), tmp_path / "usage.db")
    await shares(sharing)


@needs_store
async def test_gateways_find_a_master_over_tls_by_a_sentinel_over_tls(
    gateway: GatewayFactory, emulator: EmulatorFactory, store: TlsStore, tmp_path: Path
) -> None:
    file, port = tmp_path / "sentinel.conf", free_port()
    file.write_text(f"sentinel monitor main 127.0.0.1 {store.port} 1\n")
    fleet = await emulator(replicas=1)
    async with real_store(str(file), "--sentinel", "--tls-port", str(port), *store.arguments):
        await pair(gateway, rules(*fleet.urls), store.url_by(port))


@needs_store
@pytest.mark.parametrize(
    ("user", "host", "query", "said"),
    [
        (USER, "127.0.0.1", "", "certificate verify failed: self-signed certificate in certificate chain"),
        (USER, "127.0.0.1", "?ssl_ca_certs={other}", "certificate verify failed: "),
        (USER, "localhost", None, "certificate is not valid for 'localhost'"),
        ("gateway:wrong", "127.0.0.1", None, "invalid username-password pair"),
    ],
)
async def test_store_that_cannot_be_trusted_is_one_line_with_its_host_and_the_reason(
    gateway: GatewayFactory,
    emulator: EmulatorFactory,
    store: TlsStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    user: str,
    host: str,
    query: str | None,
    said: str,
) -> None:
    caplog.set_level(logging.INFO, "tailgate")
    fleet = await emulator(replicas=1)
    other = Authority(tmp_path, "another authority").file
    gw = await gateway(rules(*fleet.urls), store=store.url(user, host, query and query.format(other=other)))
    await until(lambda: said in caplog.text, seen=lambda: view(gw).error)
    told = view(gw).failures
    await until(lambda: view(gw).failures > told)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("store: ")]
    (line,) = [each for each in lines if "no answer within" not in each]  # as on a busy machine
    assert line.startswith(f"store: {host}:{store.port} is away (")
    assert said in line
    assert user.partition(":")[2] not in caplog.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://h/0?ssl_ca_cert=x", "its URL has an unknown option ssl_ca_cert: write one of db, ssl_ca_certs, "),
        ("rediss+sentinel://h/main/0?socket_timeout=9", "its URL has an unknown option socket_timeout: "),
        ("rediss://h/0?ssl_ca_certs=/no/ca.pem", "ssl_ca_certs: there is no file /no/ca.pem"),
        ("redis://h/0?ssl_ca_certs=/no/ca.pem", "ssl_ca_certs is for TLS: write rediss://"),
    ],
)
def test_option_of_the_url_that_cannot_be_used_is_refused_at_the_start(url: str, said: str) -> None:
    with pytest.raises(StoreError) as raised:
        Store(url, lambda _: LOAD, lambda *_: None)
    assert f"--store: {said}" in str(raised.value)
