"""How long answers will be: quantiles of output tokens per route, learned as tokens stream.

An answer that is under way, was cut, or ran into its cap, says that answers may be at least so long, and no more: of
all that had so many tokens, so many ended there (the product-limit estimator, Kaplan and Meier 1958). Were only those
counted that have ended, a model that begins to ramble would be found out when its answers are over, and cutting the
long ones would make all that is left look short.

Tokens are counted by edges. Of those that are not known to have ended between two of them, nor to have passed the
second, half are taken to have been at risk there, as life tables do (Cutler and Ederer 1958).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from gateway.core.stats import log_edges

EDGES: Final = log_edges(1.0, 65536.0, 0.12)
SHRINK: Final = 20.0
"""Answers that the parent of a bucket counts for,"""
OWN: Final = 10.0 * SHRINK
"""and those of its own after which it leans on its parent so little that news from elsewhere can wait for them."""
REFRESH: Final = 256
"""News after which a bucket counts them, at the latest: after every eighth more than there were answers."""
PASSING: Final = 0.1
"""What an answer that has gone on counts for there, against one that has ended."""
KEEP: Final = 2000.0
"""Answers that are remembered, about: counts are halved when there are twice as many."""
LONG: Final = 0.99
MIN_KNOWN: Final = 500.0
"""Answers of a model and tier before a length is said to be unusual."""
PRIOR_TOKENS = (16.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Equally likely before anything is known."""


class Bucket:
    """Output lengths of one kind of request, drawn to those of the broader kind above it."""

    __slots__ = (
        "_above",
        "_as_of",
        "_due",
        "_ended",
        "_fresh",
        "_longest",
        "_mean",
        "_median",
        "_parent",
        "_passed",
        "_rest",
        "_root",
        "_taken",
        "seen",
    )

    def __init__(self, parent: Bucket | None) -> None:
        self._parent = parent
        self._root: Bucket = self if parent is None else parent._root
        self._taken = 0
        """How often news were counted; at the root, which hears of all."""
        self._as_of = -1
        """How many of these the table knows of."""
        self._ended = [0.0] * (len(EDGES) + 1)
        """Answers whose end lies between edge i - 1 and edge i,"""
        self._passed = [0.0] * (len(EDGES) + 1)
        """and of those that went beyond edge i, how many more than beyond edge i - 1."""
        self._fresh: list[tuple[int, int, bool]] = []
        self._due = 0.0
        self._above: list[float] = []
        """The table: P(output > edge i)."""
        self._longest = 0
        """The last bin that any answer has come to, here or above."""
        self.seen = 0.0
        """Answers that have begun to be told of."""
        self._median = self._mean = 1.0
        self._rest: list[float] = []
        """Integral of P(output > tokens) from edge i on."""
        if parent is None:
            for tokens in PRIOR_TOKENS:
                self._count(0, bisect_left(EDGES, tokens), True)

    @property
    def median(self) -> float:
        """Output tokens that half of the answers stay within."""
        self._look()
        return self._median

    @property
    def mean(self) -> float:
        """Output tokens of an answer in the mean, at least 1."""
        self._look()
        return self._mean

    def more(self, tokens: int) -> float:
        """Tokens that are still to come in the mean of answers that have so many and go on: E[O - g | O > g]."""
        self._look()
        i = bisect_left(EDGES, tokens)
        if i >= self._longest or self._above[i] <= 0.0:
            return 0.5 * tokens  # longer than any that was seen: as scale-free lengths go on
        return (EDGES[i] - tokens) + self._rest[i] / self._above[i]

    def add(self, tokens: int, told: int = 0) -> None:
        """An answer ended by itself after `tokens` (>= 1), of which `told` edges were passed before."""
        self._see(told, _bin(tokens), True)

    def passes(self, tokens: int, told: int) -> int:
        """An answer has `tokens` so far, and goes on or was cut; the edges it has passed, `told` of them before."""
        if tokens <= EDGES[told]:
            return told
        index = _bin(tokens)
        if index > told:
            self._see(told, index, False)
        return index

    def is_long(self, tokens: int) -> bool:
        """Whether all but one in a hundred are shorter, as far as that is known."""
        known = self if self._parent is None else self._parent
        return known.seen >= MIN_KNOWN and tokens > self.quantile(LONG)

    def _see(self, told: int, index: int, ended: bool) -> None:
        self._fresh.append((told, index, ended))
        self._due += 1.0 if ended else PASSING
        if self._due >= min(REFRESH, 4.0 + self.seen / 8.0):
            self._take(self._fresh)
            self._fresh, self._due = [], 0.0

    def _take(self, fresh: list[tuple[int, int, bool]]) -> None:
        """Count answers, here and in every bucket above."""
        for told, index, ended in fresh:
            self._count(told, index, ended)
            if told == 0:
                self.seen += 1.0
        if self.seen > 2.0 * KEEP:
            self._ended[:] = [count / 2.0 for count in self._ended]
            self._passed[:] = [count / 2.0 for count in self._passed]
            self.seen /= 2.0
        self._taken += 1
        if self._parent is not None:
            self._parent._take(fresh)
        if self.seen >= OWN:
            self._read()

    def _count(self, told: int, index: int, ended: bool) -> None:
        self._passed[told] += 1.0
        self._passed[index] -= 1.0
        if ended:
            self._ended[index] += 1.0
        if index > self._longest:
            self._longest = index

    def _look(self) -> None:
        """Make the table anew if there were news, here or elsewhere: all buckets lean on the root.

        It follows from what was counted, whenever that is: one who only asks must not change what others are told.
        """
        if self._as_of != self._root._taken and self.seen < OWN:
            self._as_of = self._root._taken
            self._read()

    def _read(self) -> None:
        parent = self._parent
        broader: list[float] = []
        if parent is not None:
            parent._look()
            broader = parent._above
            self._longest = max(self._longest, parent._longest)
        above: list[float] = []
        before = SHRINK
        came = passed = 0.0
        left = 1.0
        for i in range(self._longest + 1):
            passed += self._passed[i]
            ended = self._ended[i]
            known = max(0.0, passed) + ended
            risk = max(known, 0.5 * (came + known))
            came = max(0.0, passed)
            if broader:
                # The bucket above speaks for so many answers more, in those bins too that nobody has come to here.
                after = SHRINK * broader[i]
                risk += before
                ended += before - after
                before = after
            if ended > 0.0:
                left *= 1.0 - ended / risk
            above.append(left)
        self._above = above + [left] * (len(EDGES) - len(above))
        rest = [0.0] * (self._longest + 1)
        for i in range(self._longest, 0, -1):
            # The middle of an edge and the next, as `exceeds` has it.
            rest[i - 1] = rest[i] + 0.5 * (above[i - 1] + above[i]) * (EDGES[i] - EDGES[i - 1])
        self._rest = rest
        self._mean = max(1.0, 0.5 * (1.0 + above[0]) * EDGES[0] + rest[0])
        self._median = self.quantile(0.5)

    def exceeds(self, tokens: float) -> float:
        """P(output > tokens), between edges by interpolation."""
        i = bisect_left(EDGES, tokens)
        if i >= len(EDGES):
            return 0.0
        self._look()
        low, high_p = (EDGES[i - 1], self._above[i - 1]) if i else (0.0, 1.0)
        low_p = self._above[i]
        return high_p + (low_p - high_p) * (tokens - low) / (EDGES[i] - low)

    def quantile(self, q: float) -> float:
        """Output tokens that a share `q` (0-1) of answers stays within; no more than any was seen to have."""
        self._look()
        low, high = 0, self._longest
        above = self._above
        while low < high:
            middle = (low + high) // 2
            if above[middle] > 1.0 - q + 1e-12:
                low = middle + 1
            else:
                high = middle
        lowest, before = (EDGES[low - 1], above[low - 1]) if low else (0.0, 1.0)
        after = above[low]
        share = (before - (1.0 - q)) / (before - after) if before > after else 1.0
        return max(1.0, lowest + (EDGES[low] - lowest) * min(1.0, max(0.0, share)))


