"""Learns the size of an engine's KV cache, in tokens of context, and how often the engine preempts requests."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.rates import Decay
from gateway.core.sample import Sample

MIN_FRACTION: Final = 0.05
"""The size is inferred only from scrapes in which at least this share (0-1) of the cache is in use."""
FOLLOW: Final = 0.2
PREEMPTIONS_TAU_S: Final = 60.0
MIN_SENT: Final = 0.01
"""Below this count of sent requests, the preemption ratio is 0. The count fades: that of one request falls
to this in five minutes.
"""
SPREAD: Final = 0.5
"""Free room kept in the cache, in standard deviations of the total context. One standard deviation is sqrt(n) x the
mean context of n requests.

Half a deviation is enough, because requests that end soon make room. Simulated engines then preempt one request in
1,000.
"""


def peak_tokens(held_tokens: float, growth_tokens: float) -> float:
    """Highest expected total context of the present requests, in tokens.

    Let n requests hold c tokens each, and let the tokens still to come be exponentially distributed with mean m. After
    t more tokens, they hold n exp(-t/m) (c + t) in total. If m <= c, the total only falls: ended requests free more
    than the others grow. Otherwise its maximum, at t = m - c, is n m exp(c/m - 1).
    """
    if growth_tokens <= held_tokens:
        return held_tokens
    return growth_tokens * math.exp(held_tokens / growth_tokens - 1.0)


class KvCache(Remembering):
    """Infers the cache size of one replica, from the context that it holds and from the share in use that scrapes
    report. Also counts preemptions.
    """

    __slots__ = ("_decay", "_preempted", "_sent", "_total", "capacity_tokens")

    def __init__(self) -> None:
        self.capacity_tokens: float | None = None
        """Size in tokens; None until a scrape has shown it."""
        self._total: int | None = None
        self._preempted = self._sent = 0.0
        """Numbers of preemptions and of requests sent, both forgotten by `_decay`."""
        self._decay = Decay(PREEMPTIONS_TAU_S)

    def remembered(self) -> tuple[str, ...]:
        return ("capacity_tokens",)

    def sent(self, now: float) -> None:
        """Count a request that was sent to the replica."""
        self._fade(now)
        self._sent += 1.0

    def scraped(self, sample: Sample, held_tokens: int, unsure_tokens: int, now: float) -> None:
        """Learn from a scrape. `held_tokens`: context held for this gateway; `unsure_tokens` of them may not be in the
        cache.

        Context that a shared engine holds for other users makes the cache look too small. Once those users are gone,
        the share in use may be below `MIN_FRACTION`. It still gives a lower bound on the size: the context held,
        divided by `MIN_FRACTION`. Without this bound, a size that is far too low would never be corrected, because the
        cache would stay nearly empty.
        """
        fraction, known = sample.kv_fraction, self.capacity_tokens
        if fraction is not None and fraction >= MIN_FRACTION and held_tokens > 0:
            seen = held_tokens / fraction
            self.capacity_tokens = seen if known is None else known + FOLLOW * (seen - known)
        elif fraction is not None and known is not None:
            least = (held_tokens - unsure_tokens) / MIN_FRACTION
            self.capacity_tokens = known + FOLLOW * max(0.0, least - known)
        if sample.preemptions is not None:
            if self._total is not None and sample.preemptions > self._total:
                self._fade(now)
                self._preempted += sample.preemptions - self._total
            self._total = sample.preemptions

    def has_room(self, requests: int, held_tokens: int, growth_tokens: float, headroom: float | None) -> bool:
        """Whether one more request may be sent to a replica that holds `held_tokens` of context for `requests`.

        `growth_tokens`: output tokens that these requests are still expected to produce. `headroom`: share (0-1) of the
        cache to leave free. None leaves room for the expected growth instead.
        """
        return self._left_tokens(requests, held_tokens, growth_tokens, headroom) > 0.0

    def places(self, requests: int, held_tokens: int, growth_tokens: float, headroom: float | None) -> float:
        """How many more requests like the present ones fit; inf if the size is unknown."""
        total = held_tokens + growth_tokens
        left = self._left_tokens(requests, held_tokens, growth_tokens, headroom)
        return left * requests / total if total > 0.0 else math.inf

    def _left_tokens(self, requests: int, held_tokens: int, growth_tokens: float, headroom: float | None) -> float:
        """Tokens of context that fit beside the present requests; inf if the size is unknown or no request is
        present.
        """
        capacity = self.capacity_tokens
        if capacity is None or not requests:
            return math.inf
        if headroom is not None:
            return (1.0 - headroom) * capacity - held_tokens
        total = held_tokens + growth_tokens
        return capacity - peak_tokens(held_tokens, growth_tokens) - SPREAD * total / math.sqrt(float(requests))

    @property
    def preemption_ratio(self) -> float:
        """Preemptions per request sent, over about the last minute. A healthy engine stays below .001."""
        return self._preempted / self._sent if self._sent >= MIN_SENT else 0.0

    def _fade(self, now: float) -> None:
        kept = self._decay.forget(now)
        self._preempted *= kept
        self._sent *= kept
