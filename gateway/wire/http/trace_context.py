"""Ids of traces and spans (W3C Trace Context), derived so that relay, decider and exporter know them without a message.

A request without a trace context begins a trace, whose id is made from its request id. The span of an attempt is the
parent of the replica's own spans.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_RANDOM_DIGITS: Final = 14
"""The last digits of a trace id are random (W3C), and decide on its sampling."""


def trace_id_of(parent: str, request_id: str) -> str:
    """The trace of a request, 32 hexadecimal digits. `parent`: its well-formed `traceparent`, or empty."""
    return parent[3:35] if parent else blake2b(request_id.encode(), digest_size=16).hexdigest()


def span_id_of(request_id: str, attempt: str) -> str:
    """The span of an attempt, 16 hexadecimal digits. `attempt`: its id."""
    return blake2b(f"{request_id}/{attempt}".encode(), digest_size=8).hexdigest()


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Whether a trace is among the `ratio` (0-1) of all. Every gateway and every collector decides alike."""
    return int(trace_id[-_RANDOM_DIGITS:], 16) < ratio * 16.0**_RANDOM_DIGITS


def parent_for(parent: str, request_id: str, attempt: str, ratio: float) -> str:
    """The `traceparent` for the replica that gets this attempt. Its flag says whether the trace is sampled."""
    trace_id = trace_id_of(parent, request_id)
    is_kept = parent[-1:] in ("1", "3", "5", "7", "9", "b", "d", "f") or is_sampled(trace_id, ratio)
    return f"00-{trace_id}-{span_id_of(request_id, attempt)}-{'01' if is_kept else '00'}"
