"""Reads the size of a picture from its first bytes, and estimates how many tokens the picture takes in a model.

The number decides which pools a prompt fits, and how many tokens it is charged. The engine's `usage` corrects the
number afterwards, as for text. Each known family of models has its own formula. For other models there is one common
estimate. Only the header of a picture is decoded.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable
from typing import Final, NamedTuple

HEAD_CHARS: Final = 88
"""Characters of base64 that are decoded first: 64 bytes, which contain the size in PNG, GIF and WebP."""
MAX_JPEG_CHARS: Final = 128 * 1024
"""Characters of base64 that are decoded for a JPEG. Its size comes after data of a camera or an editor, such as a
thumbnail (at most 64 KiB) and a color profile.
"""
MAX_SEGMENTS: Final = 128
MAX_SIDE: Final = 65_535


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


# ---- tokens


def tokens_of(size: Size, model: str) -> int:
    """Estimated tokens of a picture. `model`: the engine's name for the model."""
    name = model.casefold()
    for words, count in _FAMILIES:
        if all(word in name for word in words):
            return count(size)
    return _unknown(size)


def _unknown(size: Size) -> int:
    """Estimate for unknown models: one token per 28 x 28 pixels, within limits. This is about Anthropic's width x
    height / 750.
    """
    return min(max(size.width * size.height // 784, 64), 4096)


def _merged(size: Size, side: int, min_pixels: int, max_pixels: int) -> int:
    """Qwen's formula: sides are rounded to multiples of a merged patch, and the area is limited."""
    width, height = max(side, round(size.width / side) * side), max(side, round(size.height / side) * side)
    area = size.width * size.height
    if width * height > max_pixels:
        scale = math.sqrt(area / max_pixels)
        width, height = (max(side, math.floor(edge / scale / side) * side) for edge in size)
    elif width * height < min_pixels:
        scale = math.sqrt(min_pixels / area)
        width, height = (math.ceil(edge * scale / side) * side for edge in size)
    return (width // side) * (height // side) + 2


def _qwen2(size: Size) -> int:
    """Qwen2-VL and 2.5: patches of 14, merged by 2 (preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct)."""
    return _merged(size, 28, 3_136, 12_845_056)


def _qwen3(size: Size) -> int:
    """Qwen3-VL and its successors: patches of 16, merged by 2 (preprocessor_config.json of Qwen/Qwen3-VL)."""
    return _merged(size, 32, 65_536, 16_777_216)


def _gemma3(size: Size) -> int:
    """256 tokens for each picture (`mm_tokens_per_image` in config.json) and two marks, without pan and scan."""
    return 258


def _llava15(size: Size) -> int:
    """A grid of 24 x 24 patches (CLIP ViT-L/14 at 336 pixels)."""
    return 576


def _llava_next(size: Size) -> int:
    """The tokens of LLaVA 1.5 for the whole picture, and again for each of at most four parts."""
    return 576 * (1 + min(4, math.ceil(size.width / 336) * math.ceil(size.height / 336)))


def _internvl(size: Size) -> int:
    """256 tokens for each tile of 448 pixels (at most 12, in the nearest aspect ratio), and 256 for the whole picture
    (dynamic_preprocess).
    """
    ratio, area = size.width / size.height, size.width * size.height
    tiles, nearest = 1, math.inf
    for columns in range(1, 13):
        for rows in range(1, 12 // columns + 1):
            distance = abs(ratio - columns / rows)
            larger = columns * rows > tiles and area > 0.5 * 448 * 448 * columns * rows
            if distance < nearest or (distance == nearest and larger):
                tiles, nearest = columns * rows, distance
    return 256 * (tiles + (tiles > 1)) + 2


def _rows(size: Size, side: int, longest: int) -> int:
    """Mistral's formula: patches row by row, with a mark after each row (mistral-common, ImageEncoder)."""
    scale = max(1.0, size.width / longest, size.height / longest)
    return (math.ceil(size.width / scale / side) + 1) * math.ceil(size.height / scale / side)


def _pixtral(size: Size) -> int:
    """Patches of 16, at most 1,024 pixels a side."""
    return _rows(size, 16, 1024)


def _mistral3(size: Size) -> int:
    """Patches of 14 x 14 pixels, merged 2 x 2; at most 1,540 pixels a side (params.json of Mistral-Small-3.1)."""
    return _rows(size, 28, 1540)


def _llama4(size: Size) -> int:
    """144 tokens and a mark for each tile of 336 pixels (at most 16), and for the whole picture (transformers,
    llama4).
    """
    tiles = min(16, math.ceil(size.width / 336) * math.ceil(size.height / 336))
    return 145 * (tiles + (tiles > 1)) + 2


_FAMILIES: Final[tuple[tuple[tuple[str, ...], Callable[[Size], int]], ...]] = (
    (("qwen2", "vl"), _qwen2),
    (("qwen2.5", "omni"), _qwen2),
    (("qvq",), _qwen2),
    (("qwen3", "vl"), _qwen3),
    (("qwen3", "omni"), _qwen3),
    (("qwen3.5",), _qwen3),
    (("qwen3.6",), _qwen3),
    (("gemma-3",), _gemma3),
    (("gemma3",), _gemma3),
    (("llava", "1.5"), _llava15),
    (("llava",), _llava_next),
    (("internvl",), _internvl),
    (("pixtral",), _pixtral),
    (("mistral-small-3",), _mistral3),
    (("magistral",), _mistral3),
    (("llama-4",), _llama4),
    (("llama4",), _llama4),
)
"""(words in the names of a family's models, its formula). The first row that fits counts."""
