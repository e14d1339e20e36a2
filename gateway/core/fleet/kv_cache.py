"""Size of an engine's KV cache in tokens of context, and how often it preempts requests."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.request import Sample

MIN_FRACTION: Final = 0.05
"""Below this fill of the cache its size is not inferred."""
FOLLOW: Final = 0.2
PREEMPTIONS_TAU_S: Final = 60.0
MIN_SENT: Final = 0.01
"""Smallest count of sent requests in a ratio: one request after five minutes of forgetting."""
SPREAD: Final = 0.5
"""Room kept in the cache, in standard deviations of the total context: sqrt(n) mean contexts of n requests each.

Half a deviation is enough, since requests that end soon make up for an excess. With it, engines preempt one request in
1,000.
"""


def peak_tokens(held_tokens: float, growth_tokens: float) -> float:
    """Highest expected total context of the present requests, in tokens.

    n requests hold c tokens each, and end after m more, exponentially. After t tokens n exp(-t/m) (c + t) are held. If
    m <= c that only falls, since ends free more than the others grow by. Otherwise its maximum, at t = m - c, is n m
    exp(c/m - 1).
    """
    if growth_tokens <= held_tokens:
        return held_tokens
    return growth_tokens * math.exp(held_tokens / growth_tokens - 1.0)


class KvCache:
    """Cache size of one replica, from the context sent to it and the fill that scrapes report; and its preemptions."""

    __slots__ = ("_at", "_preempted", "_sent", "_total", "capacity_tokens")

    def __init__(self) -> None:
        self.capacity_tokens: float | None = None
        """None until a scrape has shown it."""
        self._total: int | None = None
        self._preempted = 0.0
        self._sent = 0.0
        self._at = 0.0

    def sent(self, now: float) -> None:
        """A request was sent to the replica."""
        self._fade(now)
        self._sent += 1.0

    def scraped(self, sample: Sample, held_tokens: int, unsure_tokens: int, now: float) -> None:
        """The replica was scraped while it held `held_tokens` for this gateway; `unsure_tokens` may not be cached.

        The context of other users of a shared engine makes the cache look smaller. Once they are gone, a nearly empty
        cache still gives a lower bound: its context at a fill of `MIN_FRACTION`. Without this bound, a size that is far
        too low would keep the cache too empty ever to be corrected.
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

        `growth_tokens`: output still expected of them. `headroom`: share (0-1) of the cache to leave free; None: the
        forecast decides.
        """
        return self._left_tokens(requests, held_tokens, growth_tokens, headroom) > 0.0

    def places(self, requests: int, held_tokens: int, growth_tokens: float, headroom: float | None) -> float:
        """How many more requests like the present ones fit; inf if unknown."""
        total = held_tokens + growth_tokens
        left = self._left_tokens(requests, held_tokens, growth_tokens, headroom)
        return left * requests / total if total > 0.0 else math.inf

    def _left_tokens(self, requests: int, held_tokens: int, growth_tokens: float, headroom: float | None) -> float:
        """Context that fits beside the present requests; inf if the size is unknown or no request is present."""
        capacity = self.capacity_tokens
        if capacity is None or not requests:
            return math.inf
        if headroom is not None:
            return (1.0 - headroom) * capacity - held_tokens
        total = held_tokens + growth_tokens
        return capacity - peak_tokens(held_tokens, growth_tokens) - SPREAD * total / math.sqrt(float(requests))

    @property
    def preemption_ratio(self) -> float:
        """Preemptions per request sent, of the last minute or so. A healthy engine stays below .001."""
        return self._preempted / self._sent if self._sent >= MIN_SENT else 0.0

    def _fade(self, now: float) -> None:
        kept = math.exp((self._at - now) / PREEMPTIONS_TAU_S)
        self._preempted *= kept
        self._sent *= kept
        self._at = now
