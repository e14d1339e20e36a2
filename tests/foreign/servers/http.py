"""Any server: correct but unusual HTTP, and unexpected whole answers."""

from __future__ import annotations

from typing import Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_9112: Final = "RFC 9112"
_SAID: Final = (s.HI, s.THERE, s.STOP, s.DONE)
_BODY: Final = s.completion()

SCRIPTS: Final = (
    Script(
        "chunk extensions",
        _9112 + ", 7.1.1",
        s.head(s.SSE, s.CHUNKED) + b"".join(s.chunk(e, extension=";a=b;c") for e in _SAID) + b"0;x=1\r\n\r\n",
        s.TEXT,
    ),
    Script(
        "chunk sizes in capitals, with zeros in front",
        _9112 + ", 7.1",
        s.head(s.SSE, s.CHUNKED) + b"".join(s.chunk(e, "%06X") for e in _SAID) + b"000\r\n\r\n",
        s.TEXT,
    ),
    Script("trailers", _9112 + ", 7.1.2", s.chunked(*_SAID, last=b"0\r\nx-took: 1\r\ngrpc-status: 0\r\n\r\n"), s.TEXT),
    Script("a stream with a length", "proxies that buffer", s.sized(b"".join(_SAID), content_type=s.SSE), s.TEXT),
    Script(
        "one chunk for each byte",
        "flushing after every write",
        s.chunked(*(bytes([b]) for b in b"".join(_SAID))),
        s.TEXT,
    ),
    Script(
        "header lines in capitals, with blanks",
        _9112 + ", 5: names are not case-sensitive",
        b"HTTP/1.1 200 OK\r\nCONTENT-TYPE:text/event-stream  \r\nTransfer-Encoding:\t chunked \r\n\r\n"
        + s.chunked(*_SAID).partition(b"\r\n\r\n")[2],
        s.TEXT,
    ),
    Script(
        "an interim answer first",
        "RFC 9110, 15.2: any number of 1xx",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + s.chunked(*_SAID),
        s.TEXT,
    ),
    Script(
        "a storm of 500 interim answers",
        "RFC 9110, 15.2: any number of 1xx",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 500 + s.chunked(*_SAID),
        s.TEXT,
    ),
    Script(
        "a reason phrase of many words",
        _9112 + ", 4",
        s.head(s.SSE, s.CHUNKED, status="200 All is well, thank you").decode("latin-1").encode()
        + s.chunked(*_SAID).partition(b"\r\n\r\n")[2],
        s.TEXT,
    ),
    Script(
        "100 header lines",
        "proxies that add their own",
        s.chunked(*_SAID, lines=tuple(f"x-{n}: {n}" for n in range(100))),
        s.TEXT,
    ),
    Script(
        "a close that is announced",
        _9112 + ", 9.6",
        s.chunked(*_SAID, lines=("connection: close",)),
        s.TEXT,
        then=Then.CLOSE,
    ),
    Script("a close that is not announced", "uvicorn, timeout_keep_alive", s.chunked(*_SAID), s.TEXT, then=Then.CLOSE),
    Script("a reset after the last byte", "engines behind load balancers", s.chunked(*_SAID), s.TEXT, then=Then.RESET),
    Script(
        "bytes after the last chunk",
        _9112 + ", 11.2: response splitting",
        s.chunked(*_SAID) + b"HTTP/1.1 200 OK\r\n\r\n",
        s.TEXT,
    ),
    Script(
        "garbage after a length",
        _9112 + ", 11.2: response splitting",
        s.sized(_BODY) + b"\x00garbage",
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script("to the end of the connection", _9112 + ", 6.3", s.unframed(*_SAID), s.TEXT, then=Then.CLOSE),
    Script(
        "a length that is written twice",
        "RFC 9110, 8.6: a server and a proxy each write it",
        s.sized(_BODY, f"content-length: {len(_BODY)}"),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    # ---- whole answers
    Script(
        "chunked JSON",
        _9112 + ", 7.1",
        s.chunked(_BODY[:50], _BODY[50:], content_type=s.JSON),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script("an empty 200", "a proxy without a backend", s.sized(b""), None, stream=False),
    Script(
        "204", "RFC 9110, 15.3.5", b"HTTP/1.1 204 No Content\r\n\r\n", None, stream=False, ends=Ends.EITHER, fault=None
    ),
    Script(
        "JSON that is an array", "no server known; a type that nobody expects", s.sized(b"[1,2]"), None, stream=False
    ),
    Script(
        "JSON that is broken",
        "no server known; JSON cut off inside a whole answer",
        s.sized(_BODY[:-20]),
        None,
        stream=False,
    ),
    Script("JSON with a BOM", "Windows servers write a BOM", s.sized(b"\xef\xbb\xbf" + _BODY), None, stream=False),
    Script(
        "JSON that is not UTF-8",
        "text in Latin-1",
        s.sized(s.completion("Gr\xfc\xdfe").decode().encode("latin-1")),
        None,
        stream=False,
    ),
    Script(
        "usage beyond 64 bits",
        "RFC 8259, 6: numbers have no bound",
        s.sized(_BODY.replace(b'"completion_tokens":2', b'"completion_tokens":' + b"9" * 400)),
        s.TEXT,
        stream=False,
    ),
    Script(
        "usage 1e300",
        "RFC 8259, 6: numbers have no bound",
        s.sized(_BODY.replace(b'"prompt_tokens":5', b'"prompt_tokens":1e300')),
        s.TEXT,
        stream=False,
    ),
    Script(
        "usage as whole numbers with a point",
        "RFC 8259, 6",
        s.sized(
            _BODY.replace(b'"prompt_tokens":5,"completion_tokens":2', b'"prompt_tokens":5.0,"completion_tokens":2.0')
        ),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script("usage null", "engines that do not count", s.sized(s.completion(usage=None)), s.TEXT, stream=False),
    Script("choices null", "fields may be null", s.sized(s.completion(choices=None)), "", stream=False),
    Script(
        "finish_reason as a number",
        "no server known; a type that nobody expects",
        s.sized(s.completion(s.TEXT, 0)),
        s.TEXT,
        stream=False,
        usage=(5, 2),
    ),
    Script(
        "deep nesting",
        "RFC 8259, 9: depth has no bound",
        s.sized(_BODY[:-1] + b',"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        None,
        stream=False,
    ),
    Script(
        "3 MB of one answer",
        "answers that are too long to be held",
        s.sized(s.completion("x" * 3_000_000)),
        "x" * 3_000_000,
        stream=False,
    ),
    Script(
        "an answer of 201",
        "servers that call it created",
        s.sized(_BODY, status="201 Created"),
        None,
        stream=False,
        ends=Ends.EITHER,
        fault=None,
    ),
)
