"""Finds the session of a request. Requests of one conversation have the same session, and are sent to the same replica
if possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.core.policy import ANONYMOUS
from gateway.core.pool_spec import PoolSpec, SessionKey, SessionKeys
from gateway.core.sessions import Session, key_of
from gateway.wire.http.headers import RequestHead

_HEADER: Final = SessionKey.HEADER
_PROMPT_CACHE_KEY: Final = SessionKey.PROMPT_CACHE_KEY
_METADATA: Final = SessionKey.METADATA
_FIRST_MESSAGE: Final = SessionKey.FIRST_MESSAGE
MAX_NAME: Final = 512
"""Longest name of a session, in characters. A longer name is ignored."""
LONG_TEXT: Final = 64 * 1024
"""A longer text, in characters, counts in a first message by its beginning and its length."""
IN_USER_ID: Final = "_session_"
"""Comes before the session in a user id of older versions of Claude Code: `user_<hash>_account_<id>_session_<id>`.
Since March 2026, Claude Code writes JSON with a `session_id` (github.com/coder/aibridge/pull/241).
"""


def session_of(head: RequestHead, tenant: str, fields: dict[str, Any], pools: Sequence[PoolSpec]) -> Session | None:
    """The session of a request; None if it names none. Pools and their keys are tried in order."""
    before: SessionKeys | None = None
    for pool in pools:
        keys = pool.sessions
        # The fields are compared one by one, because `==` of dataclasses is not compiled.
        if before is not None and keys.header == before.header and keys.keys == before.keys:
            continue
        before = keys
        for key in keys.keys:
            name = _named(key, keys.header, head, fields)
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME:
                digest = key_of(f"{tenant}\0{name}")
                return Session(f"{digest:016x}", digest)
    return None


def _named(key: SessionKey, header: str, head: RequestHead, fields: dict[str, Any]) -> object:
    """The value of one part of a request, of any type."""
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


def _first_message(fields: dict[str, Any]) -> str | None:
    """Digest of the prompt up to its first user message; None if there is none, as in completions."""
    messages = fields.get("messages") or fields.get("input")
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]  # its form in later turns of the Responses API
    if not isinstance(messages, list):
        return None
    for number, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            said = [_said(each) for each in messages[: number + 1]]
            parts = [_parts(fields.get("system")), _parts(fields.get("instructions")), said]
            return blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
    return None


def _said(message: Any) -> Any:
    """Role and content of a message. Other fields are left out, because they may change from turn to turn."""
    return [message.get("role"), _parts(message.get("content"))] if isinstance(message, dict) else message


def _parts(content: Any) -> Any:
    """The parts of a content, with text parts reduced to their text: clients move `cache_control` from turn to turn."""
    if not isinstance(content, list):
        return [_begin(content)] if isinstance(content, str) else content
    parts: list[Any] = []
    for part in content:
        if not isinstance(part, dict):
            parts.append(part)
        elif isinstance(part.get("text"), str):
            parts.append(_begin(part["text"]))
        else:
            parts.append({name: value for name, value in part.items() if name != "cache_control"})
    return parts


def _begin(text: str) -> Any:
    """The text; of a very long one, its beginning and its length. To write 16 MiB takes 70 ms."""
    return text if len(text) <= LONG_TEXT else [text[:LONG_TEXT], len(text)]


def _user_id(fields: dict[str, Any]) -> str:
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
    return parts.get("session_id")  # `parts` is an object, because the JSON begins with a brace


def sticky_key(session: Session | None, tenant: str, request_id: str) -> str:
    """The key by which a split chooses an arm. It is the session if the request names one. Otherwise it is the tenant,
    or the request id if the policy has no keys.
    """
    if session is not None:
        return f"session\0{session.name}"
    return f"tenant\0{tenant}" if tenant != ANONYMOUS else f"request\0{request_id}"
