"""Writes the body of an upstream request from a checked request."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.wire.body.form import field
from gateway.wire.parsed import Parsed

_loads: Final = orjson.loads
_dumps: Final = orjson.dumps
MIN_THINKING_BUDGET: Final = 1024
"""Anthropic's smallest budget_tokens. vLLM refuses smaller values."""


def render(parsed: Parsed, upstream_model: str, max_tokens: int, with_options: bool = True) -> bytes:
    """The body for an engine. `upstream_model`: the engine's name for the model. `max_tokens`: cap per choice; 0 for
    none, unless the client asked for 0.

    `with_options` False leaves out `stream_options`, which some servers refuse.
    """
    if parsed.api.shape.write is not None:
        return field("model", upstream_model) + parsed.payload
    is_capped = max_tokens > 0 or parsed.max_tokens == 0
    options = parsed.options if with_options else b""
    if is_capped and parsed.cap_field is not None and not parsed.tied:
        start = f'"{parsed.cap_field}":{max_tokens},'.encode()
        return b"".join((b'{"model":', _dumps(upstream_model), b",", start, options, parsed.payload[1:]))
    first: dict[str, Any] = {"model": upstream_model}
    if not is_capped:
        first |= parsed.tied
    elif parsed.cap_field is not None:
        first[parsed.cap_field] = max_tokens
        if parsed.tied:
            _bound(first, parsed.tied, max_tokens)
    return b"".join((_dumps(first)[:-1], b",", options, parsed.payload[1:]))


def without_store(body: bytes) -> bytes:
    """The body, changed so that the engine does not store its answer."""
    return _dumps({**_loads(body), "store": False})


def change_lines(parsed: Parsed, max_tokens: int) -> bytes:
    """Header lines for the client with the names of dropped or changed fields, and the output cap if it was lowered."""
    lines = b""
    if max_tokens and parsed.max_tokens != max_tokens and parsed.cap_field is not None:
        lines = b"x-tailgate-max-tokens: %d\r\n" % max_tokens
    return lines + (b"x-tailgate-changed: %b\r\n" % ", ".join(parsed.changed).encode() if parsed.changed else b"")


def _bound(out: dict[str, Any], tied: dict[str, Any], max_tokens: int) -> None:
    """Lower other numbers of tokens to the output cap."""
    for name in ("min_tokens", "thinking_token_budget"):
        if name in tied:
            out[name] = min(tied[name], max_tokens)
    thinking = tied.get("thinking")
    if thinking is None:
        return
    if thinking.get("budget_tokens", 0) < max_tokens:
        out["thinking"] = thinking
    elif max_tokens > MIN_THINKING_BUDGET:
        out["thinking"] = {**thinking, "budget_tokens": max_tokens - 1}
    else:
        out["thinking"] = {"type": "disabled"}
