"""A relay goes from one decider to the next."""

from __future__ import annotations

import asyncio
import socket

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
