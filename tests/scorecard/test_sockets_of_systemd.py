"""`tailgate serve` at sockets that systemd opened: they outlast the process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from gateway.listener import ListenError
from gateway.opened_sockets import opened_sockets
from gateway.settings import Settings

from .capture import Capture
from .conftest import Connect
from .policies import rules
from .process import serving
from .raw import chat
from .test_several_processes import deciders_of
from .waiting import until

ADDRESS = ("127.0.0.1", 0)


@pytest.fixture
def opened() -> Iterator[list[tuple[str, socket.socket]]]:
    """Listening sockets by name: two for the API, and one for the admin port between them."""
    with ExitStack() as stack:
        found: list[tuple[str, socket.socket]] = []
        for name in ("tailgate.socket", "admin", "more"):
            sock = stack.enter_context(socket.create_server(ADDRESS))
            found.append((name, sock))
        yield found


def url_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_gateway_serves_at_the_sockets_of_systemd_and_clients_wait_while_it_restarts(
    tmp_path: Path,
    capture: Capture,
    connect: Connect,
    opened: list[tuple[str, socket.socket]],
    workers: str,
) -> None:
    (_, api), (_, admin), (_, more) = opened
    policy = rules(capture.url)
    async with serving(tmp_path, policy, sockets=opened, TAILGATE_WORKERS=workers) as served:
        assert (served.url, served.admin_url) == (url_of(api), url_of(admin))
        for sock in (api, more):
            client = await connect(url_of(sock))
            assert (await client.ask(chat())).status == 200
        async with httpx.AsyncClient() as asking:
            assert (await asking.get(f"{url_of(admin)}/readyz")).status_code == 200
        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0, served.written.decode()
    waiting = await connect(url_of(api))  # is not refused
    waiting.send(chat())
    async with serving(tmp_path, policy, sockets=opened, TAILGATE_WORKERS=workers):
        assert (await waiting.response()).status == 200


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
async def test_next_decider_listens_at_the_same_admin_socket(
    tmp_path: Path, capture: Capture, opened: list[tuple[str, socket.socket]]
) -> None:
    admin = url_of(opened[1][1])
    async with (
        serving(tmp_path, rules(capture.url), sockets=opened, TAILGATE_WORKERS="2") as served,
        httpx.AsyncClient(timeout=60) as asking,
    ):
        os.kill(deciders_of(served)[0], signal.SIGKILL)
        await until(lambda: b"the decider has ended" in served.written)
        assert (await asking.get(f"{admin}/metrics")).status_code == 200  # it waits for the next


async def test_sockets_of_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LISTEN_PID", "1"), ("LISTEN_FDS", "2")):
        monkeypatch.setenv(name, value)
    assert opened_sockets().addressed(Settings(port=1)).port == 1
    assert "LISTEN_FDS" not in os.environ


def test_count_of_sockets_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LISTEN_PID", str(os.getpid())), ("LISTEN_FDS", "two")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ListenError, match="LISTEN_FDS is 'two', not a number"):
        opened_sockets()


@pytest.mark.parametrize("is_listening", [True, False])
async def test_socket_that_cannot_serve_is_refused_with_its_name(
    tmp_path: Path, capture: Capture, is_listening: bool
) -> None:
    with socket.socket(socket.AF_UNIX if is_listening else socket.AF_INET) as sock:
        sock.bind(str(tmp_path / "api.sock") if is_listening else ADDRESS)
        if is_listening:
            sock.listen()
        with pytest.raises(AssertionError, match=r"socket odd\.socket is no listening TCP port: write ListenStream="):
            async with serving(tmp_path, rules(capture.url), sockets=[("odd.socket", sock)]):
                pass
