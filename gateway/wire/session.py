"""The key by which requests of one conversation stay together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.policy import ANONYMOUS
from gateway.core.request import Session
from gateway.core.sessions import key_of
from gateway.wire.http.headers import RequestHead

SESSION: Final = b"x-session-id"


MAX_NAME: Final = 512
"""Bytes of a name; longer ones name no session."""


def session_of(head: RequestHead, tenant: str, fields: Mapping[str, Any], by_user: bool) -> Session | None:
    """The session of a request: by header, else by `prompt_cache_key`, else (if `by_user`) by `user`."""
    header = head.fields.get(SESSION)
    name = header.decode("latin-1") if header else fields.get("prompt_cache_key") or (by_user and fields.get("user"))
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        return None
    return Session(name, key_of(f"{tenant}\0{name}"))


def sticky_key(head: RequestHead, tenant: str, header: bytes = SESSION) -> str:
    """The session that `header` names, of this tenant; else the tenant. Without keys each request is on its own."""
    session = head.fields.get(header)
    if session:
        return f"session\0{tenant}\0{session.decode('latin-1')}"
    return f"tenant\0{tenant}" if tenant != ANONYMOUS else f"request\0{head.request_id}"
