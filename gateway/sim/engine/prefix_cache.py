"""The prefix cache of a simulated engine: prompt blocks in its KV cache that later prompts can reuse.

The rules, after vLLM's automatic prefix caching (v1: `kv_cache_manager`, `block_pool`):

1. A prompt uses its leading blocks that are in the cache. At least the last token of the prompt is computed again.
2. Blocks of running sequences are shared and counted. A block without users is free, but stays in the cache until room
   is needed.
3. Free blocks are evicted in the order in which they were released. A sequence releases its last block first, so tails
   are evicted before prefixes that others may share.

4. A block counts as cached from the moment at which the step that fills it begins. So of two prompts that begin alike,
   the second finds the blocks of the first, even in the same step.

vLLM's blocks have 16 tokens. A block here has as many tokens as a hash of the workload stands for. Generated tokens are
cached if the workload has hashes of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """The cache of one engine. Counts are in tokens."""

    __slots__ = ("_free", "_used", "block_tokens", "hit_tokens", "queried_tokens", "shared_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.queried_tokens = 0
        """Prompt tokens of all sequences that have started."""
        self.hit_tokens = 0
        """Those of `queried_tokens` that were in the cache."""
        self.shared_tokens = 0
        """Tokens of blocks with several users, counted once for each user after the first."""
        self._used: dict[int, int] = {}
        """Number of users of each block that running sequences hold."""
        self._free: OrderedDict[int, None] = OrderedDict()
        """Blocks without a user, in the order of eviction."""

    def match(self, prefix: Sequence[int]) -> int:
        """Number of leading blocks of `prefix` that are in the cache."""
        count = 0
        for block in prefix:
            if block not in self._used and block not in self._free:
                break
            count += 1
        return count

    def in_use(self, blocks: Sequence[int]) -> int:
        """Tokens of these blocks, as far as other sequences already hold them."""
        return self.block_tokens * sum(block in self._used for block in blocks)

    def use(self, blocks: Sequence[int]) -> None:
        """Add a user to these cached blocks."""
        for block in blocks:
            users = self._used.get(block, 0)
            if users:
                self.shared_tokens += self.block_tokens
            else:
                del self._free[block]
            self._used[block] = users + 1

    def computed(self, blocks: Sequence[int]) -> list[int]:
        """Add blocks that a sequence has filled. Returns the new ones. Copies of cached blocks are not counted."""
        own = [block for block in dict.fromkeys(blocks) if block not in self._used and block not in self._free]
        self._used.update(dict.fromkeys(own, 1))
        return own

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a user from these blocks."""
        for block in reversed(blocks):
            users = self._used.pop(block) - 1
            if users:
                self._used[block] = users
                self.shared_tokens -= self.block_tokens
            else:
                self._free[block] = None

    def shrink(self, room_tokens: int) -> None:
        """Evict free blocks until the remaining ones fit into `room_tokens`, the space that running sequences leave."""
        while len(self._free) * self.block_tokens > room_tokens and self._free:
            self._free.popitem(last=False)
