"""Invented answers that no known server gives: each part may be odd by chance, but the whole is HTTP.

Damage to known answers (`mutate.py`) seldom makes these: usage in the middle, text as an index, half a character in
each of two events, a thousand levels, trailers, interim heads. As with damage, each must give one answer or one error,
and harm nobody: `python -m tests.foreign.invented --count 4000`.
"""

# ruff: noqa: UP031 - in any other form the braces of JSON would have to be doubled

from __future__ import annotations

import gzip
import json
import sys
from random import Random
from typing import Final

from tests.foreign.mutate import KINDS, Case, cut, main
from tests.foreign.script import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    LAST,
    MESSAGES,
    RESPONSES,
    SSE,
    Script,
    Then,
    chunk,
)
from tests.foreign.script import head as head_of

PATHS: Final = (CHAT, CHAT, CHAT, COMPLETIONS, MESSAGES, RESPONSES, EMBEDDINGS)
LEVELS: Final = (10, 250, 260, 900, 1100, 5000)
VALUES: Final = (
    *("null", "true", "0", "-1", "1e400", "-0.0", "NaN", "Infinity", "9" * 400, "1" + "0" * 30, '""', '"x"'),
    *("[]", "{}", "[null]", "[1,2]", '{"a":null}', '"stop"', '"abort"', '"error"', '"emulated"', '{"index":0}'),
    *(
        '"\\ud83d"',
        '"\\ude00"',
        '"\\u0000"',
        '"\U0001f600"',
        '"a\\nb\\r\\ndata: [DONE]\\n\\n"',
        '"' + "y" * 70_000 + '"',
    ),
)
TEXTS: Final = ('"Hi"', '" there"', '"\\ud83d"', '"\\ude00"', '""', '"round and round "')
INTERIM: Final = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\ncontent-length: 5\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\ntransfer-encoding: chunked\r\n\r\n",
)
LINES: Final = (
    *("connection: close", "keep-alive: timeout=1", "retry-after: -1", "content-encoding: br", "x: " + "z" * 30_000),
    *(" folded: x", "no colon", "upgrade: h2c", "content-length: 5", "transfer-encoding: chunked"),
)
STATUSES: Final = (
    *("200 OK",) * 30,
    "200",
    "201 Created",
    "204 No Content",
    "299 x",
    "301 x",
    "304 x",
    "400 x",
    "404 x",
)
STATUSES_OF_FAULTS: Final = ("429 x", "500 x", "503 x", "599 x", "999 x")
LAST_CHUNKS: Final = (
    *(LAST,) * 8,
    *(b"0\r\nx-a: b\r\n\r\n", b"0;e=1\r\n\r\n", b"000\r\n\r\n", b"0\r\n", b"", b"0\r\nx: " + b"y" * 9000 + b"\r\n\r\n"),
    LAST + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
)
TYPES_OF_MESSAGES: Final = (
    *("message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error", "unheard_of"),
)
TYPES_OF_RESPONSES: Final = (
    *("response.created", "response.output_item.added", "response.output_text.delta", "response.output_text.delta"),
    *(
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
        "unheard.of",
    ),
)
END_OF_MESSAGE: Final = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
END_OF_RESPONSE: Final = b'event: response.completed\ndata: {"type":"response.completed","response":{"output":[]}}\n\n'


