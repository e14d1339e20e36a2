"""A client at the other end of a fake transport, fast or slow, and its reading of the bytes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from tests.foreign.script import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, MODEL, RESPONSES

KERNEL_BYTES: Final = 128 * 1024
"""Bytes that the sockets in between take before the gateway has to keep any."""


class Door(asyncio.Transport):
    """The gateway's end of one client connection. The client takes `pace` bytes per `beat_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: int = 2**40, beat_s: float = 0.0) -> None:
        super().__init__()
        self._loop = loop
        self._pace = pace
        self._beat_s = beat_s
        self._high, self._low = 64 * 1024, 16 * 1024
        self._kernel = bytearray()
        self._buffer = bytearray()
        self._full = False
        self._taking: asyncio.Handle | None = None
        self._eof = False
        self.protocol: Any = None
        self.received = bytearray()
        self.closed = False
        """Whether the gateway has closed it."""
        self.over = False
        """Whether the client has seen the end of the connection."""
        self.news = asyncio.Event()

    # ---- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "the gateway writes to a connection that it has closed"
        self._buffer += data
        self._fill()
        if len(self._buffer) > self._high and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fill()
            if not self._kernel:
                self._end()

    def abort(self) -> None:
        self.leave()

    # ---- the client

    def leave(self) -> None:
        """Close at once, in any state."""
        self.closed = True
        self._buffer.clear()
        self._kernel.clear()
        self._end()

    def _fill(self) -> None:
        room = KERNEL_BYTES - len(self._kernel)
        if room > 0 and self._buffer:
            self._kernel += self._buffer[:room]
            del self._buffer[:room]
        if self._kernel and self._taking is None:
            self._taking = self._loop.call_later(self._beat_s, self._take)

    def _take(self) -> None:
        self._taking = None
        if self.over:
            return
        self.received += self._kernel[: self._pace]
        del self._kernel[: self._pace]
        self.news.set()
        self._fill()
        if self._full and len(self._buffer) <= self._low:
            self._full = False
            self.protocol.resume_writing()
        if self.closed and not self._kernel:
            self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self.news.set()
            self._loop.call_soon(self.protocol.connection_lost, None)


@dataclass(frozen=True, slots=True)
class Answer:
    """One received answer. `framed`: whether it is complete. `extra`: bytes after it."""

    status: int
    fields: dict[str, str]
    body: bytes
    framed: bool
    extra: bytes

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.fields.get("content-type", "").lower().startswith("text/event-stream")


def may_be_whole(raw: bytearray) -> bool:
    """A cheap check, for streams of many pieces."""
    return raw.endswith(b"0\r\n\r\n") or raw.find(b"transfer-encoding: chunked", 0, 2000) < 0


def read_answer(raw: bytes) -> Answer | None:
    """The answer in `raw`; None if its head is incomplete."""
    head, end, rest = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split(" ")[1])
    if fields.get("transfer-encoding") == "chunked":
        body, at, whole = chunks(rest)
        return Answer(status, fields, body, whole, rest[at:] if whole else b"")
    length = int(fields["content-length"])
    return Answer(status, fields, rest[:length], len(rest) >= length, rest[length:])


def chunks(raw: bytes) -> tuple[bytes, int, bool]:
    """The payload, its end in `raw`, and whether it is complete."""
    pieces: list[bytes] = []
    at = 0
    while (line_end := raw.find(b"\r\n", at)) >= 0:
        size = int(raw[at:line_end], 16)
        start, at_next = line_end + 2, line_end + 4 + size
        if len(raw) < at_next:
            break
        if not size:
            return b"".join(pieces), at_next, True
        pieces.append(raw[start : start + size])
        at = at_next
    return b"".join(pieces), at, False


def request(path: str, stream: bool, said: str, choices: int = 1) -> bytes:
    """A request with a unique prompt `said`."""
    body: dict[str, object] = {"model": MODEL}
    turns = [{"role": "user", "content": said}]
    match path:
        case _ if path == CHAT:
            body |= {"messages": turns, "max_tokens": 16}
        case _ if path == COMPLETIONS:
            body |= {"prompt": said, "max_tokens": 16}
        case _ if path == RESPONSES:
            body |= {"input": said, "max_output_tokens": 16}
        case _ if path == MESSAGES:
            body |= {"messages": turns, "max_tokens": 16}
        case _ if path == EMBEDDINGS:
            body |= {"input": said}
    if stream:
        body["stream"] = True
        if path in (CHAT, COMPLETIONS):
            body["stream_options"] = {"include_usage": True}
    if choices > 1:
        body["n"] = choices
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(data),
        data,
    )


# ---- reading as leniently as the SDKs do


def events(body: bytes) -> list[tuple[str, str]]:
    """Name and data of each event, by the rules of the SDKs' decoders; also of a last one without its blank line."""
    found, name, lines = list[Any](), "", list[Any]()
    for raw in [*body.removeprefix(b"\xef\xbb\xbf").splitlines(), b""]:
        line = raw.decode("utf-8", "replace")
        if not line:
            if lines or name:
                found.append((name, "\n".join(lines)))
            name, lines = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            lines.append(value)
        elif field == "event":
            name = value
    return found


def _loaded(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def error_in(body: bytes) -> dict[str, Any] | None:
    """The error among events; None if there is none."""
    for name, data in events(body):
        value = _loaded(data)
        if isinstance(value, dict) and isinstance(value.get("error"), dict):
            return dict(value["error"])
        if name == "error":
            return value if isinstance(value, dict) else {"message": data}
    return None


def _first(value: Any, *path: str | int) -> Any:
    for step in path:
        if isinstance(step, int) and isinstance(value, list):
            value = value[step] if len(value) > step else None
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def said_in_stream(path: str, body: bytes) -> str:
    """The joined text of all events, over all choices, in order of arrival."""
    said: list[object] = []
    for _, data in events(body):
        value = _loaded(data)
        if path == CHAT:
            for choice in _first(value, "choices") or ():
                said.append(_first(choice, "delta", "content"))
        elif path == COMPLETIONS:
            said += [_first(choice, "text") for choice in _first(value, "choices") or ()]
        elif path == RESPONSES and _first(value, "type") == "response.output_text.delta":
            said.append(_first(value, "delta"))
        elif path == MESSAGES:
            said.append(_first(value, "delta", "text"))
    return "".join(part for part in said if isinstance(part, str))


def said_in_whole(path: str, body: bytes) -> str:
    """The text of an answer that was not streamed."""
    value = _loaded(body)
    said: list[object] = []
    if path == CHAT:
        said = [_first(choice, "message", "content") for choice in _first(value, "choices") or ()]
    elif path == COMPLETIONS:
        said = [_first(choice, "text") for choice in _first(value, "choices") or ()]
    elif path == RESPONSES:
        for item in _first(value, "output") or ():
            said += [_first(part, "text") for part in _first(item, "content") or ()]
    elif path == MESSAGES:
        said = [_first(block, "text") for block in _first(value, "content") or ()]
    return "".join(part for part in said if isinstance(part, str))
