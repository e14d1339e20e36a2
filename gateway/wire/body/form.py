"""Reads bodies of multipart/form-data (RFC 7578) part by part, and writes them anew with the gateway's own boundary.

The first line of the body is the client's delimiter, whatever the head says. The client's framing is not forwarded, so
gateway and engine cannot read it differently. From a part's head, only name, file name and type are read and written
again.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.wire.body.checks import BadRequest

BOUNDARY: Final = secrets.token_hex(20).encode()
"""Boundary of the forms that this process writes. It is random, so that no client can put it into a file."""
CONTENT_TYPE: Final = "multipart/form-data; boundary=" + BOUNDARY.decode()

MAX_PARTS: Final = 64
MAX_PART_HEAD_BYTES: Final = 4096
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_DELIMITER_BYTES: Final = 72
"""Longest delimiter: two dashes and 70 characters (RFC 2046, 5.1.1)."""

_DELIMITER: Final = re.compile(rb"--[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAMETER: Final = re.compile(rb';[ \t]*([A-Za-z*-]+)[ \t]*=[ \t]*(?:"((?:[^"\\\r\n]|\\.)*)"|([^;"\s]*))[ \t]*')
_TYPE: Final = re.compile(rb"[A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+-]{1,64}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?")
_FLAGS: Final = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


class File:
    """A part that is a file. `content`: a view of the body that contains it."""

    __slots__ = ("content", "name", "type")

    def __init__(self, name: str, type: str, content: memoryview) -> None:
        self.name = name
        self.type = type
        self.content = content

    def digest(self) -> str:
        """A hash of the file's content."""
        return blake2b(self.content, digest_size=16).hexdigest()


def read(body: bytes, flags: tuple[str, ...], numbers: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a form. Values are text; those of `flags` and `numbers` are converted. Raises `BadRequest`.

    If a name occurs twice, the last field counts. Fields whose names end in [] make a list.
    """
    found: dict[str, Any] = {}
    for name, value in _parts(body):
        if isinstance(value, File):
            found[name] = value
        elif name in flags:
            found[name] = _FLAGS.get(value, value)
        elif name in numbers and _NUMBER.fullmatch(value):
            found[name] = orjson.loads(value)
        elif name.endswith("[]"):
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found


def write(fields: dict[str, Any]) -> bytes:
    """The fields as parts, with files last, and the end of the form."""
    out: list[bytes | memoryview] = []
    for name, value in sorted(fields.items(), key=_is_file):
        if isinstance(value, File):
            out.append(_head(f'{name}"; filename="{value.name}', value.type))
            out += (value.content, b"\r\n")
        else:
            for one in value if isinstance(value, list) else (value,):
                out.append(field(name, one if isinstance(one, str) else orjson.dumps(one).decode()))
    out.append(b"--%b--\r\n" % BOUNDARY)
    return b"".join(out)


def field(name: str, value: str) -> bytes:
    """A part that is not a file. `name` must be one of the gateway's own names."""
    return _head(name, None) + value.encode() + b"\r\n"


def _is_file(item: tuple[str, Any]) -> bool:
    return isinstance(item[1], File)


def _head(name: str, type: str | None) -> bytes:
    more = "" if type is None else f"content-type: {type}\r\n"
    lines = f'content-disposition: form-data; name="{name}"\r\n{more}\r\n'
    return b"--%b\r\n%b" % (BOUNDARY, lines.encode())


# ---- reading


def _parts(body: bytes) -> list[tuple[str, str | File]]:
    if body.find(BOUNDARY) >= 0:
        raise BadRequest(None, "the body holds the gateway's own boundary between parts: change that text", None)
    begin = 2 if body[:2] == b"\r\n" else 0
    end = body.find(b"\r\n", begin, begin + MAX_DELIMITER_BYTES + 16)
    delimiter = body[begin:end].rstrip(b" \t") if end >= 0 else b""
    if not _DELIMITER.fullmatch(delimiter):
        raise BadRequest(None, "the body must be multipart/form-data: its first line is no delimiter", None)
    view = memoryview(body)
    found: list[tuple[str, str | File]] = []
    at = end + 2
    while True:
        if len(found) == MAX_PARTS:
            raise BadRequest(None, f"the form has more than {MAX_PARTS} parts", None)
        head_end = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD_BYTES)
        if head_end < 0:
            raise BadRequest(None, f"the head of part {len(found) + 1} of the form does not end", None)
        stop = body.find(b"\r\n" + delimiter, head_end + 2)
        if stop < 0:
            raise BadRequest(None, f"part {len(found) + 1} of the form does not end", None)
        found.append(_part(body[at:head_end], view[min(head_end + 4, stop) : stop], len(found) + 1))
        at = stop + 2 + len(delimiter)
        if body[at : at + 2] == b"--":
            return found
        line_end = body.find(b"\r\n", at, at + 16)
        if line_end < 0 or body[at:line_end].strip(b" \t"):
            raise BadRequest(None, f"part {len(found)} of the form holds its own delimiter", None)
        at = line_end + 2


def _part(head: bytes, content: memoryview, number: int) -> tuple[str, str | File]:
    disposition, kind = b"", b""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-disposition":
                disposition = value.strip()
            case b"content-type":
                kind = value.strip()
            case b"content-transfer-encoding" if value.strip().lower() not in (b"7bit", b"8bit", b"binary"):
                raise BadRequest(None, f"part {number} of the form has a transfer encoding: send it as it is", None)
    parameters = _parameters(disposition)
    name = parameters.get(b"name", b"")
    if not name or not name.isascii():
        raise BadRequest(None, f"part {number} of the form has no name", None)
    field = name.decode()
    if field == "file" or b"filename" in parameters or b"filename*" in parameters:
        return field, File(_fit(parameters.get(b"filename", b"")), _type(kind), content)
    if len(content) > MAX_VALUE_BYTES:
        raise BadRequest(field[:64], f"must be at most {MAX_VALUE_BYTES} bytes long")
    try:
        return field, str(content, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest(field[:64], "must be text in UTF-8") from None


def _parameters(disposition: bytes) -> dict[bytes, bytes]:
    """The parameters of a line such as `form-data; name="file"; filename="a.wav"`; empty if it cannot be parsed
    completely.
    """
    found: dict[bytes, bytes] = {}
    at = len(b"form-data")
    if disposition[:at].lower() != b"form-data":
        return {}
    while at < len(disposition):
        match = _PARAMETER.match(disposition, at)
        if match is None:
            return {}
        name, quoted, plain = match.groups()
        found.setdefault(name.lower(), plain if quoted is None else quoted)
        at = match.end()
    return found


def _fit(name: bytes) -> str:
    """A harmless file name: plain characters without a path. The suffix is kept, because engines read it."""
    plain = _UNFIT.sub("_", re.split(r"[/\\]", name.decode("utf-8", "replace"))[-1]).lstrip(".")
    return plain[-64:] or "audio"


def _type(kind: bytes) -> str:
    return kind.decode() if _TYPE.fullmatch(kind) else "application/octet-stream"
