"""Sizes of pictures from their headers, and their tokens in models."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.body.content import MEDIA_BYTES
from gateway.wire.body.pictures import (
    BYTES_PER_TOKEN,
    MAX_TOKENS,
    MIN_TOKENS,
    PictureTokens,
    Size,
    size_in,
    sized,
    tokens_of,
)
from gateway.wire.body.placeholders import MAX_BYTES, MAX_PICTURES, Placeholders

from .bodies import CHAT, MESSAGES, RESPONSES, read


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 6, 0, 0, 0) + bytes(40)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + bytes(40)


def webp(kind: bytes, rest: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 60) + b"WEBP" + kind + struct.pack("<I", len(rest)) + rest + bytes(30)


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def jpeg(width: int, height: int, before: int = 0, frame: int = 0xC0) -> bytes:
    segments = b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)
    while before > 0:
        length = min(before, 60_000)
        segments += b"\xff\xe1" + struct.pack(">H", length + 2) + bytes(length)
        before -= length
    tables = b"\xff\xc4" + struct.pack(">H", 4) + bytes(2)  # a Huffman table: not a frame, though it looks like one
    start = bytes([0xFF, frame]) + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + segments + tables + b"\xff\xff" + start[1:] + bytes(20)


WRITERS = [png, gif, lossy, lossless, extended, jpeg]
sides = st.integers(1, 16_383)


@given(writer=st.sampled_from(WRITERS), width=sides, height=sides, prefix=st.sampled_from(["", "data:image/x;base64,"]))
def test_picture_size_is_read_from_the_file_header(writer: Any, width: int, height: int, prefix: str) -> None:
    assert size_in(prefix + base64.b64encode(writer(width, height)).decode()) == (width, height)


@pytest.mark.parametrize("frame", [0xC0, 0xC1, 0xC2, 0xCF])
def test_jpeg_size_is_found_after_camera_metadata(frame: int) -> None:
    assert size_in(base64.b64encode(jpeg(640, 480, before=70_000, frame=frame)).decode()) == (640, 480)
    assert size_in(base64.b64encode(jpeg(640, 480, before=200_000, frame=frame)).decode()) is None


@given(
    st.binary(max_size=100), st.sampled_from([b"", b"\xff\xd8", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF1234WEBPVP8L"])
)
def test_picture_size_of_random_bytes_is_none_or_plausible(rest: bytes, magic: bytes) -> None:
    size = sized(magic + rest)
    assert size is None or all(0 < side <= 65_535 for side in size)


@given(st.text(max_size=200), st.sampled_from(["", "data:", "data:image/png;base64,", "data:,", "/9j/"]))
def test_picture_size_of_any_text_raises_no_error(rest: str, prefix: str) -> None:
    size_in(prefix + rest)


@pytest.mark.parametrize(
    ("size", "tokens"), [((1024, 1024), 1337), ((60_000, 60_000), MAX_TOKENS), ((1, 65_535), 83), ((1, 1), MIN_TOKENS)]
)
def test_image_tokens_follow_from_the_area_within_limits(size: tuple[int, int], tokens: int) -> None:
    assert tokens_of(Size(*size)) == tokens


def test_pictures_are_found_in_requests_of_every_api() -> None:
    caps = Caps(media=True)
    data = base64.b64encode(png(560, 560)).decode()
    url = f"data:image/png;base64,{data}"
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}
    requests = [
        (
            Endpoint.CHAT,
            {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        ),
        (Endpoint.MESSAGES, {**MESSAGES, "messages": [{"role": "user", "content": [block]}]}),
        (Endpoint.MESSAGES, {**MESSAGES, "messages": [{"role": "user", "content": [result]}]}),
        (Endpoint.RESPONSES, {**RESPONSES, "input": [output, {"role": "user", "content": "hi"}]}),
    ]
    for endpoint, document in requests:
        request = read(endpoint, document, caps)
        assert Placeholders(request.fields).correction == 4 * (20 * 20) - MEDIA_BYTES
        assert request.prompt_bytes + Placeholders(request.fields).correction > 0


def test_pictures_without_a_size_and_beyond_the_first_few_keep_the_flat_estimate() -> None:
    def chat(*urls: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": u} for u in urls]}]}

    assert Placeholders(chat("data:image/png;base64,AAAA", "data:,x")).correction == 0
    small = "data:image/gif;base64," + base64.b64encode(gif(28, 28)).decode()
    one = Placeholders(chat(small)).correction
    assert Placeholders(chat(*[small] * (MAX_PICTURES + 5))).correction == MAX_PICTURES * one


@pytest.mark.parametrize("url", ["data:,", "data:image/gif;base64," + base64.b64encode(gif(60_000, 60_000)).decode()])
def test_many_small_pictures_do_not_become_a_prompt_that_fills_the_memory(url: str) -> None:
    given = [{"type": "image_url", "image_url": f"{url}{number}"} for number in range(2000)]
    placeholders = Placeholders({"messages": [{"role": "user", "content": given}]})
    assert placeholders.count == 2000
    assert len(json.dumps(placeholders.fields)) <= MAX_BYTES + 2000 * 100
    (message,) = placeholders.fields["messages"]
    assert len({part["image_url"] for part in message["content"]}) == 2000


@given(
    tokens=st.integers(64, 32_768),
    sides=st.tuples(st.integers(800, 4000), st.integers(800, 4000)),
    text_bytes=st.integers(0, 1000),
)
def test_tokens_of_pictures_are_learned_for_each_model_from_the_counts_of_its_engines(
    tokens: int, sides: tuple[int, int], text_bytes: int
) -> None:
    area, learned = tokens_of(Size(*sides)), PictureTokens()
    text_tokens = text_bytes // BYTES_PER_TOKEN
    for _ in range(20):
        estimated = int(learned.factor("a") * area)
        learned.learn("a", estimated, BYTES_PER_TOKEN * estimated + text_bytes, tokens + text_tokens)
    assert 0.75 < max(area / 64, min(8 * area, tokens)) / (learned.factor("a") * area) < 1.3
    assert learned.factor("b") == 1.0


def test_one_picture_at_most_doubles_or_halves_what_pictures_count_for_a_model() -> None:
    learned = PictureTokens()
    learned.learn("a", 1000, 4000, 1)
    assert learned.factor("a") == 0.5
    learned.learn("b", 64, 256, 10**9)
    assert learned.factor("b") == 2.0


def test_prompts_of_mostly_text_teach_nothing_about_pictures() -> None:
    learned = PictureTokens()
    learned.learn("a", 100, 4 * 100_000, 50_000)
    assert learned.factor("a") == 1.0
