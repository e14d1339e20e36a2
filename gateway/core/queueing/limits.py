"""Limits of one tenant: requests per minute, tokens per minute, and requests at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.estimators.memory import rows_in
from gateway.core.policy import LimitKind, Limits, Tier
from gateway.core.queueing.bucket import Rate, TokenBucket
from gateway.core.results import Reason
from gateway.core.sample import LimitLease, LimitUse, QuotaWindow
from gateway.core.snapshot import LimitView, QuotaView

_log2: Final = math.log2
FAIRNESS_HALF_LIFE_S: Final = 60.0
"""Half-life (seconds) of a tenant's served tokens; the tenant with the fewest goes first. The value is llm-d's
default.
"""

MAX_TURN_S: Final = 600.0
"""A turn is at most this far away. A client that does not wait takes another turn with each try, and ten of the minutes
that a limit looks back on are enough to spread the others.
"""

Left = tuple[Rate | None, Rate | None]
"""(requests, tokens) per minute; None if the tier sets no limit."""
Windows = Mapping[str, QuotaWindow]
"""The present window of quotas, by period."""


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A limit that a request exceeds. `wait_s` is inf if the request alone needs more than a minute's limit."""

    why: Reason
    wait_s: float


class TenantUse:
    """Use of one tenant's limits in one tier. Each request holds its reserved tokens from `take` to `settle`."""

    __slots__ = (
        "_turn_at",
        "concurrency",
        "in_flight",
        "quotas",
        "refused_tokens",
        "requests",
        "served",
        "tenant",
        "tier",
        "tokens",
    )

    def __init__(self, tenant: str, tier: str) -> None:
        self.tenant = tenant
        self.tier = tier
        self.concurrency: TokenBucket | None = None
        """Refills only when requests end."""
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.quotas: dict[LimitKind, TokenBucket] = {}
        self.in_flight = 0
        self.refused_tokens = 0
        """Tokens of the latest request that was refused for them; 0 once a request was not."""
        self._turn_at = -math.inf
        """Time of the latest place of the request limit that was told to a refused request."""
        self.served = -math.inf
        """Logarithm of the tokens served lately, with forgetting (see `serve`)."""

    def configure(self, limits: Limits, share: float, windows: Windows | None, now: float) -> None:
        """Apply this gateway's share (0-1) of `limits`. Use so far stays counted, in quotas until their window ends.
        `windows` is None where quotas do not apply.
        """
        had_concurrency = self.concurrency is not None
        self.concurrency = _bucket(self.concurrency, limits.concurrency, 0.0, share, now)
        if self.concurrency is not None and not had_concurrency:
            self.concurrency.take(self.in_flight, now)
        per_min = limits.requests_per_min
        self.requests = _bucket(self.requests, per_min, per_min, share, now)
        per_min = limits.tokens_per_min
        self.tokens = _bucket(self.tokens, per_min, per_min, share, now)
        quotas, self.quotas = self.quotas, {}
        if windows is None:
            return
        for quota in limits.quotas:
            window = windows.get(quota.period)
            bucket = quotas.get(quota.limit)
            if bucket is None or bucket.window is not window:
                bucket = TokenBucket(quota.amount, 0.0, share, now, window)
            bucket.resize(quota.amount, 0.0, share, now)
            self.quotas[quota.limit] = bucket

    def buckets(self) -> list[tuple[LimitKind, TokenBucket]]:
        """The limits that the tier sets."""
        every = (
            (LimitKind.REQUESTS, self.requests),
            (LimitKind.TOKENS, self.tokens),
            (LimitKind.CONCURRENCY, self.concurrency),
        )
        return [*((kind, bucket) for kind, bucket in every if bucket is not None), *self.quotas.items()]

    def uses(self, now: float) -> tuple[LimitUse, ...]:
        """Use of each limit, for the other gateways."""
        return tuple(
            LimitUse(
                kind,
                bucket.burst,
                bucket.per_min,
                bucket.used,
                max(0.0, bucket.level(now)),
                float(max(1, self.refused_tokens)) if counts_tokens(kind) else 1.0,
                "" if bucket.window is None else bucket.window.name,
            )
            for kind, bucket in self.buckets()
        )

    def lease(self, lease: LimitLease) -> None:
        """Use a part of a limit that gateways share. Ignored if the tier does not set the limit any more."""
        for kind, bucket in self.buckets():
            if kind is lease.limit and (bucket.window is None or bucket.window.name == lease.window):
                bucket.lease = lease

    def check(self, tokens: int, now: float) -> LimitExceeded | None:
        """The limit that one more request would exceed, or None. `tokens`: its prompt and reserved output."""
        if self.concurrency is not None and self.concurrency.wait_s(1, now):
            return LimitExceeded(Reason.LIMIT_CONCURRENCY, 1.0)
        if self.requests is not None and (wait_s := self.requests.wait_s(1, now)):
            return LimitExceeded(Reason.LIMIT_REQUESTS, wait_s)
        if self.tokens is not None and (wait_s := self.tokens.wait_s(tokens, now)):
            return LimitExceeded(Reason.LIMIT_TOKENS, wait_s)
        if self.quotas:
            for kind, bucket in self.quotas.items():
                if wait_s := bucket.wait_s(tokens if counts_tokens(kind) else 1, now):
                    return LimitExceeded(Reason.LIMIT_QUOTA, wait_s)
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
        self.refused_tokens = 0
        if self.concurrency is not None:
            self.concurrency.take(1, now)
        if self.requests is not None:
            self.requests.take(1, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)
        if self.quotas:
            for kind, bucket in self.quotas.items():
                bucket.take(tokens if counts_tokens(kind) else 1, now)

    def settle(self, reserved: int, used: int, reached: bool, now: float) -> None:
        """End the reservation of a request and give unused tokens back. A request that never reached an engine
        (`reached` False) costs nothing.
        """
        self.in_flight -= 1
        if self.concurrency is not None:
            self.concurrency.take(-1, now)
        if self.tokens is not None and reserved != used:
            self.tokens.take(used - reserved, now)
        if self.requests is not None and not reached:
            self.requests.take(-1, now)
        if self.quotas:
            for kind, bucket in self.quotas.items():
                bucket.take(used - reserved if counts_tokens(kind) else 0 if reached else -1, now)

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
            concurrency_limit=None if self.concurrency is None else int(self.concurrency.burst),
            in_flight=self.in_flight,
            quotas=tuple(QuotaView(kind, bucket.burst, bucket.left(now)[1]) for kind, bucket in self.quotas.items()),
        )


