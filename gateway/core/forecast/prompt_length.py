"""Prompt length in tokens, estimated from bytes by the ratios that engines report."""

from __future__ import annotations

import math
from typing import Final

# Before anything is learned: English text is about 4 bytes per token, code about 3. CJK text has about one token per
# character of 3 bytes. The prior errs high for the high estimate, and low for the low one.
PRIOR_HIGH: Final = 0.40
PRIOR_LOW: Final = 0.12
HIGH_QUANTILE: Final = 0.98
LOW_QUANTILE: Final = 0.02
MIN_STEP: Final = 0.01
TEMPLATE_TOKENS: Final = 16
MAX: Final = 4096


class QuantileTracker:
    """A running quantile of positive samples, by stochastic approximation (Robbins-Monro) on their logarithm.

    The step shrinks as 1/n down to a floor, so it learns fast and keeps following drift.
    """

    __slots__ = ("_down", "_n", "_quantile", "_up", "value")

    def __init__(self, quantile: float, prior: float) -> None:
        self._quantile = quantile
        self._n = 0
        self._up = self._down = 1.0
        self.value = prior
        """The estimate."""

    def add(self, sample: float) -> None:
        """Learn from one sample > 0."""
        if self._n * MIN_STEP < 1.0:
            self._n += 1
            step = max(1.0 / (self._n + 1), MIN_STEP)
            # A step on the logarithm is a factor on the value; once small enough, it stays the same.
            self._up = math.exp(step * self._quantile)
            self._down = math.exp(-step * (1.0 - self._quantile))
        self.value *= self._up if sample > self.value else self._down


class _Ratio:
    """Tokens per byte of one model in one length bucket."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.high = QuantileTracker(HIGH_QUANTILE, PRIOR_HIGH)
        self.low = QuantileTracker(LOW_QUANTILE, PRIOR_LOW)

    def add(self, ratio: float) -> None:
        self.high.add(ratio)
        self.low.add(ratio)


class PromptEstimator:
    """Low and high estimates of prompt tokens from prompt bytes, per model and power-of-two length bucket.

    Buckets are needed because the chat template is a fixed cost that dominates short prompts. A ratio learned from
    short prompts would send long ones to the wrong pool. A bucket without samples uses its nearest shorter neighbour
    that has some, else the prior. Under a catch-all, clients may invent model names: beyond `MAX` ratios the oldest is
    forgotten.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, int], _Ratio] = {}

    def estimate(self, model: str, prompt_bytes: int) -> tuple[int, int]:
        """(low, high): about 2% of prompts are shorter than the first and 2% longer than the second."""
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

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """An engine counted `prompt_tokens` in a prompt of `prompt_bytes`."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        key = (model, prompt_bytes.bit_length())
        ratio = self._ratios.get(key)
        if ratio is None:
            if len(self._ratios) == MAX:
                del self._ratios[next(iter(self._ratios))]
            ratio = self._ratios[key] = _Ratio()
        ratio.add(prompt_tokens / prompt_bytes)
