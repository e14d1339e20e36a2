"""Output length: quantiles of output tokens per route, learned as tokens stream.

An answer that is under way, was cut, or reached its cap is censored: its length so far is only a lower bound. So the
product-limit estimator is used (Kaplan and Meier 1958). For each length it needs, of the answers that reached it, the
share that ended there. If only ended answers counted, a model that begins to ramble would be noticed too late. If cut
answers counted as complete, lengths would be underestimated.

Lengths are counted in bins between edges. An answer censored within a bin counts half in that bin, as in life tables
(Cutler and Ederer 1958).
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.histograms import edge_of, log_edges
from gateway.core.estimators.memory import Remembering, objects_in, rows_in

EDGES: Final = log_edges(1.0, 65536.0, 0.12)
SHRINK: Final = 20.0
"""The estimate of the parent bucket counts as much as this many answers of the bucket itself."""
OWN: Final = 10.0 * SHRINK
"""A bucket with this many answers no longer follows each update of its parent."""
REFRESH: Final = 256
"""New answers are counted in batches. A batch has an eighth as many answers as the bucket, and at most this many."""
PASSING: Final = 0.1
"""A running answer adds this much to a batch each time it passes an edge; an ended answer adds 1."""
KEEP: Final = 2000.0
"""Memory in answers: when a bucket has twice this number, its counts are halved."""
LONG: Final = 0.99
MIN_KNOWN: Final = 500.0
"""Before a (model, tier) has this many answers, no answer counts as overlong."""
PRIOR_TOKENS = (16.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Prior: before any answer, these lengths are equally likely."""


class Bucket(Remembering):
    """Output lengths of one group of requests, shrunk towards the lengths of a larger group, its parent."""

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
        """Number of updates; the root counts the updates of all buckets."""
        self._as_of = -1
        """The root's number of updates when the table was last rebuilt."""
        self._ended = [0.0] * (len(EDGES) + 1)
        """Number of answers that ended between edge i - 1 and edge i."""
        self._passed = [0.0] * (len(EDGES) + 1)
        """Number of answers that passed edge i, minus the number that passed edge i - 1."""
        self._fresh: list[tuple[int, int, bool]] = []
        self._due = 0.0
        self._above: list[float] = []
        """The table: P(output > edge i)."""
        self._longest = 0
        """Index of the last bin that any answer has reached, in this bucket or its parents."""
        self.seen = 0.0
        """Answers counted so far, including those under way."""
        self._median = self._mean = 1.0
        self._rest: list[float] = []
        """Integral of P(output > tokens) from edge i on."""
        if parent is None:
            for tokens in PRIOR_TOKENS:
                self._count(0, edge_of(EDGES, tokens), True)

    def remembered(self) -> tuple[str, ...]:
        return "_ended", "_passed", "_longest", "seen"

    def recall(self, memory: object, shift_s: float) -> None:
        """Take over the counts. Parents go first."""
        super().recall(memory, shift_s)
        self._root._taken += 1  # the tables of all buckets are outdated
        self._read()

    @property
    def median(self) -> float:
        """Median output tokens of an answer."""
        self._refresh()
        return self._median

    @property
    def mean(self) -> float:
        """Mean output tokens of an answer, at least 1."""
        self._refresh()
        return self._mean

    def more(self, tokens: int) -> float:
        """Mean tokens still to come of an answer that has `tokens` and goes on: E[O - g | O > g], g = `tokens`."""
        self._refresh()
        i = edge_of(EDGES, float(tokens))
        if i >= self._longest or self._above[i] <= 0.0:
            # Longer than any answer seen: a power law is assumed, so the expected rest grows with the length.
            return 0.5 * tokens
        return (EDGES[i] - tokens) + self._rest[i] / self._above[i]

    def add(self, tokens: int, told: int = 0) -> None:
        """Learn that an answer ended by itself after `tokens` (>= 1). `told`: number of edges that `passes` has already
        counted for this answer.
        """
        self._see(told, _bin(tokens), True)

    def passes(self, tokens: int, told: int) -> int:
        """Learn that an answer reached `tokens`, and goes on or was cut.

        `told`: the number of passed edges that the last call returned, at first 0. Returns the new number.
        """
        if tokens <= EDGES[told]:
            return told
        index = _bin(tokens)
        if index > told:
            self._see(told, index, False)
        return index

    def is_long(self, tokens: int) -> bool:
        """Whether 99% of the answers are shorter than `tokens`; False until there are enough answers."""
        known = self if self._parent is None else self._parent
        return known.seen >= MIN_KNOWN and tokens > self.quantile(LONG)

    def _see(self, told: int, index: int, ended: bool) -> None:
        self._fresh.append((told, index, ended))
        self._due += 1.0 if ended else PASSING
        if self._due >= min(REFRESH, 4.0 + self.seen / 8.0):
            self._take(self._fresh)
            self._fresh, self._due = [], 0.0

    def _take(self, fresh: list[tuple[int, int, bool]]) -> None:
        """Count answers in this bucket and all its parents."""
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

    def _refresh(self) -> None:
        """Rebuild the table if any bucket was updated, since all buckets are shrunk towards the root.

        The table depends only on the counts, never on the time of a read: a read must not change later results.
        """
        if self._as_of != self._root._taken and self.seen < OWN:
            self._as_of = self._root._taken
            self._read()

    def _read(self) -> None:
        parent = self._parent
        broader: list[float] = []
        if parent is not None:
            parent._refresh()
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
                # The parent adds the weight of SHRINK answers, also in bins that no answer of this bucket has reached.
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
            # Trapezoids between edges, since `exceeds` interpolates linearly.
            rest[i - 1] = rest[i] + 0.5 * (above[i - 1] + above[i]) * (EDGES[i] - EDGES[i - 1])
        self._rest = rest
        self._mean = max(1.0, 0.5 * (1.0 + above[0]) * EDGES[0] + rest[0])
        self._median = self.quantile(0.5)

    def exceeds(self, tokens: float) -> float:
        """P(output > tokens), interpolated linearly between edges."""
        i = edge_of(EDGES, tokens)
        if i >= len(EDGES):
            return 0.0
        self._refresh()
        low, high_p = (EDGES[i - 1], self._above[i - 1]) if i else (0.0, 1.0)
        low_p = self._above[i]
        return high_p + (low_p - high_p) * (tokens - low) / (EDGES[i] - low)

    def quantile(self, q: float) -> float:
        """The `q` quantile (0-1) of output tokens, at most the length of the longest answer seen."""
        self._refresh()
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

    def longest(self, quantile: float, up_to: int | None) -> float | None:
        """A low estimate of a `quantile` (0-1) of output tokens, over the answers with at most `up_to` tokens; None:
        over all answers.

        It is two standard errors below the best estimate: if a few answers made the tail look too long, replicas would
        be left empty. Returns None if so few answers have ended that none is expected above the quantile. Then the
        prior lengths would decide, since answers under way show little of the tail.
        """
        ended = sum(self._ended)
        if ended * (1.0 - quantile) < 1.0:
            return None
        low = max(0.5, quantile - 2.0 * math.sqrt(quantile * (1.0 - quantile) / ended))
        if up_to is None:
            return self.quantile(low)
        return min(float(up_to), self.quantile(low * (1.0 - self.exceeds(float(up_to)))))


