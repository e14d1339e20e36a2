"""Reads request targets: known paths, and the likely meaning of unknown paths.

Only listed paths are served, and a replica gets the path as listed. Some other spellings clearly mean a listed path and
are accepted: a whole URL with the host, and doubled or final slashes. Escapes, dots and semicolons are not resolved,
because servers interpret them differently.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.core.request import Endpoint
from gateway.wire.apis import messages
from gateway.wire.apis.table import API_OF, APIS
from gateway.wire.errors.replies import OPENAI, Dialect

POSTS: Final[dict[bytes, Endpoint]] = {
    **{endpoint.value.encode(): endpoint for endpoint in API_OF},
    **{api.counting: api.endpoints[0] for api in APIS if api.counting is not None},
}
COUNTING: Final = frozenset(api.counting for api in APIS if api.counting is not None)
"""Paths that only count tokens."""
MODELS: Final = b"/v1/models"
HEALTH: Final = b"/health"
READY: Final = b"/ready"
GETS: Final = (MODELS, HEALTH, READY)
MAX_SHOWN: Final = 100

_UNSERVED: Final = tuple(item for api in APIS for item in api.unserved.items())
_DIALECTS: Final = {path: API_OF[endpoint].dialect for path, endpoint in POSTS.items()}
_ABSOLUTE: Final = re.compile(rb"https?://([^/@?#]+)(.*)", re.IGNORECASE | re.DOTALL)
_SLASHES: Final = re.compile(rb"/{2,}")
_V1: Final = b"/v1"
# Longer paths come first, because /v1/chat/completions has the same end as /v1/completions.
_BY_LENGTH: Final = sorted((path for path in (*POSTS, MODELS) if path.startswith(_V1)), key=len, reverse=True)


def read_target(path: bytes) -> tuple[bytes, bytes | None]:
    """(cleaned path without query, authority or None) of a request target (RFC 9112, 3.2.2)."""
    authority = None
    if path[:1] != b"/":
        found = _ABSOLUTE.fullmatch(path)
        if found is None:
            return path, None
        authority, path = found[1], found[2]
    plain = _plain(path)
    return (plain if plain in POSTS or plain in GETS else path), authority


def _plain(path: bytes) -> bytes:
    return _SLASHES.sub(b"/", path).rstrip(b"/")


def nothing_at(path: bytes) -> str:
    """The error text for a path that is not listed. It names the path that was probably meant, because wrong base URLs
    are common.
    """
    for beginning, words in _UNSERVED:
        if path.startswith(beginning):
            return words
    plain = _plain(path)
    shown = path[:MAX_SHOWN].decode("latin-1") or "/"
    for known in _BY_LENGTH:
        if plain.endswith(known[len(_V1) :]):
            meant = known.decode()
            return (
                f"There is nothing at {shown}; {meant} was probably meant. Check the base URL of the client: "
                "for OpenAI's clients it ends with /v1, for Anthropic's it has no path."
            )
    return f"There is nothing at {shown}."


def dialect_of(path: bytes, has_anthropic_headers: bool) -> Dialect:
    """The error format for a path. A known path has the format of its API. For other paths, it is Anthropic's if the
    client sends Anthropic's headers, else OpenAI's.
    """
    known = _DIALECTS.get(path)
    if known is not None:
        return known
    return messages.ANTHROPIC if has_anthropic_headers or path.startswith(messages.PATH) else OPENAI
