"""Estimates the tokens of a prompt from its bytes. The ratio is learned from the token counts that engines report."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering, rows_in

# Priors in tokens per byte, used until a ratio is learned. English text has about .25, code .33. CJK text has .33: a
# token per character of 3 bytes. The high prior is above all these values, and the low prior is below them.
PRIOR_HIGH: Final = 0.40
PRIOR_LOW: Final = 0.12
HIGH_QUANTILE: Final = 0.98
LOW_QUANTILE: Final = 0.02
MIN_STEP: Final = 0.01
CERTAIN: Final = 4.3
"""Deviations of log(tokens per byte) below its mean at which one prompt in 100,000 has fewer tokens, if it is normal.
"""
PRIOR_LOG: Final = math.log(PRIOR_LOW * PRIOR_HIGH) / 2.0
PRIOR_VARIANCE: Final = (math.log(PRIOR_HIGH / PRIOR_LOW) / 4.1) ** 2
"""Mean and variance of log(tokens per byte), if the priors are its 2% and 98% quantiles, 4.1 deviations apart."""
MIN_VARIANCE: Final = PRIOR_VARIANCE / 4.0
"""However alike all prompts were, the next one may be of another language or application. So at least half of the prior
deviation is kept. With `CERTAIN`, a prompt is then refused if it is about twice as long as the context.
"""
TEMPLATE_TOKENS: Final = 16
MAX: Final = 4096


class QuantileTracker(Remembering):
    """A running quantile of positive samples, by stochastic approximation (Robbins-Monro) of their logarithms.

    The step shrinks as 1/n down to a floor, so the quantile is learned fast and still follows drift.
    """

    __slots__ = ("_down", "_n", "_quantile", "_up", "value")

    def __init__(self, quantile: float, prior: float) -> None:
        self._quantile = quantile
        self._n = 0
        self._up = self._down = 1.0
        self.value = prior
        """The estimate."""

    def remembered(self) -> tuple[str, ...]:
        return "value", "_n", "_up", "_down"

    def add(self, sample: float) -> None:
        """Learn from one sample > 0."""
        if self._n * MIN_STEP < 1.0:
            self._n += 1
            step = max(1.0 / (self._n + 1), MIN_STEP)
            # A step of the logarithm multiplies the value. Both factors are stored, because the step soon stays at its
            # floor.
            self._up = math.exp(step * self._quantile)
            self._down = math.exp(-step * (1.0 - self._quantile))
        self.value *= self._up if sample > self.value else self._down


class _Ratio(Remembering):
    """Tokens per byte of one model in one length bucket."""

    __slots__ = ("_mean", "_samples", "_variance", "high", "low")

    def __init__(self) -> None:
        self._samples = 0
        self._mean = PRIOR_LOG
        self._variance = PRIOR_VARIANCE
        self.high = QuantileTracker(HIGH_QUANTILE, PRIOR_HIGH)
        self.low = QuantileTracker(LOW_QUANTILE, PRIOR_LOW)

    def remembered(self) -> tuple[str, ...]:
        return "high", "low", "_samples", "_mean", "_variance"

    def add(self, ratio: float) -> None:
        self.high.add(ratio)
        self.low.add(ratio)
        # The prior counts as one sample of the variance, and not at all in the mean.
        self._samples += 1
        off = math.log(ratio) - self._mean
        self._mean += max(MIN_STEP, 1.0 / self._samples) * off
        self._variance += max(MIN_STEP, 1.0 / (self._samples + 1)) * (off * off - self._variance)

    @property
    def lowest(self) -> float:
        """Ratio below which one prompt in 100,000 is."""
        variance = max(MIN_VARIANCE, self._variance) * (1.0 + 1.0 / self._samples)
        return math.exp(self._mean - CERTAIN * math.sqrt(variance))


class PromptEstimator:
    """Estimates prompt tokens from prompt bytes, with a low and a high value. Each model and each power of two of bytes
    has its own ratio.

    Ratios differ by length, because the chat template adds a fixed number of tokens, which dominates short prompts. A
    ratio learned from short prompts would send long prompts to the wrong pool. A length without samples uses the next
    shorter length that has some, or else the prior. If the policy accepts any model name, clients may invent names:
    beyond `MAX` ratios the oldest is forgotten.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], _Ratio] = {}

    def memory(self) -> list[object]:
        """The learned ratios."""
        return [(model, bits, ratio.memory()) for (model, bits), ratio in self._ratios.items()]

    def recall(self, memory: object) -> None:
        """Take over the ratios of a predecessor."""
        for row in rows_in(memory)[-MAX:]:
            match row:
                case [str(model), int(bits), told]:
                    ratio = self._ratios[model, bits] = _Ratio()
                    ratio.recall(told, 0.0)

    def estimate(self, model: str, prompt_bytes: int) -> tuple[int, int]:
        """Estimated tokens (low, high): about 2% of prompts have fewer than `low`, and about 2% more than `high`."""
        bucket = prompt_bytes.bit_length()
        ratio = self._ratios.get((model, bucket))
        if ratio is None:
            for shorter in range(bucket - 1, max(bucket - 6, 0), -1):
                ratio = self._ratios.get((model, shorter))
                if ratio is not None:
                    break
            else:
                return int(prompt_bytes * PRIOR_LOW), int(prompt_bytes * PRIOR_HIGH) + TEMPLATE_TOKENS
        return int(prompt_bytes * min(ratio.low.value, ratio.high.value)), int(prompt_bytes * ratio.high.value) + 1

    def at_least(self, model: str, prompt_bytes: int) -> int:
        """Tokens that a prompt has at least, with certainty enough to refuse it; 0 before an engine has counted any
        prompt of its length. Ratios of shorter prompts do not count: the template makes them higher.
        """
        ratio = self._ratios.get((model, prompt_bytes.bit_length()))
        return 0 if ratio is None else int(prompt_bytes * ratio.lowest)

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn that an engine counted `prompt_tokens` in a prompt of `prompt_bytes`."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        key = (model, prompt_bytes.bit_length())
        ratio = self._ratios.get(key)
        if ratio is None:
            if len(self._ratios) == MAX:
                del self._ratios[next(iter(self._ratios))]
            ratio = self._ratios[key] = _Ratio()
        ratio.add(prompt_tokens / prompt_bytes)
