"""Ids of traces and spans (W3C Trace Context), derived so that relay, decider and exporter know them without a message.

A request without a trace context begins a trace, whose id is made from its request id. The span of an attempt is the
parent of the replica's own spans. `parent`: the client's well-formed `traceparent`, or empty.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_PARTS: Final = 2.0**56
"""The last 56 bits of a trace id are random (W3C), and decide on its sampling."""


def seed_of(request_id: str) -> str:
    """The hash from which all ids of a request are made, in hexadecimal digits like them."""
    return blake2b(request_id.encode()).hexdigest()


def trace_id_of(parent: str, seed: str) -> str:
    """The trace of a request, 32 digits."""
    return parent[3:35] if parent else seed[:32]


def span_id_of(seed: str, attempt: str) -> str:
    """The span of an attempt, 16 digits. `attempt`: its id, whose decimal digits are the last ones."""
    return seed[32:40] + attempt[-8:].rjust(8, "0")


def is_sampled(parent: str, seed: str, ratio: float) -> bool:
    """Whether a trace is among the `ratio` (0-1) of all. Every gateway and every collector decides alike."""
    return int(parent[21:35] if parent else seed[18:32], 16) < ratio * _PARTS


def parent_for(parent: str, request_id: str, attempt: str, ratio: float) -> str:
    """The `traceparent` for the replica that gets this attempt. Its flag says whether the trace is sampled."""
    seed = seed_of(request_id)
    is_kept = parent[-1:] in ("1", "3", "5", "7", "9", "b", "d", "f") or is_sampled(parent, seed, ratio)
    return f"00-{trace_id_of(parent, seed)}-{span_id_of(seed, attempt)}-{'01' if is_kept else '00'}"
