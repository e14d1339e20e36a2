"""Prompts as the emulated engine reads them, four bytes a token, and the hashes by which their blocks are cached.

The order is that of common chat templates: tools, system prompt, messages, and the words that open the answer. The next
turn repeats those words and the answer, so both prompts have the same leading blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from loadtests.emulator.text import BYTES_PER_TOKEN, TOKENS_PER_GENERATION_PROMPT, TOKENS_PER_MEDIA_PART

HEADER_BYTES = TOKENS_PER_GENERATION_PROMPT * BYTES_PER_TOKEN
END = b"<end"
"""The header of a message: `text.TOKENS_PER_MESSAGE` tokens."""


def chat(fields: Mapping[str, object], messages: Sequence[object]) -> bytes:
    """The prompt of a conversation, with the number of tokens that `asks` counts."""
    parts: list[bytes] = []
    tools = fields.get("tools")
    if tools:
        parts.append(_padded(orjson.dumps(tools)))
    for name in ("system", "instructions"):
        if fields.get(name):
            parts += (_header("system"), *_content(fields[name]), END)
    for message in messages:
        if isinstance(message, Mapping):
            parts += (_header(message.get("role", "user")), *_content(message.get("content")), END)
    parts.append(_header("assistant"))
    return b"".join(parts)


def plain(prompt: str | Sequence[int]) -> bytes:
    """The prompt of a text, or of token ids."""
    if isinstance(prompt, str):
        return _padded(prompt.encode(errors="replace"))
    return b"".join((id & 0xFFFF_FFFF).to_bytes(BYTES_PER_TOKEN) for id in prompt)


def token(piece: bytes) -> bytes:
    """A word as one token."""
    return piece[:BYTES_PER_TOKEN].ljust(BYTES_PER_TOKEN)


def blocks(rendered: bytes, block_tokens: int, salt: object = None) -> tuple[int, ...]:
    """Hashes of a prompt's whole blocks; each hash covers the prompt from its beginning. `salt`: vLLM's
    `cache_salt`.
    """
    size = block_tokens * BYTES_PER_TOKEN
    chain: list[int] = []
    known = hash(salt) if isinstance(salt, str) else 0
    for end in range(size, len(rendered) + 1, size):
        known = hash((known, rendered[end - size : end]))
        chain.append(known)
    return tuple(chain)


def _header(role: object) -> bytes:
    return f"<{role}>".encode(errors="replace")[:HEADER_BYTES].ljust(HEADER_BYTES)


def _content(content: object) -> Iterable[bytes]:
    if isinstance(content, str):
        return [_padded(content.encode(errors="replace"))]
    if not isinstance(content, Sequence):
        return []
    parts: list[bytes] = []
    for part in content:
        if isinstance(part, str):
            parts.append(_padded(part.encode(errors="replace")))
        elif isinstance(part, Mapping):
            text = part.get("text", part.get("content"))
            parts += [_media(part)] if text is None else _content(text)
    return parts


def _media(part: Mapping[str, object]) -> bytes:
    """A picture or a sound: a fixed number of tokens, which differ from those of other media."""
    digest = b"%016x" % (hash(orjson.dumps(dict(part))) & 0xFFFF_FFFF_FFFF_FFFF)
    return digest.ljust(TOKENS_PER_MEDIA_PART * BYTES_PER_TOKEN)


def _padded(text: bytes) -> bytes:
    return text.ljust(-(-len(text) // BYTES_PER_TOKEN) * BYTES_PER_TOKEN)
