"""One GET to one replica, again and again: bounded in time and size, and never an exception for what a replica does."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

from gateway.fleet.fault import Failed, Fault
from gateway.wire.answer import CHUNKED, MAX_HEAD_BYTES, TO_THE_END, AnswerHead, read_answer_head
from gateway.wire.framing import ChunkReader, FramingError

# Below vLLM's own (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, 5 s), so that a reused connection is not one it is just closing.
_KEEPALIVE_S = 4.0
_READ_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"


class Fetcher:
    """GETs one URL, one at a time, over a connection of its own that is kept while all goes well.

    Without a library: the process that serves requests asks every replica twice a second, and httpx takes more than a
    millisecond for each.
    """

    def __init__(
        self, url: str, *, key: str | None, timeout_s: float, limit_bytes: int, body: bytes | None = None
    ) -> None:
        """`key` is sent as a Bearer token; `timeout_s` covers connecting to the last byte of the body.

        With a `body`, JSON, it is a POST.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        lines = [
            f"{'GET' if body is None else 'POST'} {target} HTTP/1.1",
            f"host: {parts.netloc}",
            "accept: */*",
            "accept-encoding: identity",
            "user-agent: tailgate",
        ]
        if key is not None:
            lines.append(f"authorization: Bearer {key}")
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        self._can_be_sent = all(line.isascii() and line.isprintable() for line in lines)
        self._request = "\r\n".join((*lines, "", "")).encode() + (body or b"")
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._idle_since = 0.0

    async def get(self) -> bytes | Failed:
        """The body of a 2xx answer."""
        clean = False
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange()
            clean = True
        except TimeoutError:
            answer = Failed(Fault.TIMEOUT, f"no complete answer within {self._timeout_s:g} s")
        except (OSError, EOFError, asyncio.LimitOverrunError, FramingError) as error:
            # Only the type: a message might quote what was sent.
            answer = Failed(Fault.BROKEN, type(error).__name__)
        finally:
            if not clean:
                self._abort()
        return answer

    async def aclose(self) -> None:
        """Close the connection; the next `get` opens another."""
        if self._line is not None:
            writer = self._line[1]
            self._abort()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    def _abort(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line[1].transport.abort()

    async def _exchange(self) -> bytes | Failed:
        if not self._can_be_sent:
            return Failed(Fault.BROKEN, "the path or the key has characters that no header may have")
        line = self._line
        if line is not None and not line[1].is_closing() and time.monotonic() < self._idle_since + _KEEPALIVE_S:
            try:
                return await self._ask(*line)
            except (OSError, EOFError):
                pass  # the replica has closed it meanwhile: what can be asked again and again can be asked anew
        self._abort()
        try:
            line = self._line = await asyncio.open_connection(self._host, self._port, limit=MAX_HEAD_BYTES)
        except OSError:
            return Failed(Fault.UNREACHABLE, "cannot connect")
        return await self._ask(*line)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | Failed:
        writer.write(self._request)
        raw = await reader.readuntil(_HEAD_END)
        while (head := read_answer_head(raw[:-4])).status < 200:
            raw = await reader.readuntil(_HEAD_END)
        answer = await self._body(reader, head, raw)
        if isinstance(answer, Failed) or not (head.keep_alive and head.framed):
            self._abort()
        self._idle_since = time.monotonic()
        return answer

    async def _body(self, reader: asyncio.StreamReader, head: AnswerHead, raw: bytes) -> bytes | Failed:
        if not 200 <= head.status < 300:
            return Failed(Fault.STATUS, f"answered {head.status}")
        if _is_encoded(raw):
            return Failed(Fault.ENCODED, "answered with a content encoding")
        too_large = Failed(Fault.TOO_LARGE, f"the body exceeds {self._limit_bytes} bytes")
        if head.body >= 0:
            return too_large if head.body > self._limit_bytes else await reader.readexactly(head.body)
        chunks = ChunkReader() if head.body == CHUNKED else None
        body = bytearray()
        while chunks is None or not chunks.done:
            data = await reader.read(_READ_BYTES)
            if not data and head.body == TO_THE_END:
                break
            if not data:
                raise EOFError
            body += data if chunks is None else b"".join(chunks.feed(data))
            if len(body) > self._limit_bytes:
                return too_large
        return bytes(body)


def _is_encoded(raw: bytes) -> bool:
    """Whether a head says that the body has to be unpacked."""
    fields = (line.partition(b":") for line in raw.lower().split(b"\r\n"))
    return any(name == b"content-encoding" and value.strip() != b"identity" for name, _, value in fields)
