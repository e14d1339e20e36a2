"""Distributions of prompt and answer lengths in tokens: fixed, uniform, log-normal, or fitted to public traces.

The Azure rows are mixtures of log-normal distributions. Lengths above a maximum are set to it, as in the trace. The
rows are fitted to the Azure LLM inference traces of 2023, by least squares on the distribution function, with extra
weight on mean, median and p99. Source: AzurePublicDataset, CC-BY 4.0; Patel et al., "Splitwise: Efficient generative
LLM inference using phase splitting", ISCA 2024. Trace -> fit:

                       mean           p50           p99
    conv   prompt   1155 -> 1157   1020 -> 1020   4142 -> 4142
           answer    211 ->  212    129 ->  129    601 ->  601
    code   prompt   2048 -> 2057   1469 -> 1470   7436 -> 7437
           answer     28 ->   28     13 ->   13    251 ->  250

The length of an answer is drawn independently of its prompt. In these traces they are nearly independent (rank
correlation .07 and -.02).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import NormalDist
from typing import Protocol


class LengthDistribution(Protocol):
    """A distribution of token counts."""

    def draw(self, draw: Random) -> int:
        """Draw a length (>= 1)."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Lengths between `least` and `most`, both included. If they are equal, the length is fixed."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.least} to {self.most} is not a range of lengths from 1 on")

    def draw(self, draw: Random) -> int:
        """Draw a length. Every draw takes the same number of random bits, whatever the range."""
        return self.least + int(draw.random() * (self.most - self.least + 1))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a mixture with weight `weight`: a log-normal with this median. `sigma`: standard deviation of the
    logarithm.
    """

    weight: float
    median: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of log-normals, rounded to whole tokens and clipped to `least` and `most`."""

    parts: tuple[Part, ...]
    most: int
    least: int = 1

    def draw(self, draw: Random) -> int:
        """Draw a length. A draw takes two random numbers: one picks the part, the other the quantile in it."""
        pick = draw.random()
        bounds = list(accumulate(part.weight for part in self.parts))
        part = self.parts[min(bisect(bounds, pick * bounds[-1]), len(self.parts) - 1)]
        return self._clipped(part.median * math.exp(part.sigma * _normal(draw.random())))

    def quantile(self, q: float) -> int:
        """The `q` quantile (0-1, exclusive) of the length."""
        low, high = 0.0, float(self.most)
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if self._below(middle) >= q else (middle, high)
        return self._clipped(high)

    def mean(self) -> float:
        """The mean length."""
        return self.least + sum(1 - self._below(n + 0.5) for n in range(self.least, self.most))

    def _below(self, tokens: float) -> float:
        if tokens <= 0:
            return 0.0
        total = sum(part.weight for part in self.parts)
        return sum(p.weight * NormalDist(math.log(p.median), p.sigma).cdf(math.log(tokens)) for p in self.parts) / total

    def _clipped(self, tokens: float) -> int:
        return min(max(round(tokens), self.least), self.most)


_STANDARD = NormalDist()


def _normal(u: float) -> float:
    """A standard normal variable by inversion of `u` (0-1). So a draw takes exactly one random number, and random
    streams stay in step.
    """
    return _STANDARD.inv_cdf(u) if u > 0.0 else -9.0


LENGTHS: Mapping[str, LengthDistribution] = {
    "azure-conversation-prompt": Mixture(
        (Part(0.185, 390.2, 0.04), Part(0.281, 1084.8, 0.05), Part(0.534, 919.2, 1.3)), most=4142
    ),
    "azure-conversation-answer": Mixture(
        (Part(0.347, 95.7, 0.302), Part(0.358, 106.1, 0.907), Part(0.295, 407.9, 0.053)), most=1000
    ),
    "azure-code-prompt": Mixture(
        (Part(0.319, 261.2, 1.209), Part(0.607, 1902.6, 0.622), Part(0.075, 6740.1, 0.04)), most=7437
    ),
    "azure-code-answer": Mixture((Part(0.591, 10.8, 0.413), Part(0.409, 27.3, 1.124)), most=1899),
}
