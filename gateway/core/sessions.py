"""Finds the home replica of a session from a hash of its key and the names of the replicas. So all gateways find the
same home.

This is rendezvous hashing (Thaler and Ravishankar, 1998): each replica gets a number from a hash with the key, and the
largest number wins. When a replica is removed, only its own sessions move. Loads are bounded (Mirrokni, Thorup and
Zadimoghaddam, 2018): a replica with more than (1 + e) times the mean number of requests is skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

LOAD_SPREAD: Final = 0.25
"""The e in the bound on loads."""
MIN_BOUND: Final = 8
"""A replica with fewer requests than this is never skipped, because the mean of an idle fleet tells little."""
_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that belong together, such as the turns of a conversation."""

    name: str
    """Name of the session in errors and journals. It is a digest, never the client's own text."""
    key: int  # 64-bit hash of tenant and name, the same in every gateway


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that a request continues. It is stored in one engine, with the conversation before it."""

    replica: str
    """Name of the replica that stores it."""
    tokens: int
    """Tokens of its prompt and its answer, by the engine's count. At most this many tokens precede the new prompt."""


def key_of(text: str) -> int:
    """64-bit hash of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draw(session_key: int, replica_key: int) -> int:
    """64-bit number of a replica for a session: the finalizer of MurmurHash3 over the two keys."""
    mixed = session_key ^ replica_key
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return mixed ^ (mixed >> 33)


def most_in_flight(in_flight: int, replicas: int) -> int:
    """Largest number of requests that one replica may have, if one more is added to the `in_flight` requests of all.
    `replicas` >= 1.
    """
    return max(MIN_BOUND, math.ceil((1.0 + LOAD_SPREAD) * (in_flight + 1) / replicas))
