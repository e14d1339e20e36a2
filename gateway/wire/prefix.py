"""Hashes the beginning of a prompt. With these hashes, the core finds replicas that have read the same beginning
before.

The parts of a prompt are hashed in the order of chat templates: tools, system prompt, messages. Each block is hashed
together with the hash before it. So prompts with the same beginning have the same first hashes, whatever other fields
their requests have. The hash function is Python's own for bytes: SipHash, with a random key that all processes of a
gateway have. So nobody outside can construct prompts with the same hash. The key is kept only where `--state-dir` is.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.request import NO_PREFIX, Prefix

FIRST: Final = ("tools", "functions", "documents", "system", "instructions")
"""Fields that come before the conversation in a prompt."""
CONVERSATION: Final = ("messages", "input", "prompt")
"""Fields that may contain the conversation."""
MIN_BYTES: Final = 2048
"""Shorter prompts are not hashed. An engine reads 512 tokens in 10 to 80 ms, and hashing takes a tenth of the gateway's
time per request.
"""
SMALL_BYTES: Final = 512
SMALL_BLOCKS: Final = 8
BLOCK_BYTES: Final = 2048
"""Size of blocks after the first eight. (A block of vLLM's cache has 16 tokens, some 64 bytes.)"""
MAX_BLOCKS: Final = 1024
"""Limit on hashed blocks: 2 MiB of text. Text beyond it counts as not cached."""
MAX_BYTES: Final = SMALL_BLOCKS * SMALL_BYTES + (MAX_BLOCKS - SMALL_BLOCKS) * BLOCK_BYTES
"""Bytes of all hashed blocks together. A conversation that is longer is not written once more for its hashes."""


def prefix_of(
    fields: dict[str, Any], adapter: str = "", tenant: str = "", has_media: bool = False, payload: bytes = b""
) -> Prefix:
    """The prefix of a request with these checked fields; empty if the prompt is shorter than `MIN_BYTES`.

    Engines share no cached block between LoRA adapters, or between cache salts. So `adapter` is hashed before the first
    block, and `tenant` as well if caches are separated by tenant. `has_media`: whether `fields` has placeholders.
    `payload`: the fields as JSON in their order; empty if it is not written. It spares a second copy of a long prompt.
    """
    if len(payload) > MAX_BYTES:
        text, size = _beginning(fields, payload)
    else:
        text = _first(fields) + _conversation(fields)
        size = len(text)
    if size < MIN_BYTES:
        return NO_PREFIX
    blocks: list[int] = []
    ends: list[int] = []
    at, known = 0, hash((adapter, tenant)) if adapter or tenant else 0
    while len(blocks) < MAX_BLOCKS:
        upto = at + (SMALL_BYTES if len(blocks) < SMALL_BLOCKS else BLOCK_BYTES)
        if upto > size:
            break
        known = hash((known, text[at:upto]))
        blocks.append(known)
        ends.append(upto)
        at = upto
    return Prefix(tuple(blocks), tuple(ends), size, has_media)


def prefix_after(before: Prefix, fields: dict[str, Any], has_first: bool, name: str) -> Prefix:
    """The prefix of a request that continues a stored response. `name`: a unique name of the response.

    `before`: prefix of the response's prompt, with the size of the answer included. Everything that the new request
    adds to that prompt is one block. `has_first`: whether the new request has the same tools and system prompt. Engines
    do not store the system prompt of a response, but use that of the new request.
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
    """Hash of everything before the conversation: tools, system prompt and adapter."""
    return hash((adapter, _first(fields)))


def _first(fields: dict[str, Any]) -> bytes:
    return b"".join([orjson.dumps(fields[name]) for name in FIRST if name in fields])


def _conversation(fields: dict[str, Any]) -> bytes:
    for name in CONVERSATION:
        if name in fields:
            return orjson.dumps(fields[name])
    return b""


def _beginning(fields: dict[str, Any], payload: bytes) -> tuple[bytes, int]:
    """The beginning of a long prompt that may be hashed, and the size of the whole. In the payload, the conversation
    stands between all other fields. They are usually short, and each is written once to find its end.
    """
    name = next((name for name in CONVERSATION if name in fields), "")
    others = {other: orjson.dumps(value) for other, value in fields.items() if other != name}
    text = b"".join([others[first] for first in FIRST if first in others])
    if not name:
        return text, len(text)
    start, end, is_behind = len("{"), len(payload) - len("}"), False
    for other in fields:
        if other == name:
            start += len(f'"{name}":')
            is_behind = True
        elif is_behind:
            end -= len(f',"{other}":') + len(others[other])
        else:
            start += len(f'"{other}":,') + len(others[other])
    return text + payload[start : min(end, start + MAX_BYTES)], len(text) + end - start
