"""One answer of a foreign server: its bytes, the public fact behind them, and the right outcome.

A script is data. Its bytes were written for this file from the facts that `source` names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

MODEL: Final = "emulated"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"


class Then(Enum):
    """The state of the connection after the bytes."""

    KEEP = auto()
    CLOSE = auto()
    """The replica closes the connection properly (FIN)."""
    RESET = auto()
    SILENCE = auto()
    """Nothing more ever comes, although the answer is not over."""
    PINGS = auto()
    """A comment comes every second, for ever."""


class Ends(Enum):
    """The outcome that the client must get."""

    WHOLE = auto()
    """The answer, complete."""
    BROKEN = auto()
    """An error in its dialect: a status if nothing was shown before, else an event and the last chunk."""
    REFUSED = auto()
    """An error with the status of the script."""
    EITHER = auto()
    """Either one answer or one error. The bytes break the rules of their API, so both outcomes are right."""


@dataclass(frozen=True, slots=True)
class Script:
    """`text`: the joined text of a whole answer."""

    name: str
    source: str
    data: bytes
    text: str | None = ""
    """With None, any text is right, as long as the body is passed on unchanged."""
    path: str = CHAT
    stream: bool = True
    """Whether the client asks for a stream."""
    then: Then = Then.KEEP
    ends: Ends = Ends.WHOLE
    status: int = 502
    assembled: Ends = Ends.WHOLE
    """The outcome for a client of a tier that aggregates, if `ends` is WHOLE and the answer is a stream."""
    fault: bool | None = False
    """Whether it counts against the replica; None: both are right."""
    usage: tuple[int, int] | None = None
    """Prompt and output tokens that must be accounted; None: the gateway's own estimate will do."""
    choices: int = 1
    within_s: float | None = None
    """Seconds after the request in which the answer must be over; None: the timeouts of the tier will do."""
    elsewhere: bool = False
    """Whether another replica must answer, where there is one: nothing of this answer has begun."""


# ---- heads and framing

SSE: Final = "text/event-stream"
JSON: Final = "application/json"


def head(content_type: str | None = SSE, *lines: str, status: str = "200 OK", version: str = "HTTP/1.1") -> bytes:
    """A response head, with its blank line."""
    fields = [f"{version} {status}"] + ([] if content_type is None else [f"content-type: {content_type}"])
    return "\r\n".join([*fields, *lines, "", ""]).encode("latin-1")


def chunk(payload: bytes, size: str = "%x", extension: str = "") -> bytes:
    """`payload` as one chunk."""
    return (size % len(payload) + extension).encode() + b"\r\n" + payload + b"\r\n"


LAST: Final = b"0\r\n\r\n"
CHUNKED: Final = "transfer-encoding: chunked"


def chunked(*pieces: bytes, content_type: str | None = SSE, lines: tuple[str, ...] = (), last: bytes = LAST) -> bytes:
    """A whole answer of status 200, each piece a chunk."""
    return head(content_type, CHUNKED, *lines) + b"".join(chunk(piece) for piece in pieces if piece) + last


def sized(body: bytes, *lines: str, content_type: str | None = JSON, status: str = "200 OK") -> bytes:
    """A whole answer with Content-Length."""
    return head(content_type, f"content-length: {len(body)}", *lines, status=status) + body


def unframed(*pieces: bytes, content_type: str | None = SSE, version: str = "HTTP/1.1") -> bytes:
    """An answer that ends with its connection."""
    return head(content_type, "connection: close", version=version) + b"".join(pieces)


# ---- events

DONE: Final = b"data: [DONE]\n\n"


def dumped(value: object) -> bytes:
    """Compact JSON, as most engines write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def data(value: object) -> bytes:
    """One event with only JSON."""
    return b"data: " + dumped(value) + b"\n\n"


def named(name: str, value: object) -> bytes:
    """One event with a name."""
    return f"event: {name}\n".encode() + data(value)


def typed(name: str, **fields: Any) -> bytes:
    """One event of the Messages or Responses API: its name twice."""
    return named(name, {"type": name, **fields})


def spoken(text: str | None = None, finish: object = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat stream; `fields` are added to the delta."""
    delta: dict[str, Any] = dict(fields) if text is None else {"content": text, **fields}
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def say(text: str | None = None, finish: object = None, **fields: Any) -> bytes:
    """A chunk of a chat stream, as an event."""
    return data(spoken(text, finish, **fields))


USED: Final = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def usage(value: object = USED, **fields: Any) -> bytes:
    """The event with only token counts."""
    return data({**spoken(), "choices": [], "usage": value, **fields})


ROLE: Final = say("", role="assistant")
HI: Final = say("Hi")
THERE: Final = say(" there")
STOP: Final = say(finish="stop")
TEXT: Final = "Hi there"


def completion(text: str | None = TEXT, finish: object = "stop", **fields: Any) -> bytes:
    """A whole chat completion; `fields` are added at the top."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {"id": "c-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": USED}
    return dumped(whole | fields)