def counts_tokens(limit: LimitKind) -> bool:
    """Whether a quota or limit counts tokens."""
    return limit is LimitKind.TOKENS or limit is LimitKind.TOKENS_DAY or limit is LimitKind.TOKENS_MONTH


class Tenants:
    """Use of limits by tenant and tier."""

    def __init__(self, has_quotas: bool = True) -> None:
        """`has_quotas`: whether the quotas of tiers apply, or only their other limits."""
        self._uses: dict[tuple[str, str], TenantUse] = {}
        self._share = 1.0
        """This gateway's part of limits without a lease."""
        self._windows: dict[str, QuotaWindow] | None = {} if has_quotas else None

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
        use.configure(tier.limits, self._share, self._windows, now)
        return use

    def configure(self, tiers: Mapping[str, Tier], now: float) -> None:
        """Apply the limits of a policy. Use so far stays counted."""
        for (_, name), use in self._uses.items():
            if name in tiers:
                use.configure(tiers[name].limits, self._share, self._windows, now)

    def share(self, gateways: int, tiers: Mapping[str, Tier], now: float) -> None:
        """As many gateways share the limits, this one included. Each has an equal part of every limit, unless a lease
        gives it another.
        """
        if self._share != 1.0 / gateways:
            self._share = 1.0 / gateways
            self.configure(tiers, now)

    def open_windows(self, windows: Sequence[QuotaWindow], tiers: Mapping[str, Tier], now: float) -> None:
        """Begin these days and months: nothing of their quotas is used. Windows that are open already go on."""
        known = self._windows
        assert known is not None
        for window in windows:
            if window.period not in known or known[window.period].name != window.name:
                known[window.period] = window
        self.configure(tiers, now)

    def memory(self) -> list[list[object]]:
        """Use of quotas, for the process after this one."""
        return [
            [tenant, tier, kind.value, bucket.window.name, bucket.earlier + bucket.used]
            for (tenant, tier), use in self._uses.items()
            for kind, bucket in use.quotas.items()
            if bucket.window is not None
        ]

    def recall(self, memory: object, tiers: Mapping[str, Tier], now: float) -> None:
        """Take over the use of quotas whose windows are still open."""
        for row in rows_in(memory):
            match row:
                case [str(tenant), str(tier), str(kind), str(window), int() | float() as used] if tier in tiers:
                    for limit, bucket in self.of(tenant, tiers[tier], now).quotas.items():
                        if limit.value == kind and bucket.window is not None and bucket.window.name == window:
                            bucket.recall(float(used))

    def uses(self, tenant: str, tier: Tier, now: float) -> tuple[LimitUse, ...]:
        """Use of each limit of a tenant. Changes nothing."""
        return (self._uses.get((tenant, tier.name)) or self._unused(tenant, tier, now)).uses(now)

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


def _bucket(
    old: TokenBucket | None, limit: float | None, per_min: float | None, share: float, now: float
) -> TokenBucket | None:
    if limit is None or per_min is None:
        return None
    if old is None:
        return TokenBucket(limit, per_min, share, now)
    old.resize(limit, per_min, share, now)
    return old
