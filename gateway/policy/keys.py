"""Keys of clients: made from the system's own randomness, known to the gateway by their hash alone."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "tg-"


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> bytes:
    """The part of a key that the policy holds. Plain SHA-256 is enough for 256 random bits: there is nothing to
    guess."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
