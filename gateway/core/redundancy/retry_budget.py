"""One budget for retries and duplicates together, as a share of the requests sent.

Each request that is sent adds a share of 1 to the budget, and each second attempt takes 1 out. The budget never exceeds
`BURST`. This is gRPC's throttle for retries (proposal A6), but it counts retries instead of failures. So a fleet that
fails or slows down as a whole does not get twice the load. If no connection could be made, the request was never sent,
so its retry is free (A6's transparent retry). Duplicates may use only the upper half of the budget: a late request may
still be answered, but a failed one is lost without a retry.
"""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Tier

BURST: Final = 10.0


class RetryBudget:
    """The number of second attempts that may be made now."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = BURST

    def deposit(self, tier: Tier) -> None:
        """Add the tier's share (0-1) for a request that was sent for the first time."""
        hedged = 0.0 if tier.hedge is None else tier.hedge.budget
        self.left = min(BURST, self.left + max(tier.retry.budget, hedged))

    def retry(self, tier: Tier, was_sent: bool) -> bool:
        """Take a retry out of the budget. Returns False if too little is left, or if the tier allows no retries. The
        retry is free if the first attempt was not sent.
        """
        return tier.retry.budget > 0.0 and (not was_sent or self._take(1.0))

    def hedge(self) -> bool:
        """Take a duplicate out of the budget. Returns False if too little is left."""
        return self._take(BURST / 2)

    def _take(self, least: float) -> bool:
        if self.left < least:
            return False
        self.left -= 1.0
        return True
