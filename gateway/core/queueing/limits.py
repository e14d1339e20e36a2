"""Limits of one tenant: requests per minute, tokens per minute, and requests at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.policy import Limits, Tier
from gateway.core.results import Reason
from gateway.core.snapshot import LimitView

_log2: Final = math.log2
FAIRNESS_HALF_LIFE_S: Final = 60.0
"""Half-life (seconds) of a tenant's served tokens; the tenant with the fewest goes first. The value is llm-d's
default.
"""

MAX_TURN_S: Final = 600.0
"""A turn is at most this far away. A client that does not wait takes another turn with each try, and ten of the minutes
that a limit looks back on are enough to spread the others.
"""

Rate = tuple[float, float, float]
"""(limit, amount left, seconds until the limit is full again)"""
Left = tuple[Rate | None, Rate | None]
"""(requests, tokens) per minute; None if the tier sets no limit."""


class TokenBucket:
    """A token bucket that refills evenly with `per_min`. It holds one minute's tokens, at least 1, and may be
    overdrawn.
    """

    __slots__ = ("_at", "_level", "burst", "per_min")

    def __init__(self, per_min: float, now: float) -> None:
        self.per_min = per_min
        self.burst = max(1.0, per_min)
        self._level = self.burst
        self._at = now

    def level(self, now: float) -> float:
        """Tokens in the bucket at `now`; below zero after an overdraft."""
        return min(self.burst, self._level + (now - self._at) * self.per_min / 60.0)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` can be taken: 0 if it can be taken now, inf if the bucket is too small."""
        missing = amount - self.level(now)
        if missing <= 0:
            return 0.0
        return missing * 60.0 / self.per_min if amount <= self.burst else math.inf

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, or give it back if negative."""
        self._level = min(self.burst, self.level(now) - amount)
        self._at = now

    def left(self, now: float) -> Rate:
        """The values for `x-ratelimit-*` headers. The amount left is never below 0."""
        level = self.level(now)
        return self.burst, level if level > 0.0 else 0.0, (self.burst - level) * 60.0 / self.per_min

    def resize(self, per_min: float, now: float) -> None:
        """Change the rate. Tokens used so far stay used."""
        used = self.burst - self.level(now)
        self.per_min = per_min
        self.burst = max(1.0, per_min)
        self._level = self.burst - used
        self._at = now


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A limit that a request exceeds. `wait_s` is inf if the request alone needs more than a minute's limit."""

    why: Reason
    wait_s: float


