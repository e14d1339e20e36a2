"""Reads HTTP/1.1 answers from bytes as they arrive: heads, chunks, and the events of streams."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httptools
import orjson

from loadtests.replay.dialects import Piece, event_of, tokens_in, whole_of

DONE = b"[DONE]"
CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Fields of a delta that hold content for a reader."""
MAX_EVENT_BYTES = 1 << 22
"""Bytes of an unfinished event; finished events are not kept."""
MAX_BODY_BYTES = 1 << 24
MAX_SHOWN = 60
"""Letters that are kept of a target's name for an error."""
MAX_MESSAGE = 300
"""Letters that are kept of a target's own words about an error."""
MAX_TOKENS = (1 << 32) - 1
"""Largest token count of an answer: rows have no room for more (loadtests.replay.columns)."""
MAX_DURATION = 1e9
"""Largest number in a header, in its own unit. Larger pauses are mistakes, and would overflow the 32 bits of a row."""
KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
T = TypeVar("T")


class Garbage(ValueError):
    """The answer is not one of an OpenAI-compatible server."""


class Answer:
    """The received part of the current answer; `reset` before the next one."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_bounded",
        "_parser",
        "_rest",
        "_stream",
        "_text",
        "cached_tokens",
        "chunks",
        "closing",
        "complete",
        "cut",
        "done",
        "error",
        "finish_reason",
        "keeps",
        "message",
        "output_tokens",
        "prompt_tokens",
        "queue_s",
        "reason",
        "replica",
        "retry_after_s",
        "said",
        "should_retry",
        "status",
        "tier",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.keeps = False
        """Whether the text of answers is kept, in `said`."""
        self._clear()

    def reset(self) -> None:
        """Prepare for the next answer on this connection."""
        if self.status and not self.complete:
            self._parser = httptools.HttpResponseParser(self)
        self._clear()

    def _clear(self) -> None:
        self.status = 0
        """The HTTP status; 0 before the head was read."""
        self._rest = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._bounded = False
        """Whether the head says where the body ends: it has a length, or is chunked."""
        self._stream = False
        self._text = False
        self.chunks = 0
        """Events with content, reasoning or a tool call."""
        self.reason = ""
        """The header x-tailgate-reason, else the name of the error in the body or in the stream."""
        self.message = ""
        """The target's own words about its error; empty if it has none."""
        self.said: list[str] = []
        """The pieces of text of the answer, if they are kept."""
        self.tier = ""
        self.replica = ""
        self.retry_after_s: float | None = None
        self.should_retry = ""
        self.queue_s: float | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens that the engine found in its prefix cache; None if it does not say."""
        self.output_tokens: int | None = None
        self.finish_reason = ""
        self.cut = ""
        """The reason with which the gateway ended the answer, if it did."""
        self.done = False
        """Whether the stream has announced its end."""
        self.error = False
        self.complete = False
        """Whether the whole body was read."""
        self.closing = False
        """Whether the connection takes no further request."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream of events."""
        return self._stream

    @property
    def empty(self) -> bool:
        """Whether the answer has no token. A single counted token may be without text: the end itself, or half a
        letter.
        """
        return not (self.chunks or self._text or (self.finish_reason and self.output_tokens == 1))

    def feed(self, data: bytes) -> None:
        """Read more bytes. Raises httptools.HttpParserError if they are not HTTP, or if an event is not JSON."""
        self._parser.feed_data(data)

    def end(self) -> None:
        """Note that the connection ended properly. That also ends an answer without length and chunks. Raises
        Garbage.
        """
        if self.status and not self._bounded:
            self.on_message_complete()

    # Callbacks of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._stream = value.startswith(b"text/event-stream")
        elif name in (b"content-length", b"transfer-encoding"):
            self._bounded = True
        elif name == b"server-timing":
            self.queue_s = _queue_s(value)
        elif name.startswith(b"x-"):
            if name == b"x-tailgate-reason":
                self.reason = value.decode("latin-1")[:MAX_SHOWN]
            elif name == b"x-tailgate-replica":
                self.replica = value.decode("latin-1")
            elif name == b"x-tailgate-tier":
                self.tier = value.decode("latin-1")
            elif name == b"x-should-retry":
                self.should_retry = value.decode("latin-1")
        elif name == b"retry-after" and self.retry_after_s is None:
            self.retry_after_s = _retry_after_s(value)
        elif name == b"retry-after-ms" and (milliseconds := _number(value)) is not None:
            self.retry_after_s = milliseconds / 1000.0

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._stream:
            self._body.append(data)
            self._body_bytes += len(data)
            if self._body_bytes > MAX_BODY_BYTES:
                raise Garbage(f"{self._body_bytes:,} bytes of an unfinished body arrived")
            return
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                self._event(event[6:])
            else:
                for line in event.split(b"\n"):
                    if line.startswith(b"data:"):
                        self._event(line[5:].lstrip())
        if self._rest and len(self._rest) > MAX_EVENT_BYTES:
            raise Garbage(f"{len(self._rest):,} bytes of an unfinished event arrived")

    def on_message_complete(self) -> None:
        if 100 <= self.status < 200:
            self._clear()  # an interim answer: the final one follows
            return
        self.complete = True
        self.closing = not self._parser.should_keep_alive()
        if self._body:
            self._whole(b"".join(self._body))
            self._body = []

    # The contents of the answer follow.

    def _event(self, data: bytes) -> None:
        if data == DONE:
            self.done = True
            return
        event = _object(data)
        if "choices" not in event and isinstance(event.get("type"), str):
            self._other(event_of(event))
            return
        for choice in _choices(event):
            delta = choice.get("delta")
            if (choice.get("text") if delta is None else _said("delta", delta)) and not self.error:
                self.chunks += 1
                if self.keeps:
                    self.said.append(str(choice.get("text") or (delta or {}).get("content") or ""))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._common(event)

    def _whole(self, body: bytes) -> None:
        try:
            said = _object(body)
            if self.status == 200 and "choices" not in said:
                self._other(whole_of(said))
            for choice in _choices(said):
                self._text = self._text or bool(choice.get("text") or _said("message", choice.get("message") or {}))
                if self.keeps:
                    self.said.append(str(choice.get("text") or (choice.get("message") or {}).get("content") or ""))
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self._common(said)
            if self.status != 200 and not self.error:
                self.message = _message(said)  # {"detail": ...} of FastAPI, {"object": "error", ...} of old vLLMs
        except Garbage:
            if self.status == 200:
                raise
            if not body.lstrip().startswith(b"<"):  # error pages of proxies are HTML: the status says enough
                self.message = _message(body[: 4 * MAX_MESSAGE].decode(errors="replace"))

    def _other(self, piece: Piece) -> None:
        """A piece of an API without choices."""
        if piece.content and not self.error:
            self.chunks += self._stream
            self._text = True
        if self.keeps and piece.text:
            self.said.append(piece.text)
        self.finish_reason = piece.finish or self.finish_reason
        self.done = self.done or piece.done
        self._common({"error": piece.error, "usage": piece.usage})

    def _common(self, said: dict[str, Any]) -> None:
        if error := said.get("error"):
            self.error = True
            self.message = _message(error)
            if not self.reason:
                self.reason = _called(error)
        if usage := said.get("usage"):
            _check(dict, "usage", usage)
            _check(dict, "usage.prompt_tokens_details", usage.get("prompt_tokens_details") or {})
            prompt, output, cached = tokens_in(usage)
            # Messages tell the prompt at the beginning, and the answer at the end.
            self.prompt_tokens = _tokens("prompt_tokens", prompt, self.prompt_tokens)
            self.cached_tokens = _tokens("prompt_tokens_details.cached_tokens", cached, self.cached_tokens)
            self.output_tokens = _tokens("completion_tokens", output, self.output_tokens)
        if ours := said.get("tailgate"):
            self.cut = _check(str, "tailgate.cut", _check(dict, "tailgate", ours).get("cut") or "")