def _bin(tokens: int) -> int:
    return min(edge_of(EDGES, float(tokens)), len(EDGES) - 1)


class OutputLengths:
    """Buckets of output lengths in four levels: all requests, by model, by (model, tier), by (model, tier, prompt
    length).

    Prompt lengths are grouped by powers of two. A bucket with few answers follows its parent, one level up.
    """

    def __init__(self) -> None:
        self._root = Bucket(None)
        self._buckets: dict[tuple[str, str], dict[int, Bucket]] = {}
        """By (model, tier), then by the number of bits of the prompt's length. -1 stands for any length, tier "" for
        any tier.
        """
        self._of_tier: dict[str, list[Bucket]] = {}
        """The buckets for prompts of any length, by tier."""
        self._latest = self._root
        """The latest result of `bucket`, and its key: a request asks several times."""
        self._latest_model = self._latest_tier = ""
        self._latest_bits = -1

    def __len__(self) -> int:
        return sum(len(group) for group in self._buckets.values())

    def memory(self) -> dict[str, object]:
        """The counts of all buckets, parents first."""
        groups = self._buckets.items()
        rows = [(model, tier, bits, b.memory()) for (model, tier), group in groups for bits, b in group.items()]
        return {"all": self._root.memory(), "buckets": rows}

    def recall(self, memory: object) -> None:
        """Take over the counts of a predecessor."""
        known = objects_in(memory)
        self._root.recall(known.get("all"), 0.0)
        for row in rows_in(known.get("buckets")):
            match row:
                case [str(model), str(tier), int(bits), counts]:
                    self._new(model, tier, bits).recall(counts, 0.0)

    def bucket(self, model: str, tier: str, prompt_tokens: int) -> Bucket:
        """The narrowest bucket of a request with these properties, for learning. It is created if it does not exist."""
        bits = prompt_tokens.bit_length()
        if model is not self._latest_model or tier is not self._latest_tier or bits != self._latest_bits:
            group = self._buckets.get((model, tier))
            found = None if group is None else group.get(bits)
            self._latest = found if found is not None else self._new(model, tier, bits)
            self._latest_model, self._latest_tier, self._latest_bits = model, tier, bits
        return self._latest

    def known(self, model: str, tier: str, prompt_tokens: int) -> Bucket:
        """The narrowest existing bucket of a request with these properties, for forecasts. A new bucket would predict
        the same as its parent.
        """
        group = self._buckets.get((model, tier)) or self._buckets.get((model, ""))
        if group is None:
            return self._root
        found = group.get(prompt_tokens.bit_length())
        return found if found is not None else group[-1]

    def longest(self, tier: str, quantile: float, up_to: int | None) -> float | None:
        """The largest `Bucket.longest` over all models of this tier; None until one is known."""
        found = [bucket.longest(quantile, up_to) for bucket in self._of_tier.get(tier, ())]
        return max((tokens for tokens in found if tokens is not None), default=None)

    def _new(self, model: str, tier: str, bits: int) -> Bucket:
        group = self._buckets.get((model, tier))
        if group is None:
            whole = Bucket(self._new(model, "", -1) if tier else self._root)
            group = self._buckets[model, tier] = {-1: whole}
            self._of_tier.setdefault(tier, []).append(whole)
        found = group.get(bits)
        if found is None:
            found = group[bits] = Bucket(group[-1])
        return found
