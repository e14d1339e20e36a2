"""Step budget: compares a replica's mean step with the longest step that the TPOT and e2e objectives allow.

    step = (base + per sequence x n + per context token x C) / (1 - u),    u = per prompt token x prompt tokens/s

Here n is the number of running sequences. Each step gives each of them one token. C is the sum of their mean contexts.
A mean context is the present context plus half of the output still to come. Prompts of new requests are read in the
same steps. At the rate of the last seconds, prompts take the share u of the engine's time. So each request slows all
others there: by its prompt at once, by its sequence and context until it ends.

The steps that streams show correct this prediction within seconds, whatever made it wrong. Its `drift` is the seconds
seen, divided by those predicted for the same steps. A small drift is mostly chance, so it is shrunk towards 1.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.latency_model import STEP_AND_A_HALF
from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.rates import Decay, Rate
from gateway.core.estimators.spread import PRIOR_DEVIATION
from gateway.core.sample import NO_LOAD
from gateway.core.snapshot import CapacityBound

PROMPTS_TAU_S: Final = 5.0
"""Time constant (seconds) of the rate of prompt tokens. It is short, because TPOT is a mean over an answer, and most
answers take longer.
"""

MAX_SHARE: Final = 0.95
"""Upper bound on u in `step_s`."""

DRIFT_SPREAD: Final = PRIOR_DEVIATION
"""Log-drifts below this are mostly chance: it is the deviation of a TPOT from its forecast before any is measured.

Of warm replicas at 1x and 1.5x, nine cells of six engines, the log-drift is within .3 for 98% of the time.
"""

DECODE_WEIGHT: Final = 1 / 32
"""Weight, in the price of a request, of a step after the first token. A step before the first token has weight 1.

With weight 1, the price is the sum of all latencies, and the load of a replica matters too much compared with its
cache. Measured with an 8B model on eight A100 at 26 requests/s: .61 of the prompt tokens were cached and .84 of the
requests good. With this weight the values are .68 and .87.
"""


class StepPrices:
    """Learned costs of one replica's steps, in seconds. `base_s`: fixed cost of a step."""

    __slots__ = ("base_s", "context_s", "prompt_s", "sequence_s")

    def __init__(self, base_s: float, sequence_s: float, context_s: float, prompt_s: float) -> None:
        self.base_s = base_s
        self.sequence_s = sequence_s
        """Cost per running sequence."""
        self.context_s = context_s
        """Cost per token of context."""
        self.prompt_s = prompt_s
        """Cost per token of a prompt that is read in the same step."""