def _choices(said: dict[str, Any]) -> list[dict[str, Any]]:
    choices = _check(list, "choices", said.get("choices") or [])
    for choice in choices:
        _check(dict, "an element of choices", choice)
    return choices


def _said(name: str, delta: dict[str, Any]) -> bool:
    if _check(dict, name, delta).get("content"):
        return True
    return any(delta.get(name) for name in CONTENT)


def _tokens(name: str, count: Any, before: int | None) -> int | None:
    """A count of tokens; if there is none, the one before it."""
    if count is None:
        return before
    if type(count) is int and 0 <= count <= MAX_TOKENS:
        return count
    raise Garbage(f"usage.{name} is not a number of tokens: {_shown(count)}")


def _check(kind: type[T], name: str, value: Any) -> T:
    if isinstance(value, kind):
        return value
    raise Garbage(f"{name} is not {KINDS[kind]}: {_shown(value)}")


def _shown(value: object) -> str:
    return orjson.dumps(value).decode()[:MAX_SHOWN]


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Garbage("no JSON") from None
    if not isinstance(found, dict):
        raise Garbage("no object")
    return found


def _called(error: object) -> str:
    """The name of an error in any dialect: its code, or its type."""
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or "error")[:MAX_SHOWN]
    return str(error)[:MAX_SHOWN]


def _message(error: object) -> str:
    """The words of an error in any dialect, on one line."""
    words = error.get("message") or error.get("detail") or "" if isinstance(error, dict) else error
    return " ".join(str(words).split())[:MAX_MESSAGE]


def _queue_s(value: bytes) -> float | None:
    """Seconds in the queue, from a header such as `queue;dur=1.2, replica;dur=30.5` in milliseconds."""
    for metric in value.split(b","):
        name, _, duration = metric.strip().partition(b";dur=")
        if name == b"queue" and (number := _number(duration)) is not None:
            return number / 1000.0
    return None


def _retry_after_s(value: bytes) -> float | None:
    """The seconds of a Retry-After; for a date (RFC 9110, 10.2.3), the seconds until then by this machine's clock, as
    in SDKs."""
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        until = parsedate_to_datetime(value.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):  # no date, or an impossible one
        return None
    return max(0.0, until - time.time())


def _number(value: bytes) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) <= MAX_DURATION else None
