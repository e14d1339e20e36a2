"""Decodes compressed request bodies in limited steps, because a few bytes may expand to gigabytes."""

from __future__ import annotations

import zlib
from typing import Any, Final

STEP_BYTES: Final = 256 * 1024
"""About this many bytes are decoded in one step, which takes less than a millisecond."""

_SLICE_BYTES: Final = 64 * 1024
"""Most input of one step. Blocks that decode to nothing cost 100 ns a byte, so such a step takes some 6 ms."""
# Bytes of a body beyond those that it decodes to. No encoder adds more than a head, and some bytes for each block.
_MAX_ADDED_BYTES: Final = 64 * 1024
# Bytes that the zstd decoder gets at once. It returns their whole content at once, and four bytes may expand to 128
# KiB.
_ZSTD_SLICE_BYTES: Final = 128
# Largest zstd window. A receiver need not support more (RFC 9659).
_ZSTD_WINDOW_BYTES: Final = 8 * 2**20
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class CorruptBody(ValueError):
    """A body that cannot be decoded. The message says why."""


class _Inflater:
    """Decoder for gzip, zlib or raw deflate, as selected by `wbits`."""

    __slots__ = ("_inflate", "rest", "slice_bytes")

    def __init__(self, wbits: int) -> None:
        self._inflate: Any = zlib.decompressobj(wbits)
        self.rest = b""
        """Input that has not been decoded yet."""
        self.slice_bytes = _SLICE_BYTES

    def decode(self, encoded: bytes, max_bytes: int) -> bytes:
        """Decode more input. Returns at most `max_bytes` bytes."""
        try:
            decoded = bytes(self._inflate.decompress(encoded, max_bytes))
        except zlib.error as exc:
            raise CorruptBody(str(exc)) from None
        self.rest = self._inflate.unconsumed_tail
        return decoded

    def is_done(self) -> bool:
        """Whether the end of the compressed stream was reached."""
        return bool(self._inflate.eof)

    def has_more(self) -> bool:
        """Whether bytes follow the end of the compressed stream."""
        return bool(self._inflate.unused_data)


class _Unzstd(_Inflater):
    """Decoder for zstd."""

    __slots__ = ("_error",)

    def __init__(self) -> None:
        import zstandard  # imported here, because most processes never need it

        self._error: Any = zstandard.ZstdError
        self._inflate = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self.rest = b""
        self.slice_bytes = _ZSTD_SLICE_BYTES

    def decode(self, encoded: bytes, max_bytes: int) -> bytes:
        """Decode all of `encoded`, even if that gives more than `max_bytes` bytes."""
        try:
            return bytes(self._inflate.decompress(encoded))
        except self._error as exc:
            raise CorruptBody(str(exc)) from None


def _inflater(coding: bytes, encoded: bytes) -> _Inflater:
    if coding == b"zstd":
        return _Unzstd()
    if coding != b"deflate":
        return _Inflater(_GZIP_BITS)
    # The coding "deflate" is defined as the zlib format (RFC 9110, 8.4.1.2), but some clients send raw deflate. So both
    # are accepted.
    is_zlib = len(encoded) > 1 and encoded[0] & 0x0F == 8 and (encoded[0] << 8 | encoded[1]) % 31 == 0
    return _Inflater(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


IDENTITY: Final = b"identity"
CODINGS: Final = (b"gzip", b"deflate", b"zstd")
ACCEPT_ENCODING: Final = b", ".join(CODINGS)
_ALIASES: Final = {b"x-gzip": b"gzip", b"": IDENTITY}


def read_coding(value: bytes) -> bytes | None:
    """The coding in a Content-Encoding header, if it is one of CODINGS or `identity`; None for others, or for
    several.
    """
    name = value.lower()
    name = _ALIASES.get(name, name)
    return name if name in CODINGS or name == IDENTITY else None


def coding_of(fields: dict[bytes, bytes]) -> bytes | None:
    """The coding of a body according to the request's headers, which must be well formed; None for a plain body."""
    coding = read_coding(fields.get(b"content-encoding", IDENTITY))
    return None if coding == IDENTITY else coding


class Decoding:
    """The decoding of one body."""

    __slots__ = ("_at", "_encoded", "_inflater", "_pieces", "coding", "size")

    def __init__(self, coding: bytes, encoded: bytes) -> None:
        self.coding = coding
        self._encoded = encoded
        self._at = 0
        self._inflater = _inflater(coding, encoded)
        self._pieces: list[bytes] = []
        self.size = 0
        """Bytes decoded so far."""

    def step(self) -> bool:
        """Decode about STEP_BYTES more, from at most `_SLICE_BYTES`. True if that was the end. Raises CorruptBody."""
        inflater = self._inflater
        target, end = self.size + STEP_BYTES, self._at + _SLICE_BYTES
        if self._at > self.size + _MAX_ADDED_BYTES:
            raise CorruptBody("it decodes to fewer bytes than it has")
        while self.size < target and self._at < end and not inflater.is_done():
            piece = inflater.rest
            if not piece:
                piece = self._encoded[self._at : self._at + inflater.slice_bytes]
                self._at += len(piece)
            decoded = inflater.decode(piece, target - self.size)
            if decoded:
                self._pieces.append(decoded)
                self.size += len(decoded)
            elif not piece:
                raise CorruptBody("it is cut off")
        if not inflater.is_done():
            return False
        if inflater.has_more() or self._at < len(self._encoded):
            raise CorruptBody("bytes follow its end")
        return True

    @property
    def held(self) -> int:
        """Bytes of memory that the decoding takes now."""
        return len(self._encoded) + self.size

    def decoded(self) -> bytes:
        """The whole decoded body."""
        return b"".join(self._pieces)
