"""An estimate of one engine's prefix cache, from the prompts that it was sent."""

from __future__ import annotations

from itertools import islice
from typing import Final, TypeAlias

from gateway.core.fleet.cache_evidence import CacheEvidence
from gateway.core.request import Prefix

CAPACITY_BYTES: Final = 2**20
"""Assumed while the size of the KV cache is unknown: 262,144 tokens."""
MAX_CAPACITY_BYTES: Final = 2**25
"""Bound on the prompts indexed. At 2 KiB a block that is 16,384 blocks of some 100 bytes each."""
UNIT_BYTES: Final = 64
EVICTED_SHARE: Final = 1 / 16
"""Share of the index that is evicted at once. One by one, a dictionary would take ever longer to find its first key."""


class PrefixIndex:
    """Blocks in the order of their last use, the least recent first.

    An engine frees the last block of a request first. So it evicts tails before the beginnings that others share. The
    index does the same: it holds a block only if it holds those before it.
    """

    __slots__ = ("_blocks", "_units", "capacity_bytes", "evidence", "holders")

    def __init__(self) -> None:
        self.holders: Holders | None = None
        """Of its pool: prompts are looked up there first, since most are in few indexes."""
        self.evidence = CacheEvidence()
        """The share of the index that the engine really has."""
        self.capacity_bytes = CAPACITY_BYTES
        self._blocks: dict[int, int] = {}
        """Size of each block in units: Python keeps one object for each number up to 256."""
        self._units = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def resize(self, capacity_tokens: float | None) -> None:
        """Take on the size of the KV cache; None: it is not known."""
        if capacity_tokens is not None:
            self.capacity_bytes = int(min(MAX_CAPACITY_BYTES, capacity_tokens * self.evidence.bytes_per_token))

    def covered(self, prefix: Prefix) -> int:
        """Bytes of the prompt, from its beginning, that the engine probably has."""
        matched, kept = self.matched(prefix), self.evidence.kept
        return matched if kept == 1.0 or not matched else int(matched * kept)

    def covered_tokens(self, prefix: Prefix) -> float:
        """The same by the learned size of a token."""
        return self.covered(prefix) / self.evidence.bytes_per_token

    def matched(self, prefix: Prefix) -> int:
        """Bytes of the prompt, from its beginning, that the index has."""
        known, blocks = self._blocks, prefix.blocks
        if not blocks or blocks[0] not in known:
            return 0
        low, high = 0, len(blocks)  # blocks[low] is known, blocks[high] is not
        while high - low > 1:
            middle = (low + high) // 2
            if blocks[middle] in known:
                low = middle
            else:
                high = middle
        return prefix.ends[low]

    def sent(self, prefix: Prefix) -> None:
        """A prompt was sent: its blocks are the most recent."""
        known, blocks, ends = self._blocks, prefix.blocks, prefix.ends
        for i in range(len(blocks) - 1, -1, -1):
            units = (ends[i] - (ends[i - 1] if i else 0) + UNIT_BYTES - 1) // UNIT_BYTES
            before = known.pop(blocks[i], 0)
            self._units += units - before  # exact whatever the sizes, since eviction goes on until it fits
            if before == 0 and not i and self.holders is not None:
                self.holders.setdefault(blocks[0], {})[self] = None
            known[blocks[i]] = units
        if self._units * UNIT_BYTES > self.capacity_bytes:
            self._evict()

    def clear(self) -> None:
        """The engine has restarted, or does not hold the indexed blocks."""
        for block in self._blocks:
            self._let_go(block)
        self._blocks.clear()
        self._units = 0

    def _evict(self) -> None:
        known = self._blocks
        while self._units * UNIT_BYTES > self.capacity_bytes:
            for block in list(islice(known, 1 + int(EVICTED_SHARE * len(known)))):
                self._units -= known.pop(block)
                self._let_go(block)

    def _let_go(self, block: int) -> None:
        held = None if self.holders is None else self.holders.get(block)
        if held is not None and self.holders is not None:
            held.pop(self, None)
            if not held:
                del self.holders[block]


Holders: TypeAlias = dict[int, dict[PrefixIndex, None]]
"""The indexes of a pool that hold a block, for each block that is the first of a prompt."""
NOWHERE: Final[dict[PrefixIndex, None]] = {}


def holding(prefix: Prefix, holders: Holders) -> dict[PrefixIndex, None]:
    """The indexes that hold the beginning of a prompt."""
    return holders.get(prefix.blocks[0], NOWHERE) if prefix.blocks else NOWHERE
