"""Fair shares of the tenants of one tier in one pool: the tokens per second up to which a tenant is within its share.

Shares are max-min fair. A tenant that asks for less than an equal part of the service gets all that it asks for. The
rest of its part is divided among the others in the same way. So there is a level, and

    sum over tenants of min(offered, level) = served

A tenant whose offered tokens per second are at most the level is within its share. In an overload, the others have to
give way to it: it is not refused for lateness that they cause.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.rates import Rate
from gateway.core.queueing.limits import FAIRNESS_HALF_LIFE_S

SHARES_TAU_S: Final = FAIRNESS_HALF_LIFE_S / math.log(2.0)
"""Time constant of the rates, so that they are forgotten as fast as the tokens by which tenants take turns."""
LEVEL_S: Final = SHARES_TAU_S / 100.0
"""The level is computed anew after this time. Forgetting changes the rates by 1% in it."""
MIN_PER_S: Final = 1e-3
"""A tenant that offers fewer tokens per second is forgotten. It asks for one token in a quarter of an hour."""


class FairShares:
    """Tokens offered by each tenant, and served to all of them together."""

    __slots__ = ("_level_at", "_offered", "_served", "level")

    def __init__(self) -> None:
        self._offered: dict[str, Rate] = {}
        self._served = Rate(SHARES_TAU_S)
        self.level = math.inf
        """The level in tokens per second; inf while all that is offered is served."""
        self._level_at = -math.inf

    def offered(self, tenant: str, tokens: float, now: float) -> None:
        """Count tokens of a request that has come, whether it will be served or refused. A negative number corrects an
        earlier estimate.
        """
        rate = self._offered.get(tenant)
        if rate is None:
            rate = self._offered[tenant] = Rate(SHARES_TAU_S)
        rate.add(now, tokens)
        if now - self._level_at > LEVEL_S:
            self.level, self._level_at = self._find_level(now), now

    def served(self, tokens: float, now: float) -> None:
        """Count tokens of a request that is sent. A negative number corrects an earlier estimate."""
        self._served.add(now, tokens)

    def is_within(self, tenant: str, now: float) -> bool:
        """Whether a tenant is within its share while others are not. Only then is there somebody to give way to it."""
        rate = self._offered.get(tenant)
        return self.level < math.inf and (0.0 if rate is None else rate.per_s(now)) <= self.level

    def _find_level(self, now: float) -> float:
        """The level in tokens per second; inf if all that was offered is served."""
        offered = {tenant: per_s for tenant, rate in self._offered.items() if (per_s := rate.per_s(now)) >= MIN_PER_S}
        if len(offered) < len(self._offered):
            self._offered = {tenant: self._offered[tenant] for tenant in offered}
        left, tenants = self._served.per_s(now), len(offered)
        for per_s in sorted(offered.values()):
            if per_s * tenants > left:
                return left / tenants
            left -= per_s
            tenants -= 1
        return math.inf
