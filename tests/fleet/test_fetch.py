"""One GET is bounded in time and size, keeps its connection after success, and fails with a value."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.core.pool_spec import ReplicaAccess
from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.fetch import Fetcher

from .replicas import FakeReplica, answer, replica, until


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        yield fake


def fetcher(url: str, *, key: str | None = None, timeout_s: float = 10.0, limit_bytes: int | None = 1000) -> Fetcher:
    return Fetcher(url, access=ReplicaAccess(key), timeout_s=timeout_s, limit_bytes=limit_bytes)


async def once(url: str, *, timeout_s: float = 10.0, limit_bytes: int | None = 1000) -> bytes | Failed:
    one = fetcher(url, timeout_s=timeout_s, limit_bytes=limit_bytes)
    try:
        return await one.get()
    finally:
        one.close()


async def test_fetcher_reuses_its_connection_and_closes_it_at_its_end(fake: FakeReplica) -> None:
    fake.answers["/x?name[]=y"] = fake.answers["/x"] = answer("hello")
    one = fetcher(fake.url + "/x")
    assert [await one.get() for _ in range(3)] == [b"hello"] * 3
    assert fake.connections == 1
    one.close()
    await until(lambda: fake.open_connections == 0)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "connections"),
    [
        (CHUNKED, 1),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer("hello"), 1),
        (answer("hello", headers="Connection: close\r\n"), 2),
        (answer("hello").replace(b"1.1", b"1.0"), 2),
    ],
)
async def test_fetcher_keeps_a_connection_as_long_as_the_answer_allows(
    fake: FakeReplica, raw: bytes, connections: int
) -> None:
    fake.answers["/x"] = raw
    one = fetcher(fake.url + "/x")
    assert [await one.get(), await one.get()] == [b"hello", b"hello"]
    assert fake.connections == connections
    one.close()


async def test_fetcher_reconnects_after_the_replica_closed_the_connection(fake: FakeReplica) -> None:
    fake.answers["/x"] = answer("hello")
    one = fetcher(fake.url + "/x")
    assert await one.get() == b"hello"
    port = int(fake.url.rsplit(":", 1)[1])
    await fake.stop()
    assert await one.get() == Failed(ReadFault.UNREACHABLE, "Connection refused")
    await fake.start(port)
    assert await one.get() == b"hello"
    one.close()


async def test_a_connection_that_the_replica_closed_while_idle_is_a_loss(fake: FakeReplica) -> None:
    """Another process may answer there now, so the watch reads its models again."""
    one = fetcher(fake.url + "/health")
    assert await one.get() == b""
    await fake.hang_up()
    await until(lambda: fake.open_connections == 0)
    assert await one.get() == b""
    assert (one.losses, fake.connections) == (1, 2)
    one.close()


async def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again(fake: FakeReplica) -> None:
    fake.answers["/x"] = answer("hello") + answer("of nobody")
    one = fetcher(fake.url + "/x")
    assert [await one.get(), await one.get()] == [b"hello", b"hello"]
    assert fake.connections == 2
    one.close()


async def test_fetched_body_without_a_length_ends_with_its_connection(fake: FakeReplica) -> None:
    fake.answers["/x"] = b"HTTP/1.0 200 OK\r\n\r\nhello"
    one = fetcher(fake.url + "/x")
    asked = asyncio.create_task(one.get())
    await until(lambda: len(fake.asked) == 1)
    await fake.hang_up()
    assert await asked == b"hello"
    one.close()


async def test_fetch_sends_key_and_user_agent_and_asks_for_no_compression(fake: FakeReplica) -> None:
    one = fetcher(fake.url + "/health", key="sk-upstream")
    assert await one.get() == b""
    one.close()
    head = fake.asked[0].lower()
    assert b"authorization: bearer sk-upstream\r\n" in head
    assert b"accept-encoding: identity\r\n" in head
    assert b"user-agent: tailgate\r\n" in head


async def test_fetch_without_a_key_sends_no_authorization(fake: FakeReplica) -> None:
    await once(fake.url + "/health")
    assert b"authorization" not in fake.asked[0].lower()


async def test_query_string_of_a_policy_path_is_sent_to_the_replica(fake: FakeReplica) -> None:
    await once(fake.url + "/metrics/?name[]=a:b&name[]=c")
    assert fake.paths() in (["/metrics/?name[]=a:b&name[]=c"], ["/metrics/?name%5B%5D=a:b&name%5B%5D=c"])


async def test_cookies_of_a_replica_are_not_sent_with_the_next_fetch(fake: FakeReplica) -> None:
    fake.answers["/x"] = answer("", headers="Set-Cookie: session=1\r\n")
    one = fetcher(fake.url + "/x")
    await one.get()
    await one.get()
    one.close()
    assert len(fake.asked) == 2
    assert b"cookie" not in fake.asked[1].lower()


async def test_proxies_of_the_environment_are_not_used(fake: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert await once(fake.url + "/health") == b""


@pytest.mark.parametrize("status", [301, 302, 401, 404, 500, 503])
async def test_a_fetch_with_a_status_other_than_2xx_fails(fake: FakeReplica, status: int) -> None:
    fake.answers["/x"] = answer("secret", status=status, headers="Location: /health\r\n")
    assert await once(fake.url + "/x") == Failed(ReadFault.STATUS, f"answered {status}")
    assert fake.paths() == ["/x"]


async def test_fetched_body_over_the_limit_is_refused(fake: FakeReplica) -> None:
    fake.answers["/fits"] = answer("x" * 1000)
    fake.answers["/over"] = answer("x" * 1001)
    assert await once(fake.url + "/fits") == b"x" * 1000
    assert await once(fake.url + "/over") == Failed(ReadFault.TOO_LARGE, "the body exceeds 1000 bytes")


async def test_fetched_body_without_end_is_cut_at_the_limit(fake: FakeReplica) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    fake.answers["/x"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
    assert await once(fake.url + "/x") == Failed(ReadFault.TOO_LARGE, "the body exceeds 1000 bytes")


@pytest.mark.parametrize("limit_bytes", [10_000, None])
async def test_fetched_body_in_too_many_pieces_is_refused_before_it_is_whole(
    fake: FakeReplica, limit_bytes: int | None
) -> None:
    fake.answers["/x"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000
    answered = await once(fake.url + "/x", limit_bytes=limit_bytes)
    assert answered == Failed(ReadFault.TOO_LARGE, "the body comes in more than 4096 pieces")


async def test_flood_of_interim_answers_is_refused_before_the_answer(fake: FakeReplica) -> None:
    fake.answers["/x"] = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000 + answer("hello")
    answered = await once(fake.url + "/x")
    assert answered == Failed(ReadFault.BROKEN, "it is not HTTP: its head is longer than 32 KiB")


async def test_fetched_compressed_body_is_refused_without_decoding(fake: FakeReplica) -> None:
    fake.answers["/x"] = answer(gzip.compress(b"x" * 10_000_000), headers="Content-Encoding: gzip\r\n")
    assert await once(fake.url + "/x") == Failed(
        ReadFault.ENCODED, "answered with a content encoding, which was not asked for"
    )


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    ],
)
async def test_silent_replica_is_a_fetch_timeout_and_the_next_fetch_reconnects(
    fake: FakeReplica, raw: bytes | None
) -> None:
    fake.answers["/x"] = raw
    one = fetcher(fake.url + "/x", timeout_s=0.05)
    assert await one.get() == Failed(ReadFault.TIMEOUT, "no complete answer within 0.05 s")
    await until(lambda: fake.open_connections == 0)
    one.close()


async def test_connection_that_is_made_too_late_is_not_used(fake: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def connect_and_hang(*where: Any, **how: Any) -> None:
        await connect(*where, **how)
        monkeypatch.undo()
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "create_connection", connect_and_hang)
    one = fetcher(fake.url + "/health", timeout_s=0.2)
    assert isinstance(await one.get(), Failed)
    await until(lambda: fake.open_connections == 0)
    assert await one.get() == b""
    one.close()


async def test_a_fetcher_recovers_from_any_number_of_cancellations(fake: FakeReplica) -> None:
    """A pool that lost a slot per cancelled request would refuse the last one."""
    fake.answers["/x"] = None
    one = fetcher(fake.url + "/x")
    for asked in range(1, 21):
        waiting = asyncio.create_task(one.get())
        await until(lambda asked=asked: len(fake.asked) == asked)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    fake.answers["/x"] = answer("back")
    assert await one.get() == b"back"
    one.close()


async def test_fetch_from_a_closed_port_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        assert await once(url) == Failed(ReadFault.UNREACHABLE, "Connection refused")


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: some\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\n",
    ],
)
async def test_non_http_answer_is_a_broken_fetch(fake: FakeReplica, raw: bytes) -> None:
    fake.answers["/x"] = raw
    failed = await once(fake.url + "/x")
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.BROKEN


async def test_answer_that_breaks_off_is_a_broken_fetch(fake: FakeReplica) -> None:
    fake.answers["/x"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    asked = asyncio.create_task(once(fake.url + "/x"))
    await until(lambda: len(fake.asked) == 1)
    await fake.hang_up()
    assert await asked == Failed(ReadFault.BROKEN, "the answer broke off (the connection was closed)")


async def test_fetch_errors_never_quote_the_key(fake: FakeReplica) -> None:
    """A header whose value would begin another header is not sent either."""
    one = fetcher(fake.url + "/health", key="sk-canary\nx")
    failed = await one.get()
    one.close()
    assert isinstance(failed, Failed)
    assert "canary" not in str(failed)
    assert not fake.asked


@pytest.mark.parametrize("host", ["10.0.0.256", "xn--a"])
async def test_fetch_from_an_impossible_host_is_unreachable(host: str) -> None:
    """It must not be an exception, which would end the watch of all replicas."""
    failed = await once(f"http://{host}:8000/health")
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.UNREACHABLE


async def test_answer_that_arrived_while_the_gateway_stood_still_is_read(fake: FakeReplica) -> None:
    """The replica answers within the limit, in a thread of its own; the loop reads it only after the limit."""
    server = socket.create_server(("127.0.0.1", 0))
    answered = threading.Event()

    def serve() -> None:
        peer, _ = server.accept()
        peer.recv(65536)
        peer.sendall(answer("hello"))
        answered.set()
        peer.recv(1)  # until the fetcher closes
        peer.close()

    def stand_still() -> None:
        assert answered.wait(10.0)
        until_at = time.monotonic() + 0.5
        while time.monotonic() < until_at:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    one = fetcher(f"http://127.0.0.1:{server.getsockname()[1]}/x", timeout_s=0.3)
    asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_later, 0.05, stand_still)
    try:
        assert await one.get() == b"hello"
    finally:
        one.close()
        server.close()
        await asyncio.to_thread(thread.join)


async def test_replica_that_hangs_is_noticed_by_a_gateway_that_always_stands_still(fake: FakeReplica) -> None:
    fake.answers["/x"] = None
    loop, stops = asyncio.get_running_loop(), 0

    def stand_still() -> None:
        nonlocal stops
        stops += 1
        until_at = time.monotonic() + 0.25
        while time.monotonic() < until_at:
            pass
        if stops < 16:
            loop.call_later(0.005, stand_still)

    loop.call_later(0.005, stand_still)
    failed = await once(fake.url + "/x", timeout_s=0.1)
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.TIMEOUT
    assert stops < 16
