"""A channel between two processes."""

from __future__ import annotations

import asyncio
import socket

from gateway.driving.channel import Channel


async def ended() -> None:
    """All callbacks of the loop that are due have run, those of sockets too."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_channel_that_is_closed_before_its_socket_is_ready_closes_it() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    other = Channel(loop, lambda frames: None, lost.set)
    await loop.create_unix_connection(lambda: other, sock=theirs)
    channel = Channel(loop, lambda frames: None, lambda: None)
    channel.close()
    await loop.create_unix_connection(lambda: channel, sock=ours)
    await asyncio.wait_for(lost.wait(), 10)


async def test_frame_that_cannot_be_written_costs_only_its_turn() -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    got: asyncio.Queue[list[list[object]]] = asyncio.Queue()
    one, two = Channel(loop, lambda frames: None, lambda: None), Channel(loop, got.put_nowait, lambda: None)
    ours, theirs = socket.socketpair()
    await loop.create_unix_connection(lambda: one, sock=ours)
    await loop.create_unix_connection(lambda: two, sock=theirs)
    one.tell((1, 2**64))
    await ended()
    assert [type(each) for each in raised] == [OverflowError]
    one.tell((2, "good"))
    assert await asyncio.wait_for(got.get(), 10) == [[2, "good"]]
    one.close()