def _bin(tokens: int) -> int:
    return min(bisect_left(EDGES, tokens), len(EDGES) - 1)


class OutputLengths:
    """Buckets by (model, tier, power of two of the prompt's length), below (model, tier), below the model, below all.

    A bucket that has seen little leans on the one above it.
    """

    def __init__(self) -> None:
        self._root = Bucket(None)
        self.buckets: dict[tuple[str, str, int], Bucket] = {}

    def bucket(self, model: str, tier: str, prompt_tokens: int) -> Bucket:
        """The narrowest bucket of such a request, made if there was none of its kind: it will be told of one."""
        key = model, tier, prompt_tokens.bit_length()
        found = self.buckets.get(key)
        return found if found is not None else self._new(*key)

    def known(self, model: str, tier: str, prompt_tokens: int) -> Bucket:
        """The narrowest bucket that there is for such a request: a new one would say the same as the one above it."""
        found = self.buckets.get((model, tier, prompt_tokens.bit_length()))
        if found is None:
            found = self.buckets.get((model, tier, -1)) or self.buckets.get((model, "", -1)) or self._root
        return found

    def _new(self, model: str, tier: str, bits: int) -> Bucket:
        key = model, tier, bits
        found = self.buckets.get(key)
        if found is None:
            parent = self._root
            if bits >= 0:
                parent = self._new(model, tier, -1)
            elif tier:
                parent = self._new(model, "", -1)
            found = self.buckets[key] = Bucket(parent)
        return found
