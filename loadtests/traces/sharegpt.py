"""Conversations in ShareGPT's form as a trace: each answer to a question is a request, with all that was said before.

    [{"id": "...", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]

The form has texts and no times. Lengths are estimated, four bytes a token. Conversations begin at random, one per
second on average; the next question comes after a time to read and think. Prompts that begin alike share the numbers of
their blocks, even across conversations.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Annotated, Final

import msgspec

from gateway.sim.workload.trace_formats import MAX_TOKENS, TraceRow
from gateway.sim.workload.traces import TraceError

ASKS: Final = frozenset({"human", "user"})
ANSWERS: Final = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})
BYTES_PER_TOKEN: Final = 4
BLOCK_BYTES: Final = 512 * BYTES_PER_TOKEN
BEGIN_PER_S: Final = 1.0
THINK_S: Final = 10.0
"""Mean time from an answer to the next question."""
ANSWER_TOKEN_S: Final = 0.03
"""Time for a token of an answer."""
FIRST_BYTES: Final = 4096


class _Said(msgspec.Struct):
    by: Annotated[str, msgspec.Meta(max_length=100)] = msgspec.field(name="from")
    value: str = ""


class _Talk(msgspec.Struct):
    conversations: list[_Said]


def is_sharegpt(path: Path) -> bool:
    """Whether a file begins like a list of conversations."""
    with path.open("rb") as file:
        first = file.read(FIRST_BYTES).lstrip()
    return first.startswith(b"[") and b'"conversations"' in first


class ShareGptRows:
    """The requests of a file of conversations, in the order of their times. Raises TraceError or OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.unanswered = 0
        """Conversations without an answer to a question."""
        self._blocks: dict[bytes, int] = {}

    def rows(self) -> Iterator[TraceRow]:
        """The rows. The whole file is read first, since it is one JSON document."""
        try:
            talks = msgspec.json.decode(self._path.read_bytes(), type=list[_Talk])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{self._path}: {error}: a list of objects with conversations is expected") from None
        draw, begins = Random("1 sharegpt"), 0.0
        later: list[tuple[float, int, int, TraceRow]] = []
        for number, talk in enumerate(talks):
            begins += draw.expovariate(BEGIN_PER_S)
            while later and later[0][0] <= begins:
                yield heappop(later)[-1]
            turns = list(self._turns(number, talk))
            at = begins
            for turn, row in enumerate(turns):
                row.at = round(at, 6)
                heappush(later, (at, number, turn, row))
                at += ANSWER_TOKEN_S * row.output_tokens + draw.expovariate(1 / THINK_S)
            self.unanswered += not turns
        while later:
            yield heappop(later)[-1]

    def _turns(self, number: int, talk: _Talk) -> Iterator[TraceRow]:
        """The requests of a conversation, all at time 0."""
        before, chain, known = bytearray(), b"", 0
        prefix: list[int] = []
        asked = False
        for said in talk.conversations:
            text = f"{said.by}: {said.value}\n".encode()
            if said.by in ANSWERS and asked:
                while known + BLOCK_BYTES <= len(before):
                    chain = blake2b(chain + before[known : known + BLOCK_BYTES], digest_size=8).digest()
                    prefix.append(self._blocks.setdefault(chain, len(self._blocks)))
                    known += BLOCK_BYTES
                tokens = min(MAX_TOKENS, -(-len(said.value.encode()) // BYTES_PER_TOKEN))
                yield TraceRow(
                    at=0.0,
                    prompt_tokens=-(-len(before) // BYTES_PER_TOKEN),
                    output_tokens=max(1, tokens),
                    session=number,
                    prefix=tuple(prefix),
                )
            asked = said.by in ASKS
            before += text
