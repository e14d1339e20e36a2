"""The key by which requests of one conversation stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.core.policy import ANONYMOUS, PoolSpec, SessionKey, SessionKeys
from gateway.core.sessions import Session, key_of
from gateway.wire.http.headers import RequestHead

_HEADER: Final = SessionKey.HEADER
_PROMPT_CACHE_KEY: Final = SessionKey.PROMPT_CACHE_KEY
_METADATA: Final = SessionKey.METADATA
_FIRST_MESSAGE: Final = SessionKey.FIRST_MESSAGE
MAX_NAME: Final = 512
"""Longest name in characters; a longer one names no session."""
IN_USER_ID: Final = "_session_"
"""Claude Code wrote `user_<hash>_account_<id>_session_<id>`; since March 2026 it writes JSON with a `session_id`
(github.com/coder/aibridge/pull/241)."""


def session_of(head: RequestHead, tenant: str, fields: Mapping[str, Any], pools: Sequence[PoolSpec]) -> Session | None:
    """The session of a request, by its first key, in the order of its pools and of their keys."""
    before: SessionKeys | None = None
    for pool in pools:
        keys = pool.sessions
        # Not `keys == before`: a dataclass's comparison is not compiled.
        if before is not None and keys.header == before.header and keys.keys == before.keys:
            continue
        before = keys
        for key in keys.keys:
            name = _named(key, keys.header, head, fields)
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
                digest = key_of(f"{tenant}\0{name}")
                return Session(f"{digest:016x}", digest)
    return None


def _named(key: SessionKey, header: str, head: RequestHead, fields: Mapping[str, Any]) -> object:
    """The value of this part of a request, whatever its type."""
    if key is _HEADER:
        given = head.fields.get(header.encode())
        return None if given is None else given.decode("latin-1")
    if key is _PROMPT_CACHE_KEY:
        return fields.get("prompt_cache_key")
    if key is _METADATA:
        user_id = _user_id(fields)
        return _in_user_id(user_id) if user_id else None
    if key is _FIRST_MESSAGE:
        return _first_message(fields)
    return fields.get("user") or _user_id(fields)


def _first_message(fields: Mapping[str, Any]) -> str | None:
    """A digest of the prompt up to its first user message; None without one, as in completions."""
    messages = fields.get("messages") or fields.get("input")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]  # the form in later turns of Responses
    if not isinstance(messages, list):
        return None
    for number, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            said = [_said(each) for each in messages[: number + 1]]
            parts = [_parts(fields.get("system")), fields.get("instructions"), said]
            return blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
    return None


def _said(message: Any) -> Any:
    """The role and the content of a message: other fields may differ from turn to turn."""
    return [message.get("role"), _parts(message.get("content"))] if isinstance(message, dict) else message


def _parts(content: Any) -> Any:
    """The parts of a content, each text as such: clients move `cache_control` from one turn to the next."""
    if not isinstance(content, list):
        return [content] if isinstance(content, str) else content
    parts: list[Any] = []
    for part in content:
        if not isinstance(part, dict):
            parts.append(part)
        elif isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            parts.append({name: value for name, value in part.items() if name != "cache_control"})
    return parts


def _user_id(fields: Mapping[str, Any]) -> str:
    metadata = fields.get("metadata")
    found = metadata.get("user_id") if type(metadata) is dict else None
    return found if isinstance(found, str) and len(found) <= MAX_NAME else ""


def _in_user_id(user_id: str) -> object:
    if not user_id.startswith("{"):
        return user_id.partition(IN_USER_ID)[2]
    try:
        parts = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    return parts.get("session_id")  # JSON that begins with a brace is an object


def sticky_key(session: Session | None, tenant: str, request_id: str) -> str:
    """The key of a request in a split: its session, else its tenant; without keys its own id."""
    if session is not None:
        return f"session\0{session.name}"
    return f"tenant\0{tenant}" if tenant != ANONYMOUS else f"request\0{request_id}"
