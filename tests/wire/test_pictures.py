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
from gateway.wire.body.pictures import Size, size_in, sized, tokens_of
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
    ("model", "size", "tokens"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", Size(1024, 1024), 37 * 37 + 2),
        ("Qwen/Qwen2-VL-2B", Size(10, 10), 4 + 2),
        ("Qwen/Qwen3-VL-30B-A3B", Size(1920, 1080), 60 * 34 + 2),
        ("Qwen/Qwen3-VL-8B", Size(8000, 6000), 147 * 110 + 2),
        ("google/gemma-3-27b-it", Size(4000, 3000), 258),
        ("llava-hf/llava-1.5-7b-hf", Size(4000, 3000), 576),
        ("llava-hf/llava-v1.6-mistral-7b-hf", Size(672, 672), 5 * 576),
        ("OpenGVLab/InternVL3-8B", Size(448, 448), 258),
        ("OpenGVLab/InternVL3-8B", Size(1344, 896), 7 * 256 + 2),
        ("mistralai/Pixtral-12B-2409", Size(2048, 1024), 65 * 32),
        ("mistralai/Mistral-Small-3.1-24B", Size(1540, 1540), 56 * 55),
        ("meta-llama/Llama-4-Scout-17B", Size(672, 336), 3 * 145 + 2),
        ("somebody/else", Size(1024, 1024), 1337),
        ("somebody/else", Size(60_000, 60_000), 4096),
        ("somebody/else", Size(1, 1), 64),
    ],
)
def test_image_tokens_follow_the_documentation_of_each_model_family(model: str, size: Size, tokens: int) -> None:
    assert tokens_of(size, model) == tokens


@given(
    width=st.integers(1, 65_535), height=st.integers(1, 65_535), model=st.sampled_from(["qwen2-vl", "qwen3-vl", "x"])
)
def test_image_tokens_stay_within_the_bound_of_each_model_family(width: int, height: int, model: str) -> None:
    assert 0 < tokens_of(Size(width, height), model) <= 17_000 + max(width, height) // 28


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
        assert Placeholders(request.fields, "Qwen2-VL").correction == 4 * (20 * 20 + 2) - MEDIA_BYTES
        assert request.prompt_bytes + Placeholders(request.fields, "Qwen2-VL").correction > 0


def test_pictures_without_a_size_and_beyond_the_first_few_keep_the_flat_estimate() -> None:
    def chat(*urls: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": u} for u in urls]}]}

    assert Placeholders(chat("data:image/png;base64,AAAA", "data:,x"), "qwen2-vl").correction == 0
    small = "data:image/gif;base64," + base64.b64encode(gif(28, 28)).decode()
    one = Placeholders(chat(small), "x").correction
    assert Placeholders(chat(*[small] * (MAX_PICTURES + 5)), "x").correction == MAX_PICTURES * one


@pytest.mark.parametrize("url", ["data:,", "data:image/gif;base64," + base64.b64encode(gif(60_000, 60_000)).decode()])
def test_many_small_pictures_do_not_become_a_prompt_that_fills_the_memory(url: str) -> None:
    given = [{"type": "image_url", "image_url": f"{url}{number}"} for number in range(2000)]
    placeholders = Placeholders({"messages": [{"role": "user", "content": given}]}, "x")
    assert placeholders.count == 2000
    assert len(json.dumps(placeholders.fields)) <= MAX_BYTES + 2000 * 100
    (message,) = placeholders.fields["messages"]
    assert len({part["image_url"] for part in message["content"]}) == 2000
