"""A replica with scripted answers: tool calls, errors, streams that break off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Scripted:
    """`whole` answers plain requests, `events` streamed ones; `bodies` are the received requests."""

    whole: object = None
    events: list[tuple[str, object]] = field(default_factory=list)
    """Name ("" for none) and data of each event; data that is a string goes out as it is."""
    streams: bool = True
    hold: asyncio.Event | None = None
    """Waited for between the last event but one and the last."""
    bodies: list[dict] = field(default_factory=list)
    url: str = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
                body = await reader.readexactly(length)
                if head.startswith(b"get"):
                    self._send(writer, {"object": "list", "data": []})
                    continue
                self.bodies.append(json.loads(body))
                if self.streams and self.bodies[-1].get("stream"):
                    await self._stream(writer)
                else:
                    self._send(writer, self.whole)
        except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
            pass  # RuntimeError: uvloop's word for a connection that the gateway has closed
        finally:
            writer.close()

    @staticmethod
    def _send(writer: asyncio.StreamWriter, value: object) -> None:
        body = json.dumps(value).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number, (name, data) in enumerate(self.events, 1):
            if number == len(self.events) and self.hold is not None:
                await self.hold.wait()
            text = data if isinstance(data, str) else json.dumps(data)
            event = (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    """One on a free port."""
    replica = Scripted()
    server = await asyncio.start_server(replica._serve, "127.0.0.1", 0)
    replica.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield replica
    finally:
        if replica.hold is not None:
            replica.hold.set()
        server.close()