class StepBudget(Remembering):
    """The load of one replica, the costs of its steps, and the limit on its mean step."""

    __slots__ = (
        "_decay",
        "_planned_s",
        "_prompts",
        "_seen_s",
        "drift",
        "growth_tokens",
        "limit_s",
        "others",
        "overfilled_at",
        "prices",
        "sequences",
    )

    def __init__(self) -> None:
        self.sequences = 0
        self.growth_tokens = 0.0
        """Output tokens that the present requests are still expected to get."""
        self.others = NO_LOAD
        """Load by requests of other gateways, as they told it."""
        self._prompts = Rate(PROMPTS_TAU_S)
        self.drift = 1.0
        """Factor on predicted steps, from the steps that streams have shown lately; 1 without evidence."""
        self._decay = Decay(PROMPTS_TAU_S)
        self._seen_s = self._planned_s = 0.0
        """Seconds of all streams between their reports, and those predicted for the same steps, both forgotten by
        `_decay`.
        """
        self.prices: StepPrices | None = None
        """Costs of a step; None until known."""
        self.limit_s = math.inf
        """Longest mean step, in seconds, that keeps the TPOT and e2e objectives in use here; inf without any."""
        self.overfilled_at = -math.inf
        """Time when a request was last sent beyond the step limit or the KV cache, or before the costs of a step were
        known.

        Only tiers without enforced admission send such requests. While all learned slots are in use too, a send does
        not count: counting it brought no gain.
        """

    def remembered(self) -> tuple[str, ...]:
        return ("_prompts",)

    @property
    def total_sequences(self) -> int:
        """Sequences of this gateway, and of others that told their requests."""
        return self.sequences + self.others.in_flight

    @property
    def total_growth_tokens(self) -> float:
        """Output tokens that all these requests are still expected to get."""
        return self.growth_tokens + self.others.growth_tokens

    def add(self, sequences: int, unread_tokens: int, growth_tokens: float, now: float) -> None:
        """Add a request that was sent."""
        self.sequences += sequences
        self.growth_tokens += growth_tokens
        self._prompts.add(now, unread_tokens)

    def take_back(self, unread_tokens: int, at: float, now: float) -> None:
        """Take back prompt tokens that were sent at `at` and never read."""
        self._prompts.take_back(at, now, unread_tokens)

    def overfill(self, bound: CapacityBound | None, now: float) -> None:
        """Record that the next request to be sent is exempt from learned bounds, and exceeds `bound`, if any."""
        if bound is CapacityBound.TPOT or bound is CapacityBound.KV or self.prices is None:
            self.overfilled_at = now

    def grow(self, more_tokens: float) -> None:
        """Add `more_tokens` to the expected output; it may be negative."""
        self.growth_tokens += more_tokens

    def remove(self, sequences: int, growth_tokens: float) -> None:
        """Remove a request that has ended."""
        self.sequences -= sequences
        self.growth_tokens -= growth_tokens
        if not self.sequences:
            self.growth_tokens = 0.0  # 0 when no request is left, so rounding errors do not add up
            self._seen_s = self._planned_s = 0.0
            self.drift = 1.0  # an idle replica shows no steps

    def saw(self, steps: int, seconds: float, held_tokens: int, now: float) -> None:
        """Learn that a stream got `steps` (>= 1) tokens in the last `seconds`, under the present load."""
        if self.prices is None:
            return
        kept = self._decay.forget(now)
        self._seen_s = self._seen_s * kept + seconds
        self._planned_s = self._planned_s * kept + steps * self._mean_s(self.decode_s(held_tokens), now)
        if self._planned_s <= 0.0:
            return  # all prices of decoding are zero so far: there is nothing to correct
        # One more stream that runs as predicted is assumed, because few gaps prove little.
        weight = self._seen_s / (self._seen_s + PROMPTS_TAU_S)
        drift = weight * math.log(self._seen_s / self._planned_s)
        square = drift * drift
        self.drift = math.exp(drift * square / (square + DRIFT_SPREAD * DRIFT_SPREAD))

    def _mean_s(self, decode_s: float, now: float) -> float:
        """The mean step, if it takes `decode_s` without prompts, and drift is left out. Prices must be known."""
        return decode_s / max(1.0 - MAX_SHARE, 1.0 - self.prompt_share(now))

    def own_prompt_tokens_per_s(self, now: float) -> float:
        """Unread prompt tokens that this gateway sent per second, over the last seconds."""
        return self._prompts.per_s(now)

    def prompt_tokens_per_s(self, now: float) -> float:
        """Unread prompt tokens that all gateways sent per second, over the last seconds."""
        return self._prompts.per_s(now) + self.others.prompt_tokens_per_s

    def prompt_share(self, now: float) -> float:
        """Share u of the engine's time that prompts take, at the rate of the last seconds. It may be above 1."""
        return 0.0 if self.prices is None else self.prices.prompt_s * self.prompt_tokens_per_s(now)

    def decode_s(self, held_tokens: int, more: int = 0) -> float:
        """Seconds of a step without prompts, for the present requests and `more` requests like them. Prices must be
        known.
        """
        prices, n = self.prices, self.total_sequences
        assert prices is not None
        if not n:
            return prices.base_s + more * prices.sequence_s
        context = held_tokens + 0.5 * self.total_growth_tokens
        return prices.base_s + (prices.sequence_s * n + prices.context_s * context) * (n + more) / n

    def request_tokens(self, held_tokens: int) -> float | None:
        """How much one request in flight delays a new request, in prompt tokens; None until prices are known.

        Each step takes longer by the request's sequence and context. The 1.5 steps before the new request's first token
        count fully, later steps with `DECODE_WEIGHT`. The delay is divided by the cost of a prompt token.
        """
        prices, n = self.prices, self.total_sequences
        if prices is None or not n or prices.prompt_s <= 0.0:
            return None
        step_s = prices.sequence_s + prices.context_s * held_tokens / n
        return (STEP_AND_A_HALF + DECODE_WEIGHT * self.total_growth_tokens / n) * step_s / prices.prompt_s

    def step_s(self, held_tokens: int, now: float) -> float | None:
        """Mean step in seconds, with prompts at the rate of the last seconds; None until prices are known."""
        if self.prices is None:
            return None
        return self.drift * self._mean_s(self.decode_s(held_tokens), now)

    def places(self, held_tokens: int, now: float) -> float:
        """How many more requests like the present ones keep the step within the limit; inf without a limit."""
        if self.limit_s == math.inf or not self.total_sequences or self.prices is None:
            return math.inf
        each_s = (self.decode_s(held_tokens) - self.prices.base_s) / self.total_sequences
        allowed_s = self.limit_s / self._mean_s(self.drift, now)
        return (allowed_s - self.decode_s(held_tokens)) / each_s if each_s > 0.0 else math.inf

    def has_room(self, held_tokens: int, now: float) -> bool:
        """Whether the step stays within the limit with one more request like the present ones.

        An idle replica always has room for one request.
        """
        if self.limit_s == math.inf or not self.total_sequences or self.prices is None:
            return True
        return self.drift * self._mean_s(self.decode_s(held_tokens, 1), now) <= self.limit_s
