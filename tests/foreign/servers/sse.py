"""Any server: grammar and size of event streams."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script

_WHATWG: Final = "html.spec.whatwg.org, 9.2.6 interpreting an event stream"
_TAIL: Final = (s.STOP, s.DONE)
_LONG: Final = s.say("w" * 2_000_000)


def _crlf(*events: bytes) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in events]


SCRIPTS: Final = (
    Script(
        "lines that end with CR alone",
        _WHATWG,
        s.chunked(*(e.replace(b"\n", b"\r") for e in (s.HI, s.THERE, *_TAIL))),
        s.TEXT,
    ),
    Script("lines that end with CR LF", _WHATWG, s.chunked(*_crlf(s.HI, s.THERE, *_TAIL)), s.TEXT),
    Script("line ends of both kinds", _WHATWG, s.chunked(*_crlf(s.HI), s.THERE, *_crlf(s.STOP), s.DONE), s.TEXT),
    Script(
        "CR LF cut between CR and LF",
        _WHATWG,
        s.chunked(*(p for e in _crlf(s.HI, s.THERE, *_TAIL) for p in (e[:-1], e[-1:]))),
        s.TEXT,
    ),
    Script(
        "a byte order mark at the start",
        "openai/openai-python#3819: one leading BOM is to be dropped",
        s.chunked(b"\xef\xbb\xbf" + s.HI, s.THERE, *_TAIL),
        s.TEXT,
    ),
    Script(
        "a byte order mark cut in two",
        "vm0-ai/vm0#24687: the bytes of the BOM may come apart",
        s.chunked(b"\xef", b"\xbb\xbf" + s.HI, s.THERE, *_TAIL),
        s.TEXT,
    ),
    Script(
        "ids and retry times",
        _WHATWG,
        s.chunked(b"retry: 3000\n\n", b"id: 1\n" + s.HI, b"id: 2\nretry: 5\n" + s.THERE, *_TAIL),
        s.TEXT,
    ),
    Script(
        "data over several lines",
        _WHATWG,
        s.chunked(s.HI, b"data: {\ndata: " + s.dumped(s.spoken(" there"))[1:] + b"\n\n", *_TAIL),
        s.TEXT,
    ),
    Script(
        "empty events",
        "coddy-project/coddy-agent#106: empty `data:` frames",
        s.chunked(b"data:\n\n", b"data: \n\n", s.HI, b"\n\n\n", s.THERE, *_TAIL),
        s.TEXT,
        assembled=Ends.WHOLE,
    ),
    Script("a field without a colon", _WHATWG, s.chunked(b"data\n\n", b"hello\n\n", s.HI, s.THERE, *_TAIL), s.TEXT),
    Script(
        "[DONE] with blanks after it",
        "openai/openai-python, _streaming.py: whether data begin with [DONE] is what counts",
        s.chunked(s.HI, s.THERE, s.STOP, b"data: [DONE]  \n\n"),
        s.TEXT,
        assembled=Ends.WHOLE,
    ),
    Script("[DONE] without a blank before it", _WHATWG, s.chunked(s.HI, s.THERE, s.STOP, b"data:[DONE]\n\n"), s.TEXT),
    Script(
        "[DONE] twice", "proxies that add one of their own", s.chunked(s.HI, s.THERE, s.STOP, s.DONE, s.DONE), s.TEXT
    ),
    Script(
        "JSON after [DONE]",
        "anomalyco/opencode#43379: costs after the usage",
        s.chunked(s.HI, s.THERE, *_TAIL, s.data({"cost": 0.1})),
        s.TEXT,
    ),
    Script(
        "garbage after [DONE]",
        "whatever follows [DONE] does not matter",
        s.chunked(s.HI, s.THERE, *_TAIL, b"\x00\xff{{{"),
        s.TEXT,
    ),
    Script(
        "usage after [DONE]",
        "strands-agents/harness-sdk#3955: usage after the end was dropped",
        s.chunked(s.HI, s.THERE, *_TAIL, s.usage()),
        s.TEXT,
    ),
    Script("[DONE] and nothing else", "sgl-project and others: no token at all", s.chunked(s.DONE), ""),
    Script("a role, then [DONE]", "sgl-project and others: no token at all", s.chunked(s.ROLE, s.DONE), ""),
    Script(
        "a last event that ends with one line end",
        "how the last event is delimited does not matter",
        s.chunked(s.HI, s.say(" there", "stop")[:-1]),
        s.TEXT,
    ),
    Script(
        "a last event that has no line end",
        "how the last event is delimited does not matter",
        s.chunked(s.HI, s.say(" there", "stop")[:-2]),
        s.TEXT,
    ),
    Script(
        "names of events that are not UTF-8", _WHATWG, s.chunked(b"event: \xff\xfe\n" + s.HI, s.THERE, *_TAIL), s.TEXT
    ),
    Script(
        "an event named error that is a chunk", _WHATWG, s.chunked(s.HI, b"event: ping\n" + s.THERE, *_TAIL), s.TEXT
    ),
    Script("nothing but comments", _WHATWG, s.chunked(b": a\n\n", b": b\n\n"), "", ends=Ends.BROKEN),
    Script(
        "an empty stream",
        "earendil-works/pi#2537: a 200 of text/event-stream whose body is empty",
        s.chunked(),
        "",
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script("a comment of 100 KB", _WHATWG, s.chunked(b": " + b"x" * 100_000 + b"\n\n", s.HI, s.THERE, *_TAIL), s.TEXT),
    # ---- content types
    Script(
        "a content type with a charset",
        "LostRuins/koboldcpp#2481 and others: text/event-stream;charset=utf-8",
        s.chunked(s.HI, s.THERE, *_TAIL, content_type="text/event-stream;charset=utf-8"),
        s.TEXT,
    ),
    Script(
        "a content type in capitals",
        "RFC 9110, 8.3.1: types are not case-sensitive",
        s.chunked(s.HI, s.THERE, *_TAIL, content_type="Text/Event-Stream; Charset=UTF-8"),
        s.TEXT,
        assembled=Ends.EITHER,
    ),
    Script(
        "events without a content type",
        "pytorch/torchchat#955: streams without their type",
        s.chunked(s.HI, s.THERE, *_TAIL, content_type=None),
        None,
    ),
    Script(
        "events as text/plain",
        "pytorch/torchchat#955: a plain text stream",
        s.chunked(s.HI, s.THERE, *_TAIL, content_type="text/plain"),
        None,
    ),
    Script(
        "events as JSON",
        "proxies that keep the type of the request",
        s.chunked(s.HI, s.THERE, *_TAIL, content_type=s.JSON),
        None,
    ),
    Script(
        "JSON that is called a stream",
        "BaseIntelligence/bounty-challenge#18235: server and client disagree on stream",
        s.sized(s.completion(), content_type=s.SSE),
        None,
        ends=Ends.EITHER,
    ),
    Script(
        "a whole answer where a stream was asked for",
        "NVIDIA-NeMo/Speech#8401: the whole response at once",
        s.sized(s.completion()),
        None,
    ),
    # ---- sizes
    Script(
        "an event of 400 KB",
        "open-webui/open-webui#24928: a whole reasoning trace in one chunk",
        s.chunked(s.say("x" * 400_000), *_TAIL),
        "x" * 400_000,
    ),
    Script(
        "an event of 2 MB",
        "SamSaffron/term-llm#298: lines beyond 1 MB",
        s.chunked(s.say("y" * 2_000_000), *_TAIL),
        "y" * 2_000_000,
    ),
    Script(
        "a line of 10 MB",
        "SamSaffron/term-llm#347: a delta beyond 1 MB; images in one message",
        s.chunked(s.say("z" * 10_000_000), *_TAIL),
        "z" * 10_000_000,
    ),
    Script(
        "an event of 2 MB in 200 chunks",
        "SamSaffron/term-llm#298: lines beyond 1 MB",
        s.chunked(*(_LONG[at : at + 10_001] for at in range(0, 2_000_300, 10_001)), *_TAIL),
        "w" * 2_000_000,
    ),
    Script(
        "an event without an end, of 3 MB",
        "a line end that never comes",
        s.chunked(s.HI, b"data: " + b"q" * 3_000_000),
        None,
        ends=Ends.BROKEN,
        fault=None,
    ),
    Script(
        "nothing but tool arguments, of 300 KB",
        "ansible/ansible-ai-connect-service#2000: one tool call beyond 128 KB",
        s.chunked(
            s.say(
                tool_calls=[
                    {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "a" * 300_000}}
                ]
            ),
            s.say(finish="tool_calls"),
            s.DONE,
        ),
        "",
    ),
)
