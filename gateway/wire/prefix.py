"""The beginning of a prompt, as hashes: by these the core finds the replicas that have read it before.

A prompt is written in the order of chat templates: tools, system prompt, messages. Each block is hashed together with
the hash before it. Prompts that begin alike have the same leading hashes, whatever other fields their requests have.
The hash is Python's own for bytes, SipHash with a key that each process draws at its start. So nobody outside can make
two prompts collide, and hashes are meaningless in another process.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.request import NO_PREFIX, Prefix

FIRST: Final = ("tools", "functions", "documents", "system", "instructions")
"""Fields before the conversation,"""
CONVERSATION: Final = ("messages", "input", "prompt")
"""and the field that holds it."""
MIN_BYTES: Final = 2048
"""Shorter prompts have none: 512 tokens are read in 10 to 80 ms, and hashing them is a tenth of a request's cost."""
SMALL_BYTES: Final = 512
SMALL_BLOCKS: Final = 8
BLOCK_BYTES: Final = 2048
"""Blocks after the first eight. A block of vLLM is 16 tokens, some 64 bytes."""
MAX_BLOCKS: Final = 1024
"""2 MiB of text. Text beyond this counts as new."""


def prefix_of(fields: dict[str, Any], adapter: str = "", tenant: str = "", has_media: bool = False) -> Prefix:
    """The prefix of checked fields; none if the prompt is shorter than `MIN_BYTES`.

    Engines share no cached block between LoRA adapters, nor between cache salts. So `adapter` is hashed before the
    first block, and so is `tenant` if caches are separated by it. `has_media`: placeholders stand in `fields`.
    """
    text = _first(fields) + _conversation(fields)
    size = len(text)
    if size < MIN_BYTES:
        return NO_PREFIX
    blocks: list[int] = []
    ends: list[int] = []
    start, known = 0, hash((adapter, tenant)) if adapter or tenant else 0
    while len(blocks) < MAX_BLOCKS:
        end = start + (SMALL_BYTES if len(blocks) < SMALL_BLOCKS else BLOCK_BYTES)
        if end > size:
            break
        known = hash((known, text[start:end]))
        blocks.append(known)
        ends.append(end)
        start = end
    return Prefix(tuple(blocks), tuple(ends), size, has_media)


def prefix_after(before: Prefix, fields: dict[str, Any], has_first: bool, name: str) -> Prefix:
    """The prefix of a request that continues a stored response of this unique name.

    `before` has the prompt of that response, and its size includes the answer. Everything after that prompt is one
    block. `has_first`: whether the new prompt begins like `before`: engines do not keep the system prompt of a
    response, but take that of the new request.
    """
    text = _conversation(fields)
    size = before.size + len(text)
    if size < MIN_BYTES:
        return Prefix(size=size)
    if not has_first:
        return Prefix((hash((name, _first(fields), text)),), (size,), size, before.has_media)
    blocks, ends = before.blocks, before.ends
    if len(blocks) < MAX_BLOCKS:
        blocks, ends = (*blocks, hash((name, text))), (*ends, size)
    return Prefix(blocks, ends, size, before.has_media)


def first_of(fields: dict[str, Any], adapter: str) -> int:
    """A hash of everything before the conversation."""
    return hash((adapter, _first(fields)))


def _first(fields: dict[str, Any]) -> bytes:
    return b"".join([orjson.dumps(fields[name]) for name in FIRST if name in fields])


def _conversation(fields: dict[str, Any]) -> bytes:
    for name in CONVERSATION:
        if name in fields:
            return orjson.dumps(fields[name])
    return b""
