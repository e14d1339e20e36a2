"""Terms of a plan: the number of spare replicas, and the price of a replica."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0
MAX_PRICE = 1e12
"""Upper bound on the price of a replica per hour, in any currency."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs in the currency of the price. Costs per million assume that the planned rate never changes."""

    per_hour: float
    per_million_requests: float
    per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that a plan must meet. Raises ValueError that names the option and says what would be right."""

    spare: int = 0
    """Number of replicas in addition to those that the load needs."""
    price_per_hour: float | None = None
    """Price of one replica per hour."""
    output_tokens: float | None = None
    """Mean tokens of an answer."""

    def __post_init__(self) -> None:
        above_0("--output-tokens", self.output_tokens, "tokens of the mean answer, such as 200")
        if self.spare < 0:
            raise ValueError(f"--spare is {self.spare}: give the number of extra replicas, 0 or more")
        if self.price_per_hour is not None and not 0.0 <= self.price_per_hour <= MAX_PRICE:
            raise ValueError(f"--price is {self.price_per_hour:g}: give the price of a replica per hour, such as 3")
        if self.output_tokens is not None and self.price_per_hour is None:
            raise ValueError(
                "--output-tokens only serves to compute the cost per million output tokens: "
                "give the --price of a replica, too"
            )

    def cost(self, replicas: int, rate_per_s: float, output_tokens: float | None = None) -> Cost | None:
        """Cost of this many replicas at that rate; None without a price.

        `output_tokens`: mean tokens of an answer, used if the terms give none.
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
        raise ValueError(f"{option} is {value:g}: give {right}")


def share(option: str, value: float | None, right: str) -> None:
    """Raises ValueError unless the value is absent, or a share above 0 and at most 1."""
    if value is not None and not 0.0 < value <= 1.0:
        raise ValueError(f"{option} is {value:g}: it is a share above 0 and at most 1, {right}")


BARE = Terms()
"""Terms without spare replicas and without a price."""
