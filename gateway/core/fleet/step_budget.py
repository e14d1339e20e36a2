"""Mean step of a replica with its present requests, compared with the longest step that its TPOT objectives allow.

    step = (base + per sequence x n + per context token x C) / (1 - u),    u = per prompt token x prompt tokens/s

n sequences run, and every step gives each of them one token. C is their mean context while they run: the present one,
and half of the output still to come. Prompts of newcomers are read in the same steps. At the rate of the last seconds,
prompts take the share u of the engine's time. So each request slows all others there: by its prompt at once, by its
sequence and context until it ends.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.latency_model import STEP_AND_A_HALF
from gateway.core.queueing.rates import Rate
from gateway.core.snapshot import CapacityBound

PROMPTS_TAU_S: Final = 5.0
"""Time constant of the prompt rate. TPOT is a mean over an answer, and most answers take longer."""

MAX_SHARE: Final = 0.95
"""Upper bound on the share of a step that prompts take."""

DECODE_WEIGHT: Final = 1 / 32
"""Weight of a step after the first token against one before it.

At 1 (the sum of all latencies) load outweighs caches: 8B on A100, eight replicas, 26 requests/s: .61 of the prompt
tokens cached and .84 good, against .68 and .87.
"""


class StepPrices:
    """Learned costs of one replica's steps, in seconds."""

    __slots__ = ("base_s", "context_s", "prompt_s", "sequence_s")

    def __init__(self, base_s: float, sequence_s: float, context_s: float, prompt_s: float) -> None:
        self.base_s = base_s
        self.sequence_s = sequence_s
        """Per sequence."""
        self.context_s = context_s
        """Per token of context that the step reads."""
        self.prompt_s = prompt_s
        """Per token of a prompt that is read in the same step."""


class StepBudget:
    """Sums over one replica's requests, the prices, and the limit on the mean step."""

    __slots__ = ("_prompts", "growth_tokens", "limit_s", "overfilled_at", "prices", "sequences")

    def __init__(self) -> None:
        self.sequences = 0
        self.growth_tokens = 0.0
        """Output tokens still expected of them."""
        self._prompts = Rate(PROMPTS_TAU_S)
        self.prices: StepPrices | None = None
        """None until they are known."""
        self.limit_s = math.inf
        """Longest mean step that keeps the TPOT objectives in use here; inf without one."""
        self.overfilled_at = -math.inf
        """When a request was last sent beyond the step limit or the KV cache, or before there was a step limit. Only
        tiers without enforced admission do that."""

    def add(self, sequences: int, unread_tokens: int, growth_tokens: float, now: float) -> None:
        """A request was sent."""
        self.sequences += sequences
        self.growth_tokens += growth_tokens
        self._prompts.add(now, unread_tokens)

    def overfill(self, bound: CapacityBound | None, now: float) -> None:
        """A request that no learned bound holds back is about to be sent. `bound`: what would hold it back."""
        if bound is CapacityBound.TPOT or bound is CapacityBound.KV or self.limit_s == math.inf:
            self.overfilled_at = now

    def grow(self, more_tokens: float) -> None:
        """`more_tokens` more tokens of output are expected; fewer if negative."""
        self.growth_tokens += more_tokens

    def remove(self, sequences: int, growth_tokens: float) -> None:
        """A request has ended."""
        self.sequences -= sequences
        self.growth_tokens -= growth_tokens
        if not self.sequences:
            self.growth_tokens = 0.0  # drops rounding errors when no request is left

    def prompts_per_s(self, now: float) -> float:
        """Unread prompt tokens sent per second, lately."""
        return self._prompts.per_s(now)

    def prompt_share(self, now: float) -> float:
        """Share of the engine's time that prompts take at the rate of the last seconds; may be above 1."""
        return 0.0 if self.prices is None else self.prices.prompt_s * self._prompts.per_s(now)

    def decode_s(self, held_tokens: int, more: int = 0) -> float:
        """Seconds of a step without prompts, of the present requests and `more` like them. Prices must be known."""
        prices, n = self.prices, self.sequences
        assert prices is not None
        if not n:
            return prices.base_s + more * prices.sequence_s
        context = held_tokens + 0.5 * self.growth_tokens
        return prices.base_s + (prices.sequence_s * n + prices.context_s * context) * (n + more) / n

    def request_tokens(self, held_tokens: int) -> float | None:
        """Price of a request in flight for a newcomer, in prompt tokens; None before prices are known.

        It adds its sequence and context to each step: fully to the one and a half before the newcomer's first token, at
        a lower weight to later ones. Dividing by the cost of a prompt token gives tokens.
        """
        prices, n = self.prices, self.sequences
        if prices is None or not n or prices.prompt_s <= 0.0:
            return None
        step_s = prices.sequence_s + prices.context_s * held_tokens / n
        return (STEP_AND_A_HALF + DECODE_WEIGHT * self.growth_tokens / n) * step_s / prices.prompt_s

    def step_s(self, held_tokens: int, now: float) -> float | None:
        """The mean step with the prompts of the last seconds; None before prices are known."""
        if self.prices is None:
            return None
        return self.decode_s(held_tokens) / max(1.0 - MAX_SHARE, 1.0 - self.prompt_share(now))

    def places(self, held_tokens: int, now: float) -> float:
        """How many more requests like the present ones keep the step within the limit; inf where nothing bounds it."""
        if self.limit_s == math.inf or not self.sequences or self.prices is None:
            return math.inf
        each_s = (self.decode_s(held_tokens) - self.prices.base_s) / self.sequences
        left_s = self.limit_s * (1.0 - self.prompt_share(now)) - self.decode_s(held_tokens)
        return left_s / each_s if each_s > 0.0 else math.inf

    def has_room(self, held_tokens: int, now: float) -> bool:
        """Whether the step stays within the limit with one more request like the present ones.

        The first always does.
        """
        if self.limit_s == math.inf or not self.sequences or self.prices is None:
            return True
        return self.decode_s(held_tokens, 1) <= self.limit_s * (1.0 - self.prompt_share(now))
