"""Where a session is at home: by a hash of its key and the names of the replicas, so that all gateways agree.

Rendezvous hashing (Thaler and Ravishankar, 1998): each replica draws a number from the key, and the largest wins. When
a replica goes, only its own sessions move. Loads are bounded (Mirrokni, Thorup and Zadimoghaddam, 2018): a replica with
more than (1 + e) times the mean number of requests is passed over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

LOAD_SPREAD: Final = 0.25
"""The e of bounded loads."""
MIN_BOUND: Final = 8
"""A replica with fewer requests is never passed over: on an idle fleet the mean says little."""
_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that belong together, such as the turns of a conversation."""

    name: str
    """For errors and journals: the gateway gives a digest, never the client's own text."""
    key: int  # 64 bits of a hash of its tenant and name, the same in every gateway


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response that a request continues. It is in the memory of one engine, with the conversation before it."""

    replica: str
    """The replica that made it."""
    tokens: int
    """Its prompt and its answer, as the engine counted them: at most so many are in front of the new prompt."""


def key_of(text: str) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draw(session_key: int, replica_key: int) -> int:
    """The number (64 bits) that a replica draws from a session: the finalizer of MurmurHash3."""
    mixed = session_key ^ replica_key
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return mixed ^ (mixed >> 33)


def most_in_flight(in_flight: int, replicas: int) -> int:
    """Requests that one of `replicas` (>= 1) may have when one more joins `in_flight`."""
    return max(MIN_BOUND, math.ceil((1.0 + LOAD_SPREAD) * (in_flight + 1) / replicas))
