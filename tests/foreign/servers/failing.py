"""Any server: answers that break off, answers that never arrive, and bytes that are not HTTP."""

from __future__ import annotations

from typing import Any, Final

from tests.foreign import script as s
from tests.foreign.script import Ends, Script, Then

_9112: Final = "RFC 9112"
_SAID: Final = (s.HI, s.THERE, s.STOP, s.DONE)
_BODY: Final = s.completion()


def _broken(
    name: str, source: str, data: bytes, text: str | None = s.TEXT, then: Then = Then.CLOSE, **fields: Any
) -> Script:
    """An answer that breaks off in the middle of its framing."""
    return Script(name, source, data, text, then=then, ends=Ends.BROKEN, **({"fault": True} | fields))


def _refused(name: str, source: str, data: bytes, status: int = 502, **fields: Any) -> Script:
    return Script(name, source, data, ends=Ends.REFUSED, status=status, **({"fault": None} | fields))


SCRIPTS: Final = (
    # ---- an answer that breaks off
    _broken(
        "closed in the middle of a chunk",
        _9112 + ", 8: incomplete messages",
        s.chunked(s.HI, s.THERE, last=b"ff\r\ndata: {"),
    ),
    _broken(
        "closed within the size of a chunk", _9112 + ", 8: incomplete messages", s.chunked(s.HI, s.THERE, last=b"f")
    ),
    _broken(
        "reset in the middle of a stream",
        _9112 + ", 8: incomplete messages",
        s.chunked(s.HI, s.THERE, last=b""),
        then=Then.RESET,
    ),
    _broken("closed after the head", _9112 + ", 8: incomplete messages", s.chunked(last=b""), ""),
    _broken(
        "a whole answer that is too short for its length",
        _9112 + ", 8: incomplete messages",
        s.sized(_BODY)[:-9],
        "",
        stream=False,
    ),
    _broken(
        "chunked JSON that breaks off",
        _9112 + ", 8: incomplete messages",
        s.chunked(_BODY[:-9], content_type=s.JSON, last=b""),
        "",
        stream=False,
    ),
    _broken(
        "a stream that is too short for its length",
        _9112 + ", 8: incomplete messages",
        s.sized(s.HI + s.THERE + s.STOP, content_type=s.SSE)[:-30],
    ),
    _broken(
        "a chunk size that is no number",
        _9112 + ", 7.1",
        s.chunked(s.HI, last=b"zz\r\n"),
        "Hi",
        then=Then.KEEP,
        fault=None,
    ),
    _broken(
        "a chunk that is longer than its size",
        _9112 + ", 7.1",
        s.chunked(s.HI, last=b"3\r\nabcdef\r\n0\r\n\r\n"),
        None,
        then=Then.KEEP,
        fault=None,
    ),
    _broken(
        "a chunk size of 20 digits",
        _9112 + ", 7.1: no bound is given",
        s.chunked(s.HI, last=b"f" * 20 + b"\r\n"),
        "Hi",
        then=Then.KEEP,
        fault=None,
    ),
    _broken(
        "silent after the first token",
        "engines that hang",
        s.chunked(s.ROLE, s.HI, last=b""),
        "Hi",
        then=Then.SILENCE,
        fault=None,
    ),
    _broken(
        "a whole answer without an end, to a connection that is reset",
        _9112 + ", 6.3",
        s.unframed(_BODY[:-9], content_type=s.JSON),
        "",
        then=Then.RESET,
        stream=False,
    ),
    _refused(
        "a whole answer that stalls before its length",
        "engines that hang; proxies that lose their backend",
        s.sized(_BODY)[:-9],
        504,
        then=Then.SILENCE,
        stream=False,
        within_s=31.0,
    ),
    _refused(
        "a whole answer in chunks that stalls",
        "engines that hang; proxies that lose their backend",
        s.chunked(_BODY[:-9], content_type=s.JSON, last=b""),
        504,
        then=Then.SILENCE,
        stream=False,
        within_s=31.0,
    ),
    # ---- no answer
    _refused("closed before a byte", "engines that are killed", b"", then=Then.CLOSE, fault=True, elsewhere=True),
    _refused("reset before a byte", "engines that are killed", b"", then=Then.RESET, fault=True, elsewhere=True),
    _refused("closed within the head", "engines that are killed", b"HTTP/1.1 200 O", then=Then.CLOSE, fault=True),
    _refused("silent from the start", "engines that hang", b"", 504, then=Then.SILENCE),
    _refused("silent within the head", "engines that hang", b"HTTP/1.1 200 OK\r\ncontent-ty", 504, then=Then.SILENCE),
    _refused("silent after the head", "engines that hang", s.chunked(last=b""), 504, then=Then.SILENCE),
    _refused(
        "pings and nothing else",
        "pings are no progress",
        s.chunked(*[b": ping\n\n"] * 50, last=b""),
        504,
        then=Then.SILENCE,
    ),
    # ---- bytes that are not HTTP, or too many of them
    _refused("a greeting of SSH", "a wrong port", b"SSH-2.0-OpenSSH_9.6\r\n"),
    _refused("an alert of TLS", "https where http was said", b"\x15\x03\x01\x00\x02\x02F"),
    _refused("zeros", "a wrong port", b"\x00" * 100),
    _refused("HTTP/2", "RFC 9113: a preface", b"HTTP/2 200\r\ncontent-type: text/event-stream\r\n\r\n"),
    _refused("a status that is no number", _9112 + ", 4", b"HTTP/1.1 OK 200\r\n\r\n"),
    _refused(
        "a header line of 64 KiB", "bounded: 32 KiB", s.chunked(*_SAID, lines=("x-long: " + "a" * 65_536,)), fault=False
    ),
    _refused(
        "20,000 header lines",
        "bounded: 256 fields",
        s.chunked(*_SAID, lines=tuple(f"x-{n}: 1" for n in range(20_000))),
        fault=False,
    ),
    _refused(
        "300 header lines",
        "bounded: 256 fields",
        s.chunked(*_SAID, lines=tuple(f"x-{n}: 1" for n in range(300))),
        fault=False,
    ),
    _refused(
        "a header line of 40 KiB",
        "bounded: 32 KiB",
        s.sized(_BODY, "x-long: " + "a" * 40_960),
        stream=False,
        fault=False,
    ),
    _refused(
        "another protocol: 101",
        "RFC 9110, 15.2.2",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ),
    _refused(
        "two lengths that differ",
        _9112 + ", 6.3",
        s.head(s.JSON, "content-length: 5", "content-length: 6") + b"12345",
        stream=False,
    ),
    _refused("a length below zero", _9112 + ", 6.3", s.head(s.JSON, "content-length: -5") + b"12345", stream=False),
    _refused(
        "a transfer coding that nobody knows",
        _9112 + ", 6.1",
        s.head(s.JSON, "transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
        stream=False,
    ),
    _refused(
        "a header line that is folded",
        _9112 + ", 5.2",
        s.head(s.JSON, "x-a: 1", " 2", "content-length: 2") + b"{}",
        stream=False,
    ),
    _refused(
        "a header line without a colon",
        _9112 + ", 5",
        s.head(s.JSON, "hello", "content-length: 2") + b"{}",
        stream=False,
    ),
    _refused(
        "a NUL in the head", _9112 + ", 5.5", s.head(s.JSON, "x-a: \x00", "content-length: 2") + b"{}", stream=False
    ),
)
