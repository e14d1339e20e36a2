"""The key by which requests of one conversation stay together."""

from __future__ import annotations

from typing import Final

from gateway.core.policy import ANONYMOUS
from gateway.wire.http.headers import RequestHead

SESSION: Final = b"x-session-id"


def sticky_key(head: RequestHead, tenant: str, header: bytes = SESSION) -> str:
    """The session that `header` names, of this tenant; else the tenant. Without keys each request is on its own."""
    session = head.fields.get(header)
    if session:
        return f"session\0{tenant}\0{session.decode('latin-1')}"
    return f"tenant\0{tenant}" if tenant != ANONYMOUS else f"request\0{head.request_id}"