class TenantUse:
    """Use of one tenant's limits in one tier. Each request holds its reserved tokens from `take` to `settle`."""

    __slots__ = ("_turn_at", "concurrency", "in_flight", "requests", "served", "tenant", "tier", "tokens")

    def __init__(self, tenant: str, tier: str) -> None:
        self.tenant = tenant
        self.tier = tier
        self.concurrency: int | None = None
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.in_flight = 0
        self._turn_at = -math.inf
        """Time of the latest place of the request limit that was told to a refused request."""
        self.served = -math.inf
        """Logarithm of the tokens served lately, with forgetting (see `serve`)."""

    def configure(self, limits: Limits, now: float) -> None:
        """Apply `limits`. Use so far stays counted."""
        self.concurrency = limits.concurrency
        self.requests = _bucket(self.requests, limits.requests_per_min, now)
        self.tokens = _bucket(self.tokens, limits.tokens_per_min, now)

    def check(self, tokens: int, now: float) -> LimitExceeded | None:
        """The limit that one more request would exceed, or None. `tokens`: its prompt and reserved output."""
        if self.concurrency is not None and self.in_flight >= self.concurrency:
            return LimitExceeded(Reason.LIMIT_CONCURRENCY, 1.0)
        if self.requests is not None and (wait_s := self.requests.wait_s(1, now)):
            return LimitExceeded(Reason.LIMIT_REQUESTS, wait_s)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(tokens, now)):
            return LimitExceeded(Reason.LIMIT_TOKENS, wait_s)
        return None

    def turn(self, exceeded: LimitExceeded, now: float) -> LimitExceeded:
        """`exceeded` with the turn of this request among the refused: each place of the request limit is told once.

        Otherwise all would come back for the same place.
        """
        if exceeded.why is not Reason.LIMIT_REQUESTS or self.requests is None:
            return exceeded
        next_at = self._turn_at + 60.0 / self.requests.per_min
        self._turn_at = min(max(now + exceeded.wait_s, next_at), now + max(exceeded.wait_s, MAX_TURN_S))
        return LimitExceeded(exceeded.why, self._turn_at - now)

    def take(self, tokens: int, now: float) -> None:
        """Reserve one request of `tokens`."""
        self.in_flight += 1
        if self.requests is not None:
            self.requests.take(1, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)

    def settle(self, reserved: int, used: int, reached: bool, now: float) -> None:
        """End the reservation of a request and give unused tokens back. A request that never reached an engine
        (`reached` False) costs nothing.
        """
        self.in_flight -= 1
        if self.tokens is not None and reserved != used:
            self.tokens.take(used - reserved, now)
        if self.requests is not None and not reached:
            self.requests.take(-1, now)

    def serve(self, tokens: float, now: float) -> None:
        """Count tokens that were dispatched for the tenant. A negative number corrects an earlier estimate.

        With the half-life h, the tokens served lately are the sum of tokens x 2^((t - now) / h) over all times t. It
        equals 2^(served - now / h). `served` needs no update as time passes, so the values of tenants can be compared
        at any time.
        """
        epoch = now / FAIRNESS_HALF_LIFE_S
        level = math.pow(2.0, self.served - epoch) + tokens
        self.served = epoch + _log2(level) if level > 0.0 else -math.inf

    def left(self, now: float) -> Left:
        """Remaining limits, for `x-ratelimit-*` headers."""
        return (
            None if self.requests is None else self.requests.left(now),
            None if self.tokens is None else self.tokens.left(now),
        )

    def view(self, now: float) -> LimitView:
        """A copy for the admin pages and metrics."""
        requests, tokens = self.left(now)
        requests_limit, requests_left, requests_reset_s = requests or (None, None, None)
        tokens_limit, tokens_left, tokens_reset_s = tokens or (None, None, None)
        return LimitView(
            tenant=self.tenant,
            tier=self.tier,
            requests_limit=requests_limit,
            requests_left=requests_left,
            requests_reset_s=requests_reset_s,
            tokens_limit=tokens_limit,
            tokens_left=tokens_left,
            tokens_reset_s=tokens_reset_s,
            concurrency_limit=self.concurrency,
            in_flight=self.in_flight,
        )


class Tenants:
    """Use of limits by tenant and tier."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], TenantUse] = {}

    def of(self, tenant: str, tier: Tier, now: float) -> TenantUse:
        """The use of one tenant in one tier; created at its first request."""
        use = self._uses.get((tenant, tier.name))
        if use is None:
            use = self._uses[tenant, tier.name] = self._unused(tenant, tier, now)
        return use

    def check(self, tenant: str, tier: Tier, tokens: int, now: float) -> LimitExceeded | None:
        """The limit that one more request of `tokens` would exceed, or None. Changes nothing."""
        use = self._uses.get((tenant, tier.name)) or self._unused(tenant, tier, now)
        return use.check(tokens, now)

    def _unused(self, tenant: str, tier: Tier, now: float) -> TenantUse:
        use = TenantUse(tenant, tier.name)
        use.configure(tier.limits, now)
        return use

    def configure(self, tiers: Mapping[str, Tier], now: float) -> None:
        """Apply the limits of a policy. Use so far stays counted."""
        for (_, name), use in self._uses.items():
            if name in tiers:
                use.configure(tiers[name].limits, now)

    def left(self, tenant: str, tier: str, now: float) -> Left:
        """Requests and tokens that the tenant has left; None if it never sent a request."""
        use = self._uses.get((tenant, tier))
        return (None, None) if use is None else use.left(now)

    def views(self, now: float) -> tuple[LimitView, ...]:
        """Use and limits of every tenant, for the admin pages and metrics."""
        return tuple(use.view(now) for use in self._uses.values())

    def in_flight(self) -> dict[tuple[str, str], int]:
        """Number of requests under way by (tenant, tier); pairs with none are left out."""
        return {key: use.in_flight for key, use in self._uses.items() if use.in_flight}


def _bucket(old: TokenBucket | None, per_min: float | None, now: float) -> TokenBucket | None:
    if per_min is None:
        return None
    if old is None:
        return TokenBucket(per_min, now)
    if old.per_min != per_min:
        old.resize(per_min, now)
    return old
