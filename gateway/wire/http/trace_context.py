"""Ids of traces and spans (W3C Trace Context), derived so that relay, decider and exporter know them without a message.

A request without a trace context begins a trace, whose id is made from its request id. The span of an attempt is the
parent of the replica's own spans.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_PARTS: Final = 2.0**56
"""The last 56 bits of a trace id are random (W3C), and decide on its sampling."""


def seed_of(request_id: str) -> bytes:
    """The hash from which all ids of a request are made."""
    return blake2b(request_id.encode()).digest()


def trace_id_of(parent: str, seed: bytes) -> bytes:
    """The trace of a request, 16 bytes. `parent`: its well-formed `traceparent`, or empty."""
    return bytes.fromhex(parent[3:35]) if parent else seed[:16]


def span_id_of(seed: bytes, attempt: int) -> bytes:
    """The span of an attempt, 8 bytes. `attempt`: its id."""
    return seed[16:20] + (attempt & 0xFFFFFFFF).to_bytes(4, "big")


def is_sampled(trace_id: bytes, ratio: float) -> bool:
    """Whether a trace is among the `ratio` (0-1) of all. Every gateway and every collector decides alike."""
    return int.from_bytes(trace_id[9:], "big") < ratio * _PARTS


def parent_for(parent: str, request_id: str, attempt: int, ratio: float) -> str:
    """The `traceparent` for the replica that gets this attempt. Its flag says whether the trace is sampled."""
    seed = seed_of(request_id)
    trace_id = trace_id_of(parent, seed)
    is_kept = parent[-1:] in ("1", "3", "5", "7", "9", "b", "d", "f") or is_sampled(trace_id, ratio)
    return f"00-{trace_id.hex()}-{span_id_of(seed, attempt).hex()}-{'01' if is_kept else '00'}"