class Inventor:
    """Draws one answer."""

    def __init__(self, random: Random, path: str) -> None:
        self._random = random
        self._path = path

    def value(self) -> str:
        """Any JSON, and text that is not JSON."""
        levels = self._random.choice(LEVELS)
        nest = self._random.choice(("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels))
        return nest if self._random.random() < 0.1 else self._random.choice(VALUES)

    def _or_any(self, usual: str, odds: float = 0.15) -> str:
        return self.value() if self._random.random() < odds else usual

    def _usage(self) -> str:
        count = self._random.choice(("3", "2.0", "1e300", "-1", '"5"'))
        return self._or_any('{"prompt_tokens":3,"completion_tokens":%s,"input_tokens":null}' % count)

    def _delta(self) -> str:
        text = self._random.choice(TEXTS)
        index = self._random.choice(("0", "7", "-1", '"0"', "1.0", "[0]"))
        calls = '[{"index":%s,"id":"t","function":{"name":"f","arguments":%s}}]' % (index, self._or_any('"{"'))
        usual = self._random.choice(('{"content":%s}' % text,) * 4 + ('{"tool_calls":%s}' % calls, "{}"))
        return self._or_any(usual[:-1] + ',"x":%s}' % self.value() if usual != "{}" and text == '""' else usual)

    def _chunk(self) -> str:
        said = '"text":%s' % self._random.choice(TEXTS) if self._path == COMPLETIONS else '"delta":' + self._delta()
        index = self._random.choice(("0",) * 6 + ("1", "7", '"0"', "0.0", "-1"))
        choice = '{"index":%s,%s,"finish_reason":%s}' % (index, said, self._or_any("null", 0.05))
        choices = self._random.choice((f"[{choice}]",) * 9 + ("[]", f"[{choice},{choice}]", self.value()))
        more = self._random.choice(("",) * 8 + (',"usage":' + self._usage(), ',"error":' + self.value()))
        return '{"id":%s,"model":%s,"choices":%s%s}' % (self._or_any('"c"'), self._or_any('"other"'), choices, more)

    def _typed(self) -> tuple[str, str]:
        if self._path == MESSAGES:
            name = self._random.choice(TYPES_OF_MESSAGES)
            said = '"index":%s,"delta":%s' % (self._or_any("0"), self._or_any('{"type":"text_delta","text":"Hi"}'))
            said += ',"message":%s,"usage":%s' % (self._or_any('{"content":[],"model":"other"}'), self._usage())
        else:
            name = self._random.choice(TYPES_OF_RESPONSES)
            response = '{"id":"r","model":"other","output":%s,"usage":%s}' % (self._or_any("[]"), self._usage())
            said = '"delta":%s,"response":%s,"item":%s' % (
                self._or_any('"Hi"'),
                self._or_any(response),
                self._or_any('{"type":"message","content":[]}'),
            )
        return name, '{"type":"%s",%s}' % (name, said)

    def _event(self) -> bytes:
        name, data = ("", self._chunk()) if self._path in (CHAT, COMPLETIONS) else self._typed()
        end = self._random.choice(("\n",) * 6 + ("\r\n", "\r"))
        lines = [f"event: {name}"] if name else []
        lines.append(self._random.choice(("data: ",) * 8 + ("data:", "data:  ", "\ufeffdata: ", ": x\ndata: ")) + data)
        return (end.join(lines) + end * self._random.choice((2, 2, 2, 2, 3, 1))).encode("utf-8", "surrogatepass")

    def stream(self) -> bytes:
        """A stream of events, with or without an end."""
        events = b"".join(self._event() for _ in range(self._random.choice((0, 1, 3, 8, 20))))
        ends = {MESSAGES: END_OF_MESSAGE, RESPONSES: END_OF_RESPONSE}
        return events + self._random.choice((ends.get(self._path, DONE),) * 3 + (b"", b"data: [DONE]"))

    def whole(self) -> bytes:
        """The body of an answer that is not streamed: one JSON object."""
        message = '"message":{"content":%s}' % self._or_any('"Hi"') if self._path == CHAT else '"text":' + self.value()
        choices = '[{"index":0,%s,"finish_reason":%s}]' % (message, self._or_any('"stop"'))
        said = '"choices":%s,"content":%s,"output":%s' % (self._or_any(choices), self.value(), self.value())
        body = '{"model":%s,%s,"usage":%s}' % (self._or_any('"other"'), said, self._usage())
        return self._or_any(body, 0.05).encode("utf-8", "surrogatepass")

    def framed(self, payload: bytes, content_type: str) -> bytes:
        """The HTTP message: its body is chunked, has a length, or ends with the connection."""
        draw = self._random
        lines = draw.sample(LINES, draw.choice((0,) * 6 + (1, 2)))
        if draw.random() < 0.04:
            payload = gzip.compress(payload)
            lines.append("content-encoding: gzip")
        form = draw.choice(("chunks",) * 6 + ("length",) * 3 + ("short", "end"))
        if form == "chunks":
            lines.append("transfer-encoding: chunked")
            size = draw.choice((1, 7, 200, 2**20)) if len(payload) < 20_000 else 5000
            parts = [payload[at : at + size] for at in range(0, len(payload), size)]
            extension = draw.choice(("",) * 6 + (";a=b", ';a="b;c"', " ", ";" + "e" * 300))
            payload = b"".join(chunk(part, draw.choice(("%x", "%x", "%X", "0%x")), extension) for part in parts)
            payload += draw.choice(LAST_CHUNKS)
        elif form != "end":
            lines.append(f"content-length: {max(0, len(payload) - (form == 'short'))}")
        status = draw.choice((*STATUSES, *STATUSES_OF_FAULTS))
        version = draw.choice(("HTTP/1.1",) * 12 + ("HTTP/1.0", "HTTP/1.2", "ICY"))
        interim = draw.choice(INTERIM) * draw.choice((1, 50)) if draw.random() < 0.1 else b""
        kind = draw.choice((content_type,) * 9 + (None, SSE.upper(), "text/html"))
        return interim + head_of(kind, *lines, status=status, version=version) + payload


def invented(seed: int) -> Case:
    """The example of that seed."""
    random = Random(seed)
    path = random.choice(PATHS)
    stream = path != EMBEDDINGS and random.random() < 0.75
    inventor = Inventor(random, path)
    comes_as_stream = stream if random.random() < 0.95 or path == EMBEDDINGS else not stream
    payload = inventor.stream() if comes_as_stream else inventor.whole()
    data = inventor.framed(payload, SSE if comes_as_stream else "application/json")
    then = random.choice((Then.KEEP, Then.CLOSE, Then.CLOSE, Then.RESET))
    choices = random.choice((1, 1, 1, 2)) if stream and path in (CHAT, COMPLETIONS) else 1
    script = Script(f"invented {json.dumps(path)}", "nobody", data, None, path, stream, then, choices=choices)
    return Case(script, random.choice(KINDS), cut(random, data), {}, 0.0, random.random() < 0.05)


if __name__ == "__main__":
    sys.exit(main(invented))
