"""Whether a failed attempt is tried once more, elsewhere."""

from __future__ import annotations

from gateway.core.model import End

# Only what provably never ran: it cannot have been the request that killed the replica, and no work was done for it.
RETRYABLE = (End.UNREACHABLE, End.CONNECT_TIMEOUT, End.BUSY, End.CLOSING)

# A replica that says when to come back (`Retry-After`) is passed over until then, but for no longer than this.
MAX_REST_S = 60.0

BURST = 10.0


class RetryBudget:
    """Retries as a share of requests: each request deposits the tier's share, each retry costs one."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = BURST

    def deposit(self, share: float) -> None:
        """A request was dispatched for the first time."""
        self._tokens = min(BURST, self._tokens + share)

    def withdraw(self, share: float) -> bool:
        """Take what one retry costs; False if there is not enough, or `share` says that there shall be none."""
        if share <= 0.0 or self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
