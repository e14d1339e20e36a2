"""Estimates the content of one engine's prefix cache, from the prompts that it was sent."""

from __future__ import annotations

from itertools import islice
from typing import Final, TypeAlias

from gateway.core.estimators.memory import rows_in
from gateway.core.fleet.prefix_cache.cache_evidence import CacheEvidence
from gateway.core.request import Prefix

CAPACITY_BYTES: Final = 2**20
"""Assumed cache size while it is unknown, in bytes of prompts: 262,144 tokens."""
MAX_CAPACITY_BYTES: Final = 2**25
"""Limit on the indexed bytes of prompts. At 2 KiB a block, the index has up to 16,384 blocks. Each takes some 100 bytes
of memory.
"""
UNIT_BYTES: Final = 64
EVICTED_SHARE: Final = 1 / 16
"""Share of the index that is evicted at once. If blocks were evicted singly, finding the dictionary's first key would
take ever longer.
"""


class PrefixIndex:
    """Blocks of prompts in the order of their last use, the least recent first.

    An engine frees the last block of a request first. So it evicts the ends of prompts before the beginnings, which
    other prompts may share. The index does the same: it holds a block only if it holds all blocks before it.
    """

    __slots__ = ("_blocks", "_units", "capacity_bytes", "evidence", "holders")

    def __init__(self) -> None:
        self.holders: Holders | None = None
        """The pool's table of holders. Prompts are looked up there first, because most prompts are in few indexes."""
        self.evidence = CacheEvidence()
        """Measures the share of the index that the engine really has in its cache."""
        self.capacity_bytes = CAPACITY_BYTES
        self._blocks: dict[int, int] = {}
        """Size of each block in coarse units. Units are coarse so that numbers are small: Python keeps one shared
        object for each number up to 256.
        """
        self._units = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def resize(self, capacity_tokens: float | None) -> None:
        """Set the size of the KV cache; None if it is unknown."""
        if capacity_tokens is not None:
            self.capacity_bytes = int(min(MAX_CAPACITY_BYTES, capacity_tokens * self.evidence.bytes_per_token))

    def covered(self, prefix: Prefix) -> int:
        """Bytes of the prompt, from its beginning, that the engine probably has."""
        matched, kept = self.matched(prefix), self.evidence.kept
        return matched if kept == 1.0 or not matched else int(matched * kept)

    def covered_tokens(self, prefix: Prefix) -> float:
        """Tokens of the prompt, from its beginning, that the engine probably has, by the learned bytes per token."""
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

    def sent(self, prefix: Prefix) -> int:
        """Add the blocks of a prompt that was sent, as the most recent ones. Returns the number of new blocks, which
        are its last ones.
        """
        known, blocks, ends = self._blocks, prefix.blocks, prefix.ends
        new = 0
        for i in range(len(blocks) - 1, -1, -1):
            units = (ends[i] - (ends[i - 1] if i else 0) + UNIT_BYTES - 1) // UNIT_BYTES
            before = known.pop(blocks[i], 0)
            new += before == 0
            self._units += units - before  # sizes need not be exact, because eviction goes on until the sum fits
            if before == 0 and not i and self.holders is not None:
                self.holders.setdefault(blocks[0], {})[self] = None
            known[blocks[i]] = units
        if self._units * UNIT_BYTES > self.capacity_bytes:
            self._evict()
        return new

    def take_back(self, prefix: Prefix, new: int) -> None:
        """Forget the `new` blocks of a prompt that was sent and never read."""
        for block in prefix.blocks[len(prefix.blocks) - new :]:
            self._units -= self._blocks.pop(block, 0)
            self._let_go(block)

    def memory(self, most: int) -> list[object]:
        """The `most` latest blocks, the least recent first: their sizes in units, and whether a prompt begins there."""
        latest = islice(self._blocks.items(), max(0, len(self._blocks) - most), None)
        holders: Holders = {} if self.holders is None else self.holders
        return [(block, units, self in holders.get(block, NOWHERE)) for block, units in latest]

    def recall(self, memory: object) -> None:
        """Take over the blocks of a predecessor, whose engine still has them. The index must be empty."""
        for row in rows_in(memory):
            match row:
                case [int(block), int(units), bool(begins)] if units > 0:
                    self._blocks[block] = units
                    self._units += units
                    if begins and self.holders is not None:
                        self.holders.setdefault(block, {})[self] = None
        self._evict()

    def clear(self) -> None:
        """Forget all blocks, because the engine has restarted or does not hold them."""
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
"""For each block that begins a prompt, the indexes of the pool that hold it."""
NOWHERE: Final[dict[PrefixIndex, None]] = {}


def holding(prefix: Prefix, holders: Holders) -> dict[PrefixIndex, None]:
    """The indexes that hold the beginning of a prompt."""
    return holders.get(prefix.blocks[0], NOWHERE) if prefix.blocks else NOWHERE
