"""Makes keys of clients from the system's random source. The gateway knows only their hashes."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "tg-"


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> bytes:
    """The hash of a key, which is written into the policy.

    Plain SHA-256 is enough, because nobody can guess 256 random bits.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
