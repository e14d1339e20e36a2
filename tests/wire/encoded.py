"""Bodies in the supported content encodings."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final


def raw_deflate(body: bytes) -> bytes:
    """Without zlib's head and check sum, as some clients understand `deflate`."""
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(body) + made.flush()


def zstd(body: bytes, window_log: int = 20) -> bytes:
    """One frame with a check sum."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, window_log=window_log, write_content_size=0, write_checksum=1
    )
    made = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return made.compress(body) + made.flush()


ENCODERS: Final[dict[str, tuple[bytes, Callable[[bytes], bytes]]]] = {
    "gzip": (b"gzip", gzip.compress),
    "zlib": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", raw_deflate),
    "zstd": (b"zstd", zstd),
}
