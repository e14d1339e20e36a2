"""Real answers of the emulated replica, byte for byte, and the places where they can be cut."""

from __future__ import annotations

import json
from dataclasses import dataclass

from loadtests.emulator import Emulator

from .capture import Answer, Call, Then
from .raw import CHAT, MODEL, Response, connect, request

FIELDS: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
    "/v1/embeddings": {"input": "Hello"},
}
STREAMED = [path for path in FIELDS if path != "/v1/embeddings"]
FIRST_TOKEN = {
    CHAT: b'"delta":{"content":" ',
    "/v1/completions": b'"text":" ',
    "/v1/responses": b"event: response.output_text.delta",
    "/v1/messages": b"event: content_block_delta",
}


def asking(path: str, *lines: str, stream: bool, **fields: object) -> bytes:
    """A small request of a client to `path`; `lines` are further header lines."""
    body = {"model": MODEL} | FIELDS[path] | ({"stream": True} if stream else {}) | fields
    return request(path, json.dumps(body).encode(), *lines)


async def recorded(path: str, *, stream: bool) -> bytes:
    """The bytes of a replica's answer, with head and framing."""
    async with Emulator() as emulator:
        client = await connect(emulator.url)
        options = {"stream_options": {"include_usage": True}} if stream and path in (CHAT, "/v1/completions") else {}
        client.send(asking(path, "Connection: close", stream=stream, ignore_eos=True, **options))
        answer = await client.rest()
        await client.close()
    return answer


def unframed(answer: bytes) -> bytes:
    """The same answer without a length: it ends with the connection."""
    head, _, framed = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith((b"transfer-encoding", b"content-length"))]
    payload = framed
    if b"transfer-encoding: chunked" in head:
        payload = b""
        while framed:
            size, _, framed = framed.partition(b"\r\n")
            payload, framed = payload + framed[: int(size, 16)], framed[int(size, 16) + 2 :]
    return b"\r\n".join([*lines, b"", b""]) + payload


def cuts(answer: bytes, every: int) -> list[int]:
    """Places to cut: around every boundary of lines, events and chunks, and each `every`-th byte; never the end."""
    places = set(range(0, len(answer), every))
    for place in range(len(answer)):
        if answer.startswith(b"\n", place):
            places |= {place - 1, place, place + 1, place + 2}
    return sorted(place for place in places if 0 <= place < len(answer))


@dataclass(frozen=True, slots=True)
class Cut:
    """Answers the call with the request id `cut-N` with the first N bytes, and then ends the connection."""

    answer: bytes
    then: Then

    def __call__(self, call: Call) -> Answer:
        place = int(call.header("x-request-id")[0].split("-")[1])
        return Answer(self.answer[:place], self.then)


def is_error_event(path: str, event: dict | str) -> bool:
    """Whether it is an event for which the SDK of this path raises."""
    if not isinstance(event, dict) or not event.get("error"):
        return False
    return path == CHAT or path == "/v1/completions" or event.get("type") == "error"


def is_never_complete(path: str, response: Response) -> str:
    """Why a client could take a stream with a missing end for a complete one; empty if it cannot."""
    if response.status != 200:
        return "" if response.status == 502 and response.whole else f"status {response.status}"
    if not response.whole:
        return "it has no last chunk"
    for end in (b"[DONE]", b"message_stop"):
        if end in response.body:
            return f"it has {end.decode()}"
    if not response.events or not is_error_event(path, response.events[-1]):
        return "its last event is no error"
    return ""
