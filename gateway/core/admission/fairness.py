"""Prevents that prompts of one length are refused much more often than their tier.

Under overload a long prompt becomes doubtful sooner than a short one, because reading it takes more of its time. Left
alone, admission would refuse nearly all long prompts. So prompts of each length have a share of their tier's
admissions. Two lengths are distinguished by powers of two. A doubtful newcomer of a length is admitted if with it

    admitted of the length <= (admitted / offered of the tier - `fairness`) x offered of the length

over the last minute. If requests are valued by tokens, a prompt longer than the mean may not be refused more often at
all. An admitted long prompt waits for its turn like others: by latest start, it goes before most short ones.
"""

from __future__ import annotations

import math
from typing import Final

MEMORY_S: Final = 60.0
"""Requests are forgotten exponentially over so long."""
MARGIN: Final = 0.03
"""Margin (0-1) by which acceptances are planned closer: some requests are admitted and late."""
LENGTHS: Final = 24


class Admissions:
    """Requests offered and admitted lately."""

    __slots__ = ("_at", "admitted", "offered")

    def __init__(self) -> None:
        self.offered = self.admitted = 0.0
        self._at = 0.0

    def kept(self, now: float) -> float:
        """Share (0-1) of the counts that is left at `now`."""
        return math.exp((self._at - now) / MEMORY_S)

    def settle(self, now: float) -> None:
        """Forget up to `now`."""
        kept = self.kept(now)
        self.offered *= kept
        self.admitted *= kept
        self._at = now

    def decided(self, admitted: bool, now: float) -> None:
        """One more was offered."""
        self.settle(now)
        self.offered += 1.0
        if admitted:
            self.admitted += 1.0


class LengthFairness:
    """Admissions of one tier by the length of prompts."""

    __slots__ = ("_all", "_lengths", "_tokens")

    def __init__(self) -> None:
        self._all = Admissions()
        self._tokens = Admissions()
        """Tokens of their prompts."""
        self._lengths = [Admissions() for _ in range(LENGTHS)]

    def is_long(self, prompt_tokens: int) -> bool:
        """Whether this prompt is longer than the mean of those offered."""
        return prompt_tokens * self._all.offered > self._tokens.offered

    def is_owed(self, prompt_tokens: int, fairness: float, now: float) -> bool:
        """Whether a request of this length is to be admitted, though it is doubtful. `fairness` 1: never."""
        if fairness >= 1.0 or not self._all.offered:
            return False
        length = self._lengths[length_of(prompt_tokens)]
        kept = length.kept(now)
        share = self._all.admitted / self._all.offered - max(0.0, fairness - MARGIN)
        return kept * length.admitted + 1.0 <= share * (kept * length.offered + 1.0)

    def decided(self, prompt_tokens: int, admitted: bool, now: float) -> None:
        """A request was admitted, or refused on arrival."""
        self._tokens.settle(now)
        self._tokens.offered += prompt_tokens
        self._all.decided(admitted, now)
        self._lengths[length_of(prompt_tokens)].decided(admitted, now)

    def lost(self, prompt_tokens: int, now: float) -> None:
        """A request that was admitted was refused after all."""
        for count in (self._all, self._lengths[length_of(prompt_tokens)]):
            count.settle(now)
            count.admitted = max(0.0, count.admitted - 1.0)


def length_of(prompt_tokens: int) -> int:
    """All lengths between two powers of two count as one."""
    return min(LENGTHS - 1, prompt_tokens.bit_length())
