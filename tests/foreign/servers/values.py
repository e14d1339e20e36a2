"""Any server: unexpected JSON in event streams."""

from __future__ import annotations

import json
from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_RFC: Final = "RFC 8259"
_TAIL: Final = (s.STOP, s.DONE)


def _used(text: str) -> bytes:
    return s.usage().replace(s.dumped(s.USED), text.encode())


SCRIPTS: Final = (
    Script(
        "stop_reason null beside choices",
        "vLLM's field of a choice, which proxies lift to the top",
        s.sized(s.completion(stop_reason=None)),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "delta null",
        "no server known; a field that is null",
        s.chunked(s.data({**s.spoken(), "choices": [{"index": 0, "delta": None}]}), s.HI, s.THERE, *_TAIL),
        s.TEXT,
    ),
    Script(
        "choices null",
        "no server known; a field that is null",
        s.chunked(s.data({"id": "c", "choices": None}), s.HI, s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "no object, no id, no model",
        "alfredapp/openai-workflow#52: chunks without object and finish_reason",
        s.chunked(
            *(s.data({"choices": [{"delta": {"content": t}}]}) for t in ("Hi", " there")),
            s.data({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
            s.DONE,
        ),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "finish_reason as a number",
        "no server known; a type that nobody expects",
        s.chunked(s.HI, s.say(" there", 0), s.DONE),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "content as a list of parts",
        "docs.mistral.ai: content of a delta may be a list",
        s.chunked(s.say(content=[{"type": "text", "text": "Hi"}]), s.THERE, *_TAIL),
        None,
        assembled=Ends.EITHER,
    ),
    Script(
        "usage as whole numbers with a point",
        "numbers that are whole are integers, however they are written (RFC 8259, 6)",
        s.chunked(
            s.HI, s.THERE, s.STOP, _used('{"prompt_tokens":5.0,"completion_tokens":2e0,"total_tokens":7.0}'), s.DONE
        ),
        s.TEXT,
        usage=(5, 2),
    ),
    Script(
        "usage of 400 digits",
        _RFC + ", 6: numbers have no bound",
        s.chunked(
            s.HI, s.THERE, s.STOP, _used(f'{{"prompt_tokens":{"9" * 400},"completion_tokens":{"9" * 400}}}'), s.DONE
        ),
        s.TEXT,
    ),
    Script(
        "usage beyond 64 bits",
        _RFC + ", 6: numbers have no bound",
        s.chunked(
            s.HI,
            s.THERE,
            s.STOP,
            _used('{"prompt_tokens":18446744073709551616,"completion_tokens":9223372036854775808}'),
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "usage of 1e300",
        _RFC + ", 6: numbers have no bound",
        s.chunked(s.HI, s.THERE, s.STOP, _used('{"prompt_tokens":1e300,"completion_tokens":1e300}'), s.DONE),
        s.TEXT,
    ),
    Script(
        "usage below zero",
        "no server known; a count that cannot be",
        s.chunked(s.HI, s.THERE, s.STOP, _used('{"prompt_tokens":-5,"completion_tokens":-1}'), s.DONE),
        s.TEXT,
    ),
    Script(
        "usage as text",
        "counts as strings",
        s.chunked(s.HI, s.THERE, s.STOP, _used('{"prompt_tokens":"5","completion_tokens":"2"}'), s.DONE),
        s.TEXT,
    ),
    Script(
        "usage as a list",
        "no server known; a type that nobody expects",
        s.chunked(s.HI, s.THERE, s.STOP, _used("[5,2]"), s.DONE),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "keys twice",
        _RFC + ", 4: names should be unique, and are not always",
        s.chunked(
            s.HI.replace(b'"index":0', b'"index":0,"index":0'),
            s.THERE,
            s.STOP,
            _used('{"prompt_tokens":1,"prompt_tokens":5,"completion_tokens":2}'),
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "deep nesting",
        _RFC + ", 9: depth has no bound",
        s.chunked(s.HI, s.data(s.spoken(" there"))[:-3] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n", *_TAIL),
        None,
        assembled=Ends.EITHER,
    ),
    Script(
        "bytes that are not UTF-8 in the text",
        "openclaw/openclaw#120234: corrupt bytes in a stream",
        s.chunked(s.HI.replace(b"Hi", b"H\xff\xfe"), s.THERE, *_TAIL),
        "H\ufffd\ufffd there",
        assembled=Ends.EITHER,
    ),
    Script(
        "a character cut between two chunks",
        "katanemo/plano#980: UTF-8 split at a boundary",
        s.chunked(s.say("\u2705")[:-60], s.say("\u2705")[-60:], s.THERE, *_TAIL),
        "\u2705 there",
    ),
    Script(
        "half a surrogate, escaped",
        "openclaw/openclaw#110642: pairs split between chunks",
        s.chunked(s.HI, b"data: " + json.dumps(s.spoken("\ud83d")).encode() + b"\n\n", *_TAIL),
        None,
        assembled=Ends.EITHER,
    ),
    Script(
        "NUL in the text",
        "engines that decode token 0",
        s.chunked(s.say("Hi\x00").replace(b"\x00", b"\\u0000"), s.THERE, *_TAIL),
        "Hi\x00 there",
    ),
    Script(
        "NUL as a byte",
        "engines that decode token 0",
        s.chunked(s.HI.replace(b"Hi", b"H\x00i"), s.THERE, *_TAIL),
        None,
        assembled=Ends.EITHER,
    ),
    Script(
        "JSON with blanks",
        "Python's json.dumps writes blanks",
        s.chunked(
            *(b"data: " + json.dumps(s.spoken(t, f)).encode() + b"\n\n" for t, f in (("Hi", None), (" there", "stop"))),
            s.DONE,
        ),
        s.TEXT,
    ),
    Script(
        "an event that is a JSON array",
        "no server known; a type that nobody expects",
        s.chunked(s.data([1, 2]), s.HI, s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "an event that is a number",
        "no server known; a type that nobody expects",
        s.chunked(s.HI, s.data(5), s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "an event that is broken JSON",
        "anomalyco/opencode#8282: one object cut off by the next",
        s.chunked(s.HI, b'data: {"id":"1","choices":[{"in\n\n', s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "three choices where one was asked for",
        "no server known; more than was asked for",
        s.chunked(*(s.say("Hi", index=n) for n in range(3)), s.say("", "stop", index=0), s.DONE),
        None,
    ),
    Script(
        "the index of a choice beyond 64 bits",
        _RFC + ", 6: numbers have no bound",
        s.chunked(s.HI.replace(b'"index":0', b'"index":99999999999999999999'), s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "an error that is null in each chunk",
        "gateways that write every field",
        s.chunked(*(s.data(s.spoken(t) | {"error": None}) for t in ("Hi", " there")), *_TAIL),
        s.TEXT,
    ),
    Script(
        "an error that is a number",
        "no server known; a type that nobody expects",
        s.chunked(s.HI, s.data({"error": 7})),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "an error whose message is not UTF-8",
        "RFC 8259, 8.1: JSON is UTF-8, or ought to be",
        s.chunked(s.HI, b'data: {"error":{"message":"\xff\xfe","code":500}}\n\n'),
        "Hi",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "finish_reason that is not UTF-8",
        "RFC 8259, 8.1: JSON is UTF-8, or ought to be",
        s.chunked(s.HI, s.say(" there", "stop").replace(b"stop", b"st\xffp"), s.DONE),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
)
