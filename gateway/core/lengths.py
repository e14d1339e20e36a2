"""How long answers will be: quantiles of output tokens per route, learned as answers end."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final

from gateway.core.estimators import log_edges

EDGES: Final = log_edges(1.0, 65536.0, 0.12)
SHRINK: Final = 20.0
"""Answers that the parent of a bucket counts for."""
REFRESH: Final = 256
"""Answers after which a bucket is read anew, at the latest: after every eighth more than there were."""
KEEP: Final = 2000.0
"""Answers that are remembered, about: counts are halved when there are twice as many."""
LONG: Final = 0.99
LEAST_KNOWN: Final = 500.0
"""Answers of a model and tier before a length is said to be unusual."""
PRIOR_TOKENS = (16.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Equally likely before anything is known."""


class Bucket:
    """Output lengths of one kind of request, drawn to those of the broader kind above it."""

    __slots__ = ("_above", "_counts", "_fresh", "_parent", "median", "samples")

    def __init__(self, parent: Bucket | None) -> None:
        self._parent = parent
        self._counts = [0.0] * (len(EDGES) + 1)
        self._fresh: list[int] = []
        self._above: list[float] = []
        """P(output > edge i)."""
        self.samples = 0.0
        self.median = 1.0
        if parent is None:
            for tokens in PRIOR_TOKENS:
                self._counts[bisect_left(EDGES, tokens)] += 1.0
        self._read()

    def add(self, tokens: int) -> None:
        """An answer ended by itself after `tokens` (>= 1)."""
        self._fresh.append(min(bisect_left(EDGES, tokens), len(EDGES) - 1))
        if len(self._fresh) >= min(REFRESH, 4.0 + self.samples / 8.0):
            self._take(self._fresh)
            self._fresh = []

    def is_long(self, tokens: int) -> bool:
        """Whether all but one in a hundred are shorter, as far as that is known."""
        known = self if self._parent is None else self._parent
        return known.samples >= LEAST_KNOWN and tokens > self.quantile(LONG)

    def add_cut(self, tokens: int) -> None:
        """An answer was ended by us after `tokens`: it counts as a step longer, lest what is long shrink by itself."""
        self.add(math.ceil(tokens * 1.12) + 1)

    def _take(self, fresh: list[int]) -> None:
        """Count answers, here and in every bucket above."""
        for index in fresh:
            self._counts[index] += 1.0
        self.samples += len(fresh)
        if self._parent is not None:
            self._parent._take(fresh)
        self._read()

    def _read(self) -> None:
        counts = self._counts
        if self.samples > 2.0 * KEEP:
            counts[:] = [c / 2.0 for c in counts]
            self.samples /= 2.0
        parent = self._parent
        total = sum(counts)
        weight = 0.0 if parent is None else SHRINK / (total + SHRINK)
        above: list[float] = [0.0] * len(EDGES)
        p = 0.0
        for i in range(len(EDGES) - 1, -1, -1):
            above[i] = p
            share = counts[i] / total if total else 0.0
            if parent is not None:
                before = parent.above(i - 1) - parent.above(i)
                share = weight * before + (1.0 - weight) * share
            p += share
        self._above = above
        self.median = self.quantile(0.5)

    def above(self, index: int) -> float:
        """P(output > EDGES[index]); 1 below the first edge."""
        return self._above[index] if index >= 0 else 1.0

    def exceeds(self, tokens: float) -> float:
        """P(output > tokens), between edges by interpolation."""
        i = bisect_left(EDGES, tokens)
        if i >= len(EDGES):
            return 0.0
        low = EDGES[i - 1] if i else 0.0
        high_p, low_p = self.above(i - 1), self._above[i]
        return high_p + (low_p - high_p) * (tokens - low) / (EDGES[i] - low)

    def quantile(self, q: float) -> float:
        """Output tokens that a share `q` (0-1) of answers stays within."""
        low, high = 0, len(EDGES) - 1
        above = self._above
        while low < high:
            middle = (low + high) // 2
            if above[middle] > 1.0 - q + 1e-12:
                low = middle + 1
            else:
                high = middle
        before, after = self.above(low - 1), above[low]
        lowest = EDGES[low - 1] if low else 0.0
        share = (before - (1.0 - q)) / (before - after) if before > after else 1.0
        return max(1.0, lowest + (EDGES[low] - lowest) * min(1.0, max(0.0, share)))


class Lengths:
    """Buckets by (model, tier, power of two of the prompt's length), below (model, tier), below the model, below all.

    A bucket that has seen little leans on the one above it.
    """

    def __init__(self) -> None:
        self._root = Bucket(None)
        self._buckets: dict[tuple[str, str, int], Bucket] = {}

    def bucket(self, model: str, tier: str, prompt_tokens: int) -> Bucket:
        """The narrowest bucket of such a request."""
        key = model, tier, prompt_tokens.bit_length()
        found = self._buckets.get(key)
        return found if found is not None else self._new(*key)

    def _new(self, model: str, tier: str, bits: int) -> Bucket:
        key = model, tier, bits
        found = self._buckets.get(key)
        if found is None:
            parent = self._root
            if bits >= 0:
                parent = self._new(model, tier, -1)
            elif tier:
                parent = self._new(model, "", -1)
            found = self._buckets[key] = Bucket(parent)
        return found
