"""A limit that refills: a token bucket, or one gateway's part of it."""

from __future__ import annotations

import math

from gateway.core.sample import LimitLease, QuotaWindow

Rate = tuple[float, float, float]
"""(limit, amount left, seconds until the limit is full again)"""


class TokenBucket:
    """A token bucket that refills evenly with `per_min`. It holds `limit` tokens, at least 1, and may be overdrawn.

    Gateways can share it. Without a lease, one of them has the part `share` (0-1) of bucket and refill. A lease does
    not refill: each new one says how much may be used. When it lapses, its rest is what the part begins with;
    of a quota, the part of what all had left.
    """

    __slots__ = ("_at", "_level", "burst", "earlier", "lease", "per_min", "share", "used", "window")

    def __init__(
        self, limit: float, per_min: float, share: float, now: float, window: QuotaWindow | None = None
    ) -> None:
        """`window`: of a quota, which is used up at its end."""
        self.window = window
        self.earlier = 0.0
        """Used in the window by a process before this one, and not in `used`."""
        self.per_min = per_min
        self.burst = max(1.0, limit)
        self.share = share
        self.used = 0.0
        """All that was taken and not given back."""
        self.lease: LimitLease | None = None
        self._level = self.burst * share
        self._at = now

    def level(self, now: float) -> float:
        """Tokens that may be taken at `now`; below zero after an overdraft."""
        lease, level, at = self.lease, self._level, self._at
        if lease is not None:
            level, at = lease.up_to - self.used, lease.until
            if now < at:
                return level
            if self.window is not None:
                level = (level + lease.elsewhere) * self.share
        if not self.per_min and self.window is None:
            return self.burst * self.share - self.used  # nothing refills, and all that is used comes back
        return min(self.burst * self.share, level + (now - at) * self.per_min * self.share / 60.0)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` can be taken: 0 if it can be taken now, inf if the bucket is too small.

        A part that is full takes one request that is larger than the part.
        """
        level = self.level(now)
        missing = amount - level
        if missing <= 0:
            return 0.0
        if amount > self.burst:
            return math.inf
        share, elsewhere = self.share, 0.0
        if self.lease is not None and now < self.lease.until:
            share, elsewhere = self.lease.share, self.lease.elsewhere
        elif level >= self.burst * share:
            return 0.0
        if self.per_min:
            return missing * 60.0 / (self.per_min * share)
        if self.window is None or missing <= elsewhere:
            return 1.0
        return max(1.0, self.window.ends_at - now)

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, or give it back if negative."""
        if self.lease is not None and now < self.lease.until:
            self.used += amount
            return
        self._level = min(self.burst * self.share, self.level(now) - amount)
        self._at = now
        self.lease = None
        self.used += amount

    def recall(self, used: float) -> None:
        """So much of the window was used by a process before this one."""
        self.earlier += used
        self._level -= used

    def left(self, now: float) -> Rate:
        """The values for `x-ratelimit-*` headers, of all gateways together. The amount left is never below 0."""
        level = self.level(now)
        if self.lease is not None and now < self.lease.until:
            level += self.lease.elsewhere
        else:
            level /= self.share
        reset_s = (self.burst - level) * 60.0 / self.per_min if self.per_min else 0.0
        return self.burst, level if level > 0.0 else 0.0, reset_s

    def resize(self, limit: float, per_min: float, share: float, now: float) -> None:
        """Change limit, rate and share. Tokens used so far stay used."""
        if (max(1.0, limit), per_min, share) == (self.burst, self.per_min, self.share):
            return
        used = self.burst * self.share - self.level(now)
        is_leased = self.lease is not None and now < self.lease.until
        self.per_min, self.burst, self.share = per_min, max(1.0, limit), share
        if not is_leased:
            self._level = self.burst * share - used
            self._at = now
            self.lease = None
