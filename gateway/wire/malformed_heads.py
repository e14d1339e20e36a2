"""Refuses malformed heads that httptools accepts but no honest client sends."""

from __future__ import annotations

from gateway.core.results import Reason
from gateway.wire.errors.replies import Problem
from gateway.wire.http.decoding import ACCEPT_ENCODING, read_coding
from gateway.wire.http.headers import RequestHead


def malformed(version: str, head: RequestHead) -> Problem | None:
    """The fault of a request's head; None if it has none. `version`: its HTTP version, such as `1.1`."""
    if version not in ("1.1", "1.0"):
        return Problem(Reason.BAD_REQUEST, "This server speaks HTTP/1.1 and HTTP/1.0.")
    if head.repeated is not None:
        return Problem(Reason.BAD_REQUEST, f"The header {head.repeated.decode('latin-1')!r} is given twice.")
    if b"host" not in head.fields and version == "1.1":
        return Problem(Reason.BAD_REQUEST, "The Host header is missing.")
    return _unusual(head.fields) if head.unusual else None


def _unusual(fields: dict[bytes, bytes]) -> Problem | None:
    if fields.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        return Problem(Reason.BAD_REQUEST, "The only transfer encoding that is understood is 'chunked'.")
    if read_coding(fields.get(b"content-encoding", b"identity")) is None:
        taken = ACCEPT_ENCODING.decode()
        return Problem(
            Reason.UNSUPPORTED_ENCODING, f"This Content-Encoding is not understood: send one of {taken}, or none."
        )
    if fields.get(b"expect", b"100-continue").lower() != b"100-continue":
        return Problem(Reason.EXPECTATION_FAILED)
    return None
