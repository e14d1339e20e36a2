"""A gateway process that is stopped (SIGSTOP) past its deadlines: what was done in time counts; nobody is blamed."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
from pathlib import Path
from time import monotonic

import pytest

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Call, Capture, token
from .conftest import Connect
from .policies import rules
from .process import Serving, serving
from .raw import chat, request
from .waiting import DEADLINE_S, until

STREAMS = 20
TTFT_S = 1.0
CONNECT_S = 2.0
STOPPED_S = 2.6
SYN_SENT = "02"
ANSWER = STREAM_HEAD + token("in") + token(" time", "stop") + DONE + LAST_CHUNK
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def _silent(_: Call) -> None:
    """No answer yet."""


async def _states(served: Serving, connect: Connect) -> list[str]:
    admin = await connect(served.admin_url)
    state = json.loads((await admin.ask(request("/admin/state"))).body)
    return [replica["state"] for pool in state["pools"] for replica in pool["replicas"]]


async def test_answers_that_arrive_while_the_process_is_stopped_are_in_time(
    tmp_path: Path, capture: Capture, connect: Connect
) -> None:
    capture.answer = _silent
    policy = rules(capture.url, tier=f"timeouts: {{ttft: {TTFT_S:g}s}}", pool="health: {failures: 1}")
    async with serving(tmp_path, policy) as served:
        clients = [await connect(served.url) for _ in range(STREAMS)]
        for client in clients:
            client.send(chat(stream=True))

        def asked() -> list[Call]:
            return [call for call in capture.calls if call.path.startswith("/v1/chat")]

        await until(lambda: len(asked()) == STREAMS)
        served.signal(signal.SIGSTOP)
        stopped_at = monotonic()
        for call in asked():
            call.send(ANSWER)
            call.finish()
        await until(lambda: monotonic() > stopped_at + STOPPED_S)
        served.signal(signal.SIGCONT)
        async with asyncio.timeout(DEADLINE_S):
            answers = [await client.response() for client in clients]
        assert {(answer.status, answer.whole) for answer in answers} == {(200, True)}
        assert await _states(served, connect) == ["up"]


class SlowListener:
    """A replica that accepts only when told to. Until then, the kernel keeps its clients waiting."""

    def __init__(self) -> None:
        # With a backlog of 0, Linux answers a SYN with a cookie. It forgets a connection whose last ACK finds the queue
        # full, while the client takes it for established.
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self._fillers: list[socket.socket] = []

    def fill(self) -> None:
        """Fill the queue of connections that wait to be accepted. Nobody but later clients waits for room in it."""
        while True:
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            # Loopback connects at once. A client whose SYN finds the queue full tries again after a second.
            _, is_connected, _ = select.select([], [filler], [], 0.1)
            if not is_connected:
                filler.close()
                return
            self._fillers.append(filler)

    def connections(self) -> list[str]:
        """Lines of the kernel on connections to and from this port."""
        lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
        return [line for line in lines if f":{self.port:04X}" in line]

    def is_awaited(self) -> bool:
        """Whether a client waits for a connection."""
        return any(line.split()[2:4] == [f"0100007F:{self.port:04X}", SYN_SENT] for line in self.connections())

    async def accept(self) -> socket.socket:
        """The next connection that is not a filler's."""
        ours = {filler.getsockname()[1] for filler in self._fillers}
        while True:
            # Not the loop's `sock_accept`: if that is cancelled, a connection may be lost that it has just accepted.
            await self._connected()
            peer, (_, port) = self.socket.accept()
            peer.setblocking(False)
            if port not in ours:
                return peer
            peer.close()

    async def _connected(self) -> None:
        loop, connected = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.socket, connected.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await connected.wait()
        except TimeoutError:
            raise AssertionError("nobody connects: " + "\n".join(self.connections())) from None
        finally:
            loop.remove_reader(self.socket)

    def close(self) -> None:
        """Close all."""
        for each in (self.socket, *self._fillers):
            each.close()


async def _answer_all(listener: SlowListener, peer: socket.socket | None = None) -> None:
    """Answer streams with two tokens, and everything else with 200; that of `peer` first."""
    loop = asyncio.get_running_loop()
    while True:
        with peer or await listener.accept() as peer:  # closed too if the test ends meanwhile
            if received := await loop.sock_recv(peer, 65536):
                await loop.sock_sendall(peer, ANSWER if b'"stream":true' in received else OK)
        peer = None


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's list of connections")
async def test_connection_that_is_made_while_the_process_is_stopped_is_used(tmp_path: Path, connect: Connect) -> None:
    listener = SlowListener()
    health = "health: {failures: 1, interval: 1h, scrape_interval: 1h}"
    policy = rules(
        f"http://127.0.0.1:{listener.port}", pool=f"connect_timeout: {CONNECT_S:g}s, engine: openai, {health}"
    )
    answering = asyncio.create_task(_answer_all(listener))
    async with serving(tmp_path, policy) as served:
        client = await connect(served.url)
        client.send(chat())
        assert (await client.response()).status == 200
        answering.cancel()
        await asyncio.wait((answering,))
        listener.fill()
        client.send(chat(stream=True))
        await until(listener.is_awaited)
        served.signal(signal.SIGSTOP)
        stopped_at = monotonic()
        peer = await listener.accept()
        await until(lambda: monotonic() > stopped_at + CONNECT_S + STOPPED_S)
        served.signal(signal.SIGCONT)
        # It carries the request, or the reading of models before it. Either way the request is served.
        answering = asyncio.create_task(_answer_all(listener, peer))
        async with asyncio.timeout(DEADLINE_S):
            answer = await client.response()
        assert (answer.status, answer.whole) == (200, True)
        assert await _states(served, connect) == ["up"]
        answering.cancel()
    listener.close()
