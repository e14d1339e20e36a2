"""Terms of a plan: the number of spare replicas, and the prices of replicas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HOUR_S = 3600.0
MAX_PRICE = 1e12
"""Upper bound on the price of a replica per hour, in any currency."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs in the currency of the price. Costs per million assume that the planned rate never changes."""

    per_hour: float
    per_million_requests: float
    per_million_output_tokens: float | None
    per_hour_by_pool: Mapping[str, float]
    """Empty if all replicas have one price."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms that a plan must meet. Raises ValueError that names the option and says what would be right."""

    spare: int = 0
    """Number of replicas in addition to those that the load needs."""
    price_per_hour: float | None = None
    """Price of one replica per hour, whatever its pool."""
    output_tokens: float | None = None
    """Mean tokens of an answer."""
    price_by_pool: Mapping[str, float] = field(default_factory=dict)
    """Price of one replica of each pool per hour, instead of `price_per_hour`."""

    def __post_init__(self) -> None:
        above_0("--output-tokens", self.output_tokens, "tokens of the mean answer, such as 200")
        if self.spare < 0:
            raise ValueError(f"--spare is {self.spare}: give the number of extra replicas, 0 or more")
        for price in (self.price_per_hour, *self.price_by_pool.values()):
            if price is not None and not 0.0 <= price <= MAX_PRICE:
                raise ValueError(f"--price is {price:g}: give the price of a replica per hour, such as 3")
        if self.spare and self.price_by_pool:
            raise ValueError("--spare has no pool, so no price: leave it out, or give one --price for all replicas")
        if self.output_tokens is not None and self.price_per_hour is None and not self.price_by_pool:
            raise ValueError(
                "--output-tokens only serves to compute the cost per million output tokens: "
                "give the --price of a replica, too"
            )

    def check_pools(self, pools: Iterable[str]) -> None:
        """Raise ValueError unless all of these pools have a price, and no others have one."""
        if self.price_by_pool and (odd := set(self.price_by_pool) ^ (known := set(pools))):
            names = ", ".join(sorted(odd))
            right = ",".join(f"{pool}=3" for pool in sorted(known)) or "one price, since there are no pools"
            raise ValueError(f"--price: pools and prices do not match in {names}: give {right}")

    def cost(self, needed: Mapping[str, int], rate_per_s: float, output_tokens: float | None = None) -> Cost | None:
        """Cost of the needed replicas by pool, and of the spare ones, at that rate; None without a price.

        `output_tokens`: mean tokens of an answer, used if the terms give none.
        """
        by_pool = {pool: needed[pool] * price for pool, price in self.price_by_pool.items()}
        if self.price_per_hour is not None:
            per_hour = (sum(needed.values()) + self.spare) * self.price_per_hour
        elif by_pool:
            per_hour = sum(by_pool.values())
        else:
            return None
        per_million = per_hour / (rate_per_s * HOUR_S) * 1e6
        tokens = self.output_tokens or output_tokens
        return Cost(per_hour, per_million, per_million / tokens if tokens else None, by_pool)


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
