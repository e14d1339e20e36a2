"""Compressed bodies: whole or refused, in steps of bounded size."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http.decoding import STEP_BYTES, CorruptBody, Decoding, read_coding

from .encoded import ENCODERS, zstd

encoders = pytest.mark.parametrize("name", ENCODERS)
MAX_STEP_BYTES = STEP_BYTES + 4 * 2**20


def decoded(coding: bytes, body: bytes) -> bytes:
    decoding, before = Decoding(coding, body), 0
    while not decoding.step():
        assert 0 <= decoding.size - before <= MAX_STEP_BYTES
        before = decoding.size
    assert decoding.held == len(body) + decoding.size
    return decoding.decoded()


def encoder(name: str) -> tuple[bytes, Callable[[bytes], bytes]]:
    if name == "zstd":
        pytest.importorskip("zstandard")
    return ENCODERS[name]


@encoders
@pytest.mark.parametrize("size", [0, 1, 100, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * 2**20])
@pytest.mark.parametrize("dense", [True, False])
def test_a_compressed_body_is_decoded_to_what_it_was(name: str, size: int, dense: bool) -> None:
    coding, encode = encoder(name)
    body = os.urandom(size) if dense else b"x" * size
    assert decoded(coding, encode(body)) == body


@encoders
@given(body=st.binary(max_size=2000), cut=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=5))
def test_compressed_body_that_is_cut_off_or_has_trailing_bytes_is_corrupt(
    name: str, body: bytes, cut: int, junk: bytes
) -> None:
    coding, encode = encoder(name)
    whole = encode(body)
    for broken in (whole[: cut % len(whole)], whole + junk):
        with pytest.raises(CorruptBody):
            decoded(coding, broken)


@encoders
@given(junk=st.binary(max_size=300), at=st.integers(0, 300))
def test_random_bytes_are_decoded_or_corrupt_and_raise_nothing_else(name: str, junk: bytes, at: int) -> None:
    coding, encode = encoder(name)
    whole = bytearray(encode(b"The quick brown fox jumps over the lazy dog" * 20))
    whole[at % len(whole)] ^= 0x55
    for body in (junk, bytes(whole)):
        with contextlib.suppress(CorruptBody):
            decoded(coding, body)


def empty_blocks(count: int) -> bytes:
    """Raw deflate blocks without content, in the fixed code."""
    made = zlib.compressobj(wbits=-15)
    return made.flush(zlib.Z_SYNC_FLUSH) + b"\x00\x00\x00\xff\xff" * count


def test_body_that_decodes_to_less_than_it_has_is_refused_early() -> None:
    decoding = Decoding(b"deflate", empty_blocks(2**20))
    assert not decoding.step()
    assert not decoding.step()
    with pytest.raises(CorruptBody, match="fewer bytes than it has"):
        decoding.step()


def test_step_of_decoding_ends_after_some_input_too() -> None:
    text = zlib.compressobj(wbits=-15)
    packed = text.compress(bytes(4 * 2**20)) + text.flush(zlib.Z_SYNC_FLUSH)
    decoding, steps = Decoding(b"deflate", packed + empty_blocks(2**17) + text.flush()), 0
    while not decoding.step():
        steps += 1
    assert steps >= len(empty_blocks(2**17)) // STEP_BYTES
    assert decoding.size == 4 * 2**20


def test_gzip_body_with_a_second_member_is_corrupt() -> None:
    with pytest.raises(CorruptBody, match="bytes follow its end"):
        decoded(b"gzip", gzip.compress(b"{}") * 2)


def test_zstd_body_with_too_large_a_window_is_refused() -> None:
    pytest.importorskip("zstandard")
    with pytest.raises(CorruptBody, match="memory"):
        decoded(b"zstd", zstd(bytes(9 * 2**20), window_log=24))


def test_deflate_body_may_be_zlib_or_raw() -> None:
    raw = zlib.compressobj(wbits=-15)
    assert decoded(b"deflate", raw.compress(b"{}") + raw.flush()) == b"{}"
    assert decoded(b"deflate", zlib.compress(b"{}")) == b"{}"


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"GZip", b"gzip"),
        (b"x-gzip", b"gzip"),
        (b"identity", b"identity"),
        (b"", b"identity"),
        (b"zstd", b"zstd"),
        (b"br", None),
        (b"gzip, gzip", None),
        (b"identity, gzip", None),
        (b"gzip;q=1", None),
    ],
)
def test_content_coding_is_read_by_name(value: bytes, coding: bytes | None) -> None:
    assert read_coding(value) == coding
