"""On which terms replicas are bought: how many spare ones, and at what price."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0
MAX_PRICE = 1e12
"""Price of a replica per hour, in any currency: a larger one is no sensible number."""


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of the price. Per million: at the planned rate, all day long."""

    per_hour: float
    per_million_requests: float
    per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that a plan must meet. Raises ValueError that names the option and says what would be right."""

    spare: int = 0
    """Replicas on top of those that the load needs."""
    price_per_hour: float | None = None
    """Of one replica."""
    output_tokens: float | None = None
    """Of one answer, in the mean."""

    def __post_init__(self) -> None:
        above_0("--output-tokens", self.output_tokens, "tokens of the mean answer, such as 200")
        if self.spare < 0:
            raise ValueError(f"--spare is {self.spare}: say how many replicas more than needed, 0 or more")
        if self.price_per_hour is not None and not 0.0 <= self.price_per_hour <= MAX_PRICE:
            raise ValueError(f"--price is {self.price_per_hour:g}: say what a replica costs per hour, such as 3")
        if self.output_tokens is not None and self.price_per_hour is None:
            raise ValueError("--output-tokens is for the cost of a million of them: say the --price of a replica, too")

    def cost(self, replicas: int, rate_per_s: float, output_tokens: float | None = None) -> Cost | None:
        """Cost of this many replicas at that rate; None without a price.

        Assumed length of answers unless the terms give one.
        """
        if self.price_per_hour is None:
            return None
        per_hour = replicas * self.price_per_hour
        per_million = per_hour / (rate_per_s * HOUR_S) * 1e6
        tokens = self.output_tokens or output_tokens
        return Cost(per_hour, per_million, per_million / tokens if tokens else None)


def above_0(option: str, value: float | None, right: str) -> None:
    """Raises ValueError unless the value is absent, or finite and above 0."""
    if value is not None and not 0.0 < value < math.inf:
        raise ValueError(f"{option} is {value:g}: say {right}")


def share(option: str, value: float | None, right: str) -> None:
    """Raises ValueError unless the value is absent, or a share above 0 and at most 1."""
    if value is not None and not 0.0 < value <= 1.0:
        raise ValueError(f"{option} is {value:g}: it is a share above 0 and at most 1, {right}")


BARE = Terms()
"""No spare ones, no price."""
