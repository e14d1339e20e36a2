"""Keeps prompts of one length from being refused much more often than the requests of their tier on average.

Under overload a long prompt becomes doubtful sooner than a short one, because reading it takes a larger part of the
time allowed for its first token. Without a rule, nearly all long prompts would be refused. So prompts of each length
get a share of their tier's admissions. Lengths from 2^(k/3 - 1/6) to 2^(k/3 + 1/6), with an integer k, count as one.
A doubtful new request is admitted if, counting it as admitted,

    admitted of the length <= (admitted / offered of the tier - `fairness`) x offered of the length

over the last minute. If the tier values requests by tokens, `fairness` is 0 for prompts longer than the mean: they are
refused no more often than the average. An admitted long prompt waits for its turn like others. The queue is ordered by
latest start, so a long prompt goes before most short prompts.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.rates import Decay

MEMORY_S: Final = 60.0
"""Time constant (seconds) with which past requests are forgotten exponentially."""
MARGIN: Final = 0.05
"""Subtracted from `fairness` (0-1) when deciding: some of the requests that are admitted will be late, and of one
length the longest prompts are refused most.
"""
LENGTHS: Final = 72
PER_DOUBLING: Final = 3
"""Lengths that are told apart in a doubling. Many applications cut prompts at a power of two, so no power of two is a
boundary: estimates of such prompts would be on both sides. With one length for each doubling, shorter prompts made up
for cut ones: prompts of 4,096 tokens were admitted 27 points less often than their tier, and 25 are allowed.
"""


class Admissions(Decay):
    """Numbers of requests offered and admitted lately."""

    __slots__ = ("admitted", "offered")

    def __init__(self) -> None:
        super().__init__(MEMORY_S)
        self.offered = self.admitted = 0.0

    def settle(self, now: float) -> None:
        """Apply the forgetting up to `now` to the counts."""
        kept = self.forget(now)
        self.offered *= kept
        self.admitted *= kept

    def decided(self, admitted: bool, now: float) -> None:
        """Count one more offered request, and one more admitted request if it was `admitted`."""
        self.settle(now)
        self.offered += 1.0
        if admitted:
            self.admitted += 1.0


class LengthFairness:
    """Requests of one tier offered and admitted, by prompt length."""

    __slots__ = ("_all", "_lengths", "_tokens")

    def __init__(self) -> None:
        self._all = Admissions()
        self._tokens = Admissions()
        """The same as `_all`, but its `offered` sums prompt tokens."""
        self._lengths = [Admissions() for _ in range(LENGTHS)]

    def is_long(self, prompt_tokens: int) -> bool:
        """Whether this prompt is longer than the mean prompt offered lately."""
        return prompt_tokens * self._all.offered > self._tokens.offered

    def is_owed(self, prompt_tokens: int, fairness: float, now: float) -> bool:
        """Whether a doubtful request of this length is to be admitted. With `fairness` 1 the answer is always no."""
        if fairness >= 1.0 or not self._all.offered:
            return False
        length = self._lengths[length_of(prompt_tokens)]
        kept = length.kept(now)
        share = self._all.admitted / self._all.offered - max(0.0, fairness - MARGIN)
        return kept * length.admitted + 1.0 <= share * (kept * length.offered + 1.0)

    def decided(self, prompt_tokens: int, admitted: bool, now: float) -> None:
        """Count a request that was admitted, or refused on arrival."""
        self._tokens.settle(now)
        self._tokens.offered += prompt_tokens
        self._all.decided(admitted, now)
        self._lengths[length_of(prompt_tokens)].decided(admitted, now)

    def take_back(self, prompt_tokens: int, now: float) -> None:
        """Take back an admitted request, because an engine refused it: it took no part of the service."""
        self._tokens.settle(now)
        self._tokens.offered = max(0.0, self._tokens.offered - prompt_tokens)
        for count in (self._all, self._lengths[length_of(prompt_tokens)]):
            count.settle(now)
            count.offered = max(0.0, count.offered - 1.0)
            count.admitted = max(0.0, count.admitted - 1.0)

    def lost(self, prompt_tokens: int, now: float) -> None:
        """Take back the admission of a request that was refused after all."""
        self._tokens.settle(now)
        for count in (self._all, self._lengths[length_of(prompt_tokens)]):
            count.settle(now)
            count.admitted = max(0.0, count.admitted - 1.0)


def length_of(prompt_tokens: int) -> int:
    """Index of the length class, 0 to `LENGTHS` - 1."""
    return min(LENGTHS - 1, int(PER_DOUBLING * math.log2(max(1, prompt_tokens)) + 0.5))
