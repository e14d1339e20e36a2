"""A replica that streams for ever, as fast as it is read; and readers that read too slowly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from .capture import STREAM_HEAD, completion, token, whole
from .raw import Client

# Long tokens, since buffers are filled by bytes.
TOKENS = token("x" * 4_000) * 4
# The size of a segment on a network. On loopback it is 64 kB, and the kernels keep megabytes per connection.
SEGMENT_BYTES = 1400
RECEIVE_BUFFER_BYTES = 4096
# Connections that may wait to be accepted. Linux resets more of them if they are not accepted for seconds.
BACKLOG = 2048


@dataclass
class Firehose:
    """`taken`: the bytes of each stream that the gateway's side, kernels included, has accepted."""

    url: str = ""
    taken: dict[int, int] = field(default_factory=dict)
    open: int = 0
    """Streams that have not been closed."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        writer.transport.set_write_buffer_limits(high=0)
        number = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(whole(b'{"object":"list","data":[]}'))
                    continue
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                if b'"stream":true' not in await reader.readexactly(length):
                    writer.write(whole(completion()))
                    continue
                number, self.open = len(self.taken), self.open + 1
                self.taken[number] = 0
                writer.write(STREAM_HEAD)
                while True:
                    writer.write(TOKENS)
                    await writer.drain()
                    self.taken[number] += len(TOKENS)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= number is not None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def flowing() -> AsyncIterator[Firehose]:
    """Start a firehose on a free port."""
    hose = Firehose()
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    server = await asyncio.start_server(hose.serve, sock=listener, backlog=BACKLOG)
    hose.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield hose
    finally:
        server.close()
        await server.wait_closed()


def _serve_alone(pipe: Connection) -> None:
    async def serve() -> None:
        async with flowing() as hose:
            pipe.send(hose.url)
            await asyncio.Event().wait()

    asyncio.run(serve())


@contextmanager
def firehose_process() -> Iterator[str]:
    """Start a firehose in a process of its own. Yields its URL."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve_alone, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


async def slow_reader(url: str) -> Client:
    """A client that accepts a few kilobytes, then nothing until a test reads from it."""
    parts = urlsplit(url)
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=RECEIVE_BUFFER_BYTES)
    except BaseException:
        sock.close()
        raise
    return Client(reader, writer)
