"""Chunked bodies of replicas: the same payload for all cuts, and an error for other bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http.framing import LAST_CHUNK, MAX_TRAILER_BYTES, ChunkReader, FramingError, chunk
from tests.footprint import footprint

payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(payloads, st.lists(st.integers(0, 300), max_size=12), st.sampled_from([b"", b"a: b\r\n", b"x: y\r\nz: 1\r\n"]))
def test_chunked_payload_is_the_same_however_the_bytes_are_cut(
    parts: list[bytes], places: list[int], trailers: bytes
) -> None:
    body = b"".join(map(chunk, parts)) + b"0\r\n" + trailers + b"\r\n"
    reader = ChunkReader()
    got = [piece for part in cut(body, places) for piece in reader.feed(part)]
    assert b"".join(got) == b"".join(parts)
    assert reader.done
    assert not reader.extra


@given(payloads, st.lists(st.integers(0, 300), max_size=12))
def test_bytes_between_two_chunk_boundaries_can_be_forwarded_unchanged(parts: list[bytes], places: list[int]) -> None:
    reader = ChunkReader()
    passed_on = b""
    for part in cut(b"".join(map(chunk, parts)), places):
        before = reader.at_boundary
        pieces = reader.feed(part)
        passed_on += part if before and reader.at_boundary else b"".join(map(chunk, pieces))
    again = ChunkReader()
    assert b"".join(again.feed(passed_on + LAST_CHUNK)) == b"".join(parts)
    assert again.done


def test_chunk_reader_is_at_a_boundary_only_after_a_whole_chunk() -> None:
    reader = ChunkReader()
    reader.feed(chunk(b"hello"))
    assert reader.at_boundary
    reader.feed(b"5\r\nhel")
    assert not reader.at_boundary
    reader.feed(b"lo\r")
    assert not reader.at_boundary
    reader.feed(b"\n")
    assert reader.at_boundary


def test_chunk_extension_is_ignored_and_bytes_after_the_last_chunk_are_reported() -> None:
    reader = ChunkReader()
    assert reader.feed(b"3;name=value\r\nabc\r\n0\r\n\r\nHTTP/1.1") == [b"abc"]
    assert reader.done
    assert reader.extra


@pytest.mark.parametrize(
    "body",
    [
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-1\r\n",
        b"3_0\r\n",
        b" 3\r\nabc\r\n",
        b"\r\nabc",
        b"3\r\nabcd\r\n",
        b"123456789\r\n",
        b"zz\r\n",
        b"1" * 400,
    ],
)
def test_malformed_chunk_is_refused(body: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkReader().feed(body)


TRAILERS = {
    "3,000 fields": b"x: y\r\n" * 3000,
    "100 long fields": (b"x-trailer: " + b"y" * 200 + b"\r\n") * 100,
    "a field without an end": b"x: " + b"y" * 9000,
}


@pytest.mark.parametrize("step", [1, 1000, 100_000])
@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=TRAILERS)
def test_oversized_trailers_end_a_chunked_body_without_loss_of_payload(trailers: bytes, step: int) -> None:
    reader, body, payload = ChunkReader(), b"3\r\nabc\r\n0\r\n" + trailers, b""
    empty = footprint(reader)
    for at in range(0, len(body), step):
        payload += b"".join(reader.feed(body[at : at + step]))
        if reader.done:
            break
        assert footprint(reader) <= empty + MAX_TRAILER_BYTES + step
    assert (payload, reader.done, reader.large) == (b"abc", True, True)


def test_chunked_body_with_small_trailers_is_not_marked_large() -> None:
    reader = ChunkReader()
    reader.feed(b"0\r\nx-took: 1\r\n\r\n")
    assert (reader.done, reader.large, reader.extra) == (True, False, False)


@pytest.mark.parametrize("extension", [256 - 1, 256])
def test_bound_on_the_line_of_a_chunk_size_does_not_depend_on_the_reads(extension: int) -> None:
    data = b"5" + b";" * extension + b"\r\nhello\r\n"
    for cut in (0, 1, 200, 256, 257, 258, len(data)):
        reader = ChunkReader()
        pieces: list[bytes] = []
        try:
            for part in (data[:cut], data[cut:]):
                pieces += reader.feed(part)
        except FramingError:
            pieces = [b"refused"]
        assert b"".join(pieces) == (b"hello" if extension < 256 else b"refused"), cut
