"""Text of the emulated model: lengths of prompts, and the book from which answers are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import NormalDist
from zlib import crc32

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
TOKENS_PER_GENERATION_PROMPT = 3
TOKENS_PER_MEDIA_PART = 256

# Words that need no escapes in JSON. Some characters take two to four bytes, so that a byte is not always a letter.
_VOCABULARY = (
    " the of and a to in is that it was for on are as with his they at be this from have or by one had not but what all"
    " were when we there can an your which their said if do will each about how up out them then she many some so these"
    " would other into has more her two like him see time could no make than first been its who now people my made over"
    " did down only way find use may water long little very after words called just where most know get through back"
    " much before go good new write our used me man too any day same right look think also around another came come"
    " work three word must because does part even place well such here take why things help put years different away"
    " again off went old number great tell men say small every found still between name should home big give air line"
    " set own under read last never us left end along while might next sound below saw something thought both few those"
    " café naïve Zürich smörgåsbord jalapeño Ελλάδα Москва 東京 北京 🙂 🚀"
)
BOOK: tuple[bytes, ...] = tuple(f" {word}".encode() for word in Random(8).choices(_VOCABULARY.split(), k=4096))


def passage(start: int, words: int) -> list[bytes]:
    """`words` words of the book from word `start` on; after the last word comes the first."""
    pieces: list[bytes] = []
    start %= len(BOOK)
    while len(pieces) < words:
        pieces += BOOK[start : start + words - len(pieces)]
        start = 0
    return pieces


def seed_of(*parts: bytes) -> int:
    """A 32-bit hash that is the same in every process and on every machine."""
    seed = 0
    for part in parts:
        seed = crc32(part, seed)
    return seed


def output_length(seed: int, median: float, sigma: float) -> int:
    """Tokens of an answer that ends by itself: lognormal, at the quantile that `seed` gives."""
    uniform = (
        seed * 2654435761 % 2**32 + 0.5
    ) / 2**32  # Knuth's multiplicative hash: crc32 of similar texts is similar
    return max(1, round(median * math.exp(sigma * NormalDist().inv_cdf(uniform))))


def count_text(text: str) -> int:
    """One token per four bytes of UTF-8, rounded up."""
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return -(-size // BYTES_PER_TOKEN)


def count_content(content: object) -> int:
    """Tokens of a message's content: a string, or parts; parts without text count as media."""
    if isinstance(content, str):
        return count_text(content)
    if not isinstance(content, Sequence):
        return 0
    tokens = 0
    for part in content:
        if isinstance(part, str):
            tokens += count_text(part)
        elif isinstance(part, Mapping):
            text = part.get("text", part.get("content"))
            tokens += TOKENS_PER_MEDIA_PART if text is None else count_content(text)
    return tokens


def count_chat(messages: Sequence[object]) -> int:
    """Tokens of all messages with their chat template, and of the line that opens the answer."""
    tokens = TOKENS_PER_GENERATION_PROMPT
    for message in messages:
        if isinstance(message, Mapping):
            tokens += TOKENS_PER_MESSAGE + count_content(message.get("content"))
    return tokens


def ids_of(text: str) -> list[int]:
    """A token id for every four bytes. A text that is not ASCII has ids of 0, which cannot be decoded."""
    raw = text.encode(errors="replace")
    pieces = [raw[at : at + BYTES_PER_TOKEN] for at in range(0, len(raw), BYTES_PER_TOKEN)]
    return [int.from_bytes(piece) if text.isascii() else 0 for piece in pieces]


def piece_of(id: int) -> str:
    """The text of one id of `ids_of`."""
    return id.to_bytes((id.bit_length() + 7) // 8).decode("ascii", "replace")
