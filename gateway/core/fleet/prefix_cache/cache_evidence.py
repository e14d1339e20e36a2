"""Measures, from reports of the engine, how much of the prefix index is really in the engine's cache.

The index knows only what was sent. Evidence comes from two sources:

    answers    `cached_tokens` in the usage of an answer, compared with the prompt tokens that the index has
    counters   tokens queried and found since the last scrape, compared with the prompts sent. They count only while
               no answer reports cached tokens, because they include requests of other gateways.

Either source can report more cached tokens of a prompt than the index has: another gateway may have sent them, or the
engine generated them. Such an excess shows nothing about evicted blocks. So the reported tokens count only up to the
tokens in the index.
"""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.memory import Remembering

MEMORY_TOKENS: Final = 65_536.0
"""Evidence fades while this many tokens are indexed, which is some tens of turns of a conversation."""
PRIOR_TOKENS: Final = 4096.0
"""Weight, in tokens, of the prior belief that the index is right."""
BYTES_PER_TOKEN: Final = 4.0
"""Assumed bytes per prompt token until an answer's usage shows them."""
BYTES_SHARE: Final = 1 / 16
"""Weight of the latest prompt in the learned bytes per token."""
OTHERS_TOKENS: Final = 2**20
"""The share of other gateways is averaged over this many queried tokens: about a minute under load."""
MIN_OTHERS: Final = 1 / 64
"""Lower bound on the learned share of other gateways. It is above 0, so that a session goes to its home replica if
costs are equal.
"""
MIN_QUERIES: Final = 2048
"""The counters are used after at least this many queried tokens. With fewer, a running request would weigh too much."""


class CacheEvidence(Remembering):
    """Cache evidence of one replica. Counts are in tokens."""

    __slots__ = (
        "_asked",
        "_found",
        "_hits",
        "_indexed",
        "_indexed_lately",
        "_own",
        "_queries",
        "_recent_hits",
        "_recent_queries",
        "_told",
        "_total",
        "bytes_per_token",
        "kept",
        "others",
        "predicted_tokens",
        "reported_tokens",
    )

    def __init__(self) -> None:
        self.kept = 1.0
        """Share (0-1) of the indexed tokens that the engine finds in its cache."""
        self.bytes_per_token = BYTES_PER_TOKEN
        """Learned bytes per prompt token, by the engine's token counts."""
        self.others = 1.0
        """Share (0-1) of the engine's prompt tokens that other gateways sent; 1 until its counters are known."""
        self.predicted_tokens = 0
        """Total prompt tokens that were expected to be cached when sent, over complete answers."""
        self.reported_tokens = 0
        """Total prompt tokens that the engine reported as cached, over complete answers."""
        self._indexed = PRIOR_TOKENS
        self._found = PRIOR_TOKENS
        self._own = 0.0
        self._total = 0.0
        # Sums since the engine's counters were last read:
        self._asked = 0
        self._indexed_lately = 0
        self._told = False
        """Whether any answer reported its cached tokens."""
        self._queries: int | None = None
        self._hits = 0
        # For the admin pages: the hit rate of about the last hundred thousand tokens.
        self._recent_queries = 0.0
        self._recent_hits = 0.0

    def remembered(self) -> tuple[str, ...]:
        return "kept", "bytes_per_token", "others", "_indexed", "_found", "_own", "_total"

    @property
    def hit_rate(self) -> float | None:
        """Share (0-1) of recent prompt tokens that the engine found in its cache; None if the engine reports no such
        number.
        """
        return self._recent_hits / self._recent_queries if self._recent_queries else None

    def sent(self, prompt_tokens: int, indexed_tokens: int) -> None:
        """Count a prompt that was sent. `indexed_tokens`: how many of its tokens the index has."""
        self._asked += prompt_tokens
        self._indexed_lately += indexed_tokens

    def answered(self, prompt_tokens: int, indexed_tokens: int, cached_tokens: int) -> None:
        """Learn from an answer that reports how many tokens of its prompt were cached."""
        self.reported_tokens += cached_tokens
        self._told = True
        self._learn(indexed_tokens, cached_tokens)
        if self._queries is None:
            self._saw(prompt_tokens, cached_tokens)

    def measured(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn the bytes per token from a prompt whose tokens (>= 1) the engine has counted."""
        self.bytes_per_token += BYTES_SHARE * (prompt_bytes / prompt_tokens - self.bytes_per_token)

    def counted(self, queries: int, hits: int) -> bool:
        """Learn from the engine's counters of queried and hit tokens.

        Returns True if the counters restarted from zero: then the engine was restarted, and its cache is empty.
        """
        known, before = self._queries, self._hits
        if known is None or queries < known or hits < before:
            if known is None:
                self._recent_queries = self._recent_hits = 0.0
                self._saw(queries, hits)
            self._read(queries, hits)
            return known is not None
        if queries - known < MIN_QUERIES:
            return False
        rate = min(1.0, (hits - before) / (queries - known))
        self._saw(queries - known, hits - before)
        if not self._told:
            self._learn(self._indexed_lately, rate * self._asked)
        self._share(queries - known)
        self._read(queries, hits)
        return False

    def _share(self, queried: int) -> None:
        """Learn the share of other gateways. `queried`: tokens (> 0) that all gateways sent; this gateway sent `_asked`
        of them.
        """
        self._own += self._asked
        self._total += queried
        if self._total > OTHERS_TOKENS:
            fading = OTHERS_TOKENS / self._total
            self._own *= fading
            self._total *= fading
        self.others = max(MIN_OTHERS, 1.0 - self._own / self._total)

    def _read(self, queries: int, hits: int) -> None:
        self._queries, self._hits = queries, hits
        self._asked = self._indexed_lately = 0
        self._told = False

    def _learn(self, indexed_tokens: int, found_tokens: float) -> None:
        if indexed_tokens <= 0:
            return
        self._indexed += indexed_tokens
        self._found += min(float(indexed_tokens), found_tokens)
        if self._indexed > MEMORY_TOKENS:
            fading = MEMORY_TOKENS / self._indexed
            self._indexed *= fading
            self._found *= fading
        self.kept = self._found / self._indexed

    def _saw(self, queries: int, hits: int) -> None:
        self._recent_queries += queries
        self._recent_hits += hits
        if self._recent_queries > MEMORY_TOKENS:
            fading = MEMORY_TOKENS / self._recent_queries
            self._recent_queries *= fading
            self._recent_hits *= fading
