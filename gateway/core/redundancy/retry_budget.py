"""What is sent twice, as a share of what is sent: one budget for retries and duplicates together.

Each request that is sent deposits a share of one, each second attempt takes one out, and there is never more than
`BURST` in it: gRPC's throttle for retries (proposal A6), by what was tried again instead of by what failed. So a fleet
that fails, or is slow, as a whole is not sent twice the work. What found no connection was sent to nobody: its next
attempt is free (A6's transparent retry). Duplicates leave the lower half to retries: a request that is late may still
be answered, one that failed is lost.
"""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Tier

BURST: Final = 10.0


class RetryBudget:
    """Second attempts that may be made."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = BURST

    def deposit(self, tier: Tier) -> None:
        """A request was sent for the first time."""
        hedged = 0.0 if tier.hedge is None else tier.hedge.budget
        self.left = min(BURST, self.left + max(tier.retry.budget, hedged))

    def retry(self, tier: Tier, was_sent: bool) -> bool:
        """Take out a retry; False if there is not enough, or its tier says that there shall be none.

        Free if the first attempt was not sent.
        """
        return tier.retry.budget > 0.0 and (not was_sent or self._take(1.0))

    def hedge(self) -> bool:
        """Take out a duplicate; False if there is not enough."""
        return self._take(BURST / 2)

    def _take(self, least: float) -> bool:
        if self.left < least:
            return False
        self.left -= 1.0
        return True
