"""One HTTP/1.1 connection for readings: sends a request, and collects the whole answer.

It costs a tenth of a general HTTP client, which a fleet of a thousand replicas would keep busy with readings alone.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from gateway.fleet.fault import Failed, ReadFault
from gateway.wire.http.answer import CHUNKED, MAX_HEAD_BYTES, TO_THE_END, AnswerHead, LargeHeadError, read_answer_head
from gateway.wire.http.framing import ChunkReader, FramingError

KEEPALIVE_S: Final = 4.0
"""Shorter than vLLM's own timeout (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, 5 s). Otherwise vLLM might close a connection just as
it is reused.
"""
# Limit on the number of chunks of a body, kept or not: a flood of chunks of one byte keeps the loop busy for seconds.
_MAX_PIECES: Final = 4096
_BYTES_AT_ONCE: Final = 16 * 1024


class ReadingConnection(asyncio.Protocol):
    """Has one request at a time. Its answer goes on if nobody waits for it any more."""

    def __init__(self, limit_bytes: int | None) -> None:
        """`limit_bytes`: largest body; None discards it as it arrives."""
        self._limit_bytes = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.is_busy = False
        """Whether a request was sent whose answer is not complete."""
        self.was_lost = False
        """Whether the other side closed the connection, other than after an answer or a long time."""
        self.asked_at = 0.0
        """Time of the loop at which the last request was sent."""
        self._ended_at = 0.0
        self._answer: bytes | Failed | Exception = b""
        self._reset()

    def _reset(self) -> None:
        self._head: AnswerHead | None = None
        self._heads_bytes = 0
        """Length of the heads so far: a flood of interim answers is no answer."""
        self._held = bytearray()
        """The incomplete head, and later the body."""
        self._chunks: ChunkReader | None = None
        self._pieces = 0
        self._left = 0
        """Bytes of a body with a length that are still to come."""

    @property
    def is_idle(self) -> bool:
        """Whether it may be used for another request."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not self.is_busy and self._is_recent()

    def _is_recent(self) -> bool:
        return self._loop.time() - self._ended_at < KEEPALIVE_S

    async def ask(self, request: bytes) -> bytes | Failed | Exception:
        """Send a request. Returns the answer, or an exception that says how the connection broke."""
        self.asked_at = self._loop.time()
        self._reset()
        if self._transport is None or self._transport.is_closing():
            return self._answer if isinstance(self._answer, Exception) else ConnectionError("the connection was closed")
        self.is_busy = True
        self._transport.write(request)
        return await self.answer()

    async def answer(self) -> bytes | Failed | Exception:
        """The answer to the last request, as soon as it is complete."""
        if self.is_busy:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._answer

    def close(self) -> None:
        """Close the connection at once."""
        self.is_busy = False
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._transport, self._ended_at = cast("asyncio.Transport", transport), self._loop.time()

    def data_received(self, data: bytes) -> None:
        if not self.is_busy:
            self.close()  # nobody asked for these bytes, so the connection cannot be trusted
            return
        try:
            self._take(data)
        except (FramingError, LargeHeadError) as error:
            self._end(error, keep=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_busy:
            is_whole = self._head is not None and self._head.body == TO_THE_END and exc is None
            self._end(
                bytes(self._held) if is_whole else exc or ConnectionError("the connection was closed"), keep=False
            )
        elif self._transport is not None:
            self.was_lost = self._is_recent()
            self._transport = None
            self._answer = exc or ConnectionError("the connection was closed")

    # ---- the answer

    def _take(self, data: bytes) -> None:
        if self._head is None:
            self._held += data
            head = self._read_head()
            if head is None:
                return
            self._head, data = head, bytes(self._held)
            self._held.clear()
            if not 200 <= head.status < 300:
                self._end(Failed(ReadFault.STATUS, f"answered {head.status}", head.status), keep=False)
                return
            if head.coding is not None and head.coding.lower() != b"identity":
                text = "answered with a content encoding, which was not asked for"
                self._end(Failed(ReadFault.ENCODED, text), keep=False)
                return
            self._chunks, self._left = ChunkReader() if head.body == CHUNKED else None, head.body
        chunks = self._chunks
        if chunks is not None:
            self._take_chunks(chunks, data)
        elif self._left == TO_THE_END:
            self._keep(data)
        else:
            part = data[: self._left]
            self._left -= len(part)
            if self._keep(part) and not self._left:
                self._end(bytes(self._held), keep=len(part) == len(data))

    def _read_head(self) -> AnswerHead | None:
        """The head of the answer, taken from the bytes held; None if it is incomplete."""
        while True:
            end = self._held.find(b"\r\n\r\n")
            if self._heads_bytes + (len(self._held) if end < 0 else end) > MAX_HEAD_BYTES:
                raise LargeHeadError(f"its head is longer than {MAX_HEAD_BYTES // 1024} KiB")
            if end < 0:
                if not b"HTTP/".startswith(self._held[:5]):
                    raise FramingError("it does not begin with HTTP/")
                return None
            head = read_answer_head(bytes(self._held[:end]))
            del self._held[: end + 4]
            self._heads_bytes += end + 4
            if head.status == 101:
                raise FramingError("the answer changes protocol")
            if head.status > 199:
                return head

    def _take_chunks(self, chunks: ChunkReader, data: bytes) -> None:
        for at in range(0, len(data), _BYTES_AT_ONCE):
            for piece in chunks.feed(data[at : at + _BYTES_AT_ONCE]):
                self._pieces += 1
                if not self._keep(piece):
                    return
            if chunks.done:
                is_last = at + _BYTES_AT_ONCE >= len(data)
                self._end(bytes(self._held), keep=is_last and not (chunks.extra or chunks.large))
                return

    def _keep(self, piece: bytes) -> bool:
        """Add to the body. Ends the answer and returns False if that makes it too large."""
        if self._limit_bytes is not None:
            self._held += piece
        if self._limit_bytes is not None and len(self._held) > self._limit_bytes:
            text = f"the body exceeds {self._limit_bytes} bytes"
        elif self._pieces > _MAX_PIECES:
            text = f"the body comes in more than {_MAX_PIECES} pieces"
        else:
            return True
        self._end(Failed(ReadFault.TOO_LARGE, text), keep=False)
        return False

    def _end(self, answer: bytes | Failed | Exception, *, keep: bool) -> None:
        self._answer, self._ended_at, self.is_busy = answer, self._loop.time(), False
        if not keep or self._head is None or not self._head.keep_alive:
            self.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
