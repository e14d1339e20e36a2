"""A relay goes from one decider to the next."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from gateway.driving import frames
from gateway.driving.channel import Channel
from gateway.driving.policy_bytes import to_bytes
from gateway.settings import Settings
from gateway.workers.child import ProcessSetup
from gateway.workers.control import Control, Say
from gateway.workers.relay import Relay
from tests.core.made import policy, pool, tier

DEADLINE_S = 20.0
POLICY = (frames.POLICY, to_bytes(policy(pool("p", "r1"), tier("std"))), (1.0,))


async def joined(relay: Relay) -> asyncio.Event:
    """Join a relay with a decider that tells its policy. Returns an event for its first frame."""
    told, (ours, theirs) = asyncio.Event(), socket.socketpair()
    loop = asyncio.get_running_loop()
    channel = Channel(loop, lambda _: told.set(), lambda: None)
    await loop.create_unix_connection(lambda: channel, sock=ours)
    relay.on_message(Say.DECIDER, b"", [theirs.detach()])
    channel.tell(POLICY)
    return told


async def test_relay_serves_by_the_next_decider_before_it_has_seen_the_end_of_the_last() -> None:
    ours, theirs = socket.socketpair()
    control = Control(ours, lambda *_: None)
    relay = Relay(ProcessSetup(Settings(port=0), 1, 0, "1", None, b""), control)
    for _ in range(2):
        told = await joined(relay)
        await asyncio.wait_for(told.wait(), DEADLINE_S)  # its load, at the next sweep
    relay.on_message(Say.DRAIN, b"", [])
    await asyncio.wait_for(relay.over.wait(), DEADLINE_S)
    control.close()
    theirs.close()


async def test_relay_that_is_replaced_ends_requests_with_an_error_when_its_time_is_over() -> None:
    def decide(rows: list[list[object]]) -> None:
        for kind, *row in rows:
            if kind == frames.ARRIVE:
                arrived.append(cast("list[object]", row[1])[0])
                relay.on_message(Say.DRAIN, b"", [])
            elif kind == frames.LEAVE:
                left.append((row[1], row[2]))
                decider.tell((frames.REFUSE, row[1], row[2], None, "", None))

    arrived: list[object] = []
    left: list[tuple[object, object]] = []
    loop = asyncio.get_running_loop()
    mine, supervisor = socket.socketpair()
    control, ready = Control(mine, lambda *_: None), asyncio.Event()
    heard = Control(supervisor, lambda *_: ready.set())
    relay = Relay(ProcessSetup(Settings(port=0, drain_deadline_s=0.0), 1, 0, "1", None, b""), control)
    ours, theirs = socket.socketpair()
    decider = Channel(loop, decide, lambda: None)
    await loop.create_unix_connection(lambda: decider, sock=ours)
    relay.on_message(Say.DECIDER, b"", [theirs.detach()])
    decider.tell(POLICY)
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    client, served = socket.socketpair()
    relay.on_message(Say.CLIENT, b"", [served.detach()])
    reader, writer = await asyncio.open_connection(sock=client)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert left == [(arrived[0], "shutting-down")]
    assert b"503" in answer.split(b"\r\n")[0]
    assert b'"code":"shutting_down"' in answer
    await asyncio.wait_for(relay.over.wait(), DEADLINE_S)
    writer.close()
    control.close()
    heard.close()
