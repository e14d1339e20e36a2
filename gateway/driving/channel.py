"""Frames over a stream socket between two processes of one gateway, in both directions.

A frame is a list of plain values. All frames that are told in one turn of the event loop leave as one message: four
bytes of length, and the MessagePack of the list of frames. So a message is received whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

Frame = Sequence[object]
_LENGTH_BYTES: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[list[object]]).decode


class Channel(asyncio.Protocol):
    """One end of the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frames: Callable[[list[list[object]]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_frames`: called with the frames of each message. `on_lost`: called once, when the other end is gone."""
        self._loop = loop
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._told: list[Frame] = []
        self._received = b""
        self.is_open = True
        self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ready. Called by the event loop, like all methods below."""
        self._transport = cast(asyncio.WriteTransport, transport)  # that of uvloop is no subclass
        self._flush()
        if self._is_closing:
            transport.close()

    def tell(self, frame: Frame) -> None:
        """Send a frame at the end of this turn of the loop."""
        if not self._told:
            self._loop.call_soon(self._flush)
        self._told.append(frame)

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or not self._told:
            return
        told, self._told = self._told, []
        message = _encode(told)
        if self.is_open:
            transport.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    def data_received(self, data: bytes) -> None:
        """A part of the stream has come."""
        if self._received:
            data = self._received + data
        at, size = 0, len(data)
        while size - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
            if end > size:
                break
            self._on_frames(_decode(data[at + _LENGTH_BYTES : end]))
            at = end
        self._received = data[at:] if at < size else b""

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone."""
        self.is_open = False
        self._on_lost()

    def close(self) -> None:
        """Close this end after what was told."""
        self._is_closing = True
        self._flush()
        if self._transport is not None:
            self._transport.close()
