"""Messages between the supervisor and one of its processes."""

from __future__ import annotations

import asyncio
import socket

from gateway.workers.control import Control, Say


async def test_process_that_an_open_file_did_not_reach_hears_no_more() -> None:
    """The system drops descriptors of a message if the receiver may open no more. Here the message comes without."""
    ours, theirs = socket.socketpair()
    heard: list[Say] = []
    over = asyncio.Event()
    control = Control(ours, lambda kind, payload, files: heard.append(kind), over.set)
    theirs.send(b"l\0\0\0\0\0" + b"d\0\0\0\0\1" + b"l\0\0\0\0\0")
    await asyncio.wait_for(over.wait(), 10)
    assert (heard, control.is_open) == ([Say.LEAVE], False)
    theirs.close()
