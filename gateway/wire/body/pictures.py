"""Reads the size of a picture from its first bytes, and estimates how many tokens the picture takes.

The number decides which pools a prompt fits, and how many tokens it is charged. The engine's `usage` corrects the
number afterwards, as for text, and from it is learned how many tokens pictures take in a model. Only the header of a
picture is decoded.
"""

from __future__ import annotations

import binascii
import math
from typing import Final, NamedTuple

HEAD_CHARS: Final = 88
"""Characters of base64 that are decoded first: 64 bytes, which contain the size in PNG, GIF and WebP."""
MAX_JPEG_CHARS: Final = 128 * 1024
"""Characters of base64 that are decoded for a JPEG. Its size comes after data of a camera or an editor, such as a
thumbnail (at most 64 KiB) and a color profile.
"""
MAX_SEGMENTS: Final = 128
MAX_SIDE: Final = 65_535
MIN_TOKENS: Final = 64
MAX_TOKENS: Final = 4096
BYTES_PER_TOKEN: Final = 4
MIN_FACTOR: Final = 1 / 64
MAX_FACTOR: Final = 8.0
MIN_RIGHT: Final = 0.8
MAX_RIGHT: Final = 1.25
MAX_MODELS: Final = 1024
"""If the policy accepts any model name, clients may invent names. Beyond this number, the oldest is forgotten."""


class Size(NamedTuple):
    """The size of a picture in pixels."""

    width: int
    height: int


def sized(head: bytes) -> Size | None:
    """The size of a PNG, GIF, WebP or JPEG, from its first bytes; None for other formats."""
    size: Size | None = None
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR" and len(head) >= 24:
        size = Size(int.from_bytes(head[16:20]), int.from_bytes(head[20:24]))
    elif head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        size = Size(int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little"))
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        size = _webp(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg(head)
    return size if size is not None and 0 < size.width <= MAX_SIDE and 0 < size.height <= MAX_SIDE else None


def _webp(head: bytes) -> Size | None:
    """The size of a WebP. Lossy, lossless and extended files store it in different places (RFC 9649)."""
    kind = head[12:16]
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return Size(int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF)
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        return Size(int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
    return None


def _jpeg(head: bytes) -> Size | None:
    """The size of a JPEG, from its first frame segment (SOF). DHT, JPG and DAC have similar markers (ITU-T T.81)."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        if at + 9 > len(head) or head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return Size(int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7]))
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4])
    return None


def size_in(encoded: str) -> Size | None:
    """The size of a picture in base64, with or without `data:...;base64,` before it; None if unknown."""
    start = 0
    if encoded.startswith("data:"):
        comma = encoded.find(",", 0, 256)
        if comma < 0 or not encoded.endswith(";base64", 0, comma):
            return None
        start = comma + 1
    head = _decoded(encoded[start : start + HEAD_CHARS])
    if head.startswith(b"\xff\xd8"):
        head = _decoded(encoded[start : start + MAX_JPEG_CHARS])
    return sized(head)


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text[: len(text) & ~3])
    except (binascii.Error, ValueError):
        return b""


def tokens_of(size: Size) -> int:
    """Estimated tokens of a picture: one per 28 x 28 pixels, within limits. This is about Anthropic's width x height /
    750, and Qwen2-VL's formula for pictures below 3.2 million pixels.
    """
    return min(max(size.width * size.height // 784, MIN_TOKENS), MAX_TOKENS)


class PictureTokens:
    """Learns for each model by what factor its pictures take more tokens than `tokens_of` says.

    It is learned from prompts that are mostly pictures. Their text counts as `BYTES_PER_TOKEN`. One prompt changes the
    factor by at most 2, and not at all if it is nearly right. With the factor, all placeholders of a model change, and
    what is cached no longer matches them.
    """

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}

    def factor(self, model: str) -> float:
        """Tokens of a picture in this model for each token of `tokens_of`, from 1/64 to 8."""
        return self._factors.get(model, 1.0)

    def learn(self, model: str, estimated: int, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn that an engine counted `prompt_tokens` in a prompt of `prompt_bytes`, with pictures of `estimated`
        tokens.
        """
        factor = self.factor(model)
        text_tokens = prompt_bytes // BYTES_PER_TOKEN - estimated
        if estimated < factor * text_tokens:
            return
        off = max(1, prompt_tokens - text_tokens) / max(1, estimated)
        if MIN_RIGHT < off < MAX_RIGHT:
            return
        if model not in self._factors and len(self._factors) == MAX_MODELS:
            del self._factors[next(iter(self._factors))]
        self._factors[model] = min(max(factor * min(max(math.sqrt(off), 0.5), 2.0), MIN_FACTOR), MAX_FACTOR)
