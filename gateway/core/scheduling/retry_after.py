"""Computes `Retry-After`: the seconds after which a refused request should be tried again.

    no room, expired, or shut down     predicted time until a request like it would get a slot (`for_slot`)
    all suitable replicas are down     time until one may be usable again (`Fleet.cools_in_s`), with jitter
    a limit of its tenant              time until the limit allows it; for requests per minute, its own turn among the
                                       refused (`queueing/limits.py`); without jitter
    an engine failed                   the engine's own value, if it sent one, or the sooner one of another replica that
                                       asked for time; up to a quarter longer

`wire/errors/replies.py` rounds the seconds up. A 429, 503 or 504 without a known value gets 1 s.
"""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.fleet import DEFAULT_RETRY_AFTER_S
from gateway.core.fleet.pool import Pool
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.wait import drain_per_s
from gateway.core.queueing.queue import AT_STAKE_S
from gateway.core.request import Random
from gateway.core.request_state import RequestState

MAX_RETRY_AFTER_S: Final = 60.0
TOLD_SPREAD: Final = 0.25
"""Share of a told time by which clients are spread. Much less would not spread them; much more would idle replicas."""


class RetryAfter:
    """Predicts when a retry makes sense."""

    def __init__(self, forecaster: Forecaster, random: Random) -> None:
        self._forecaster = forecaster
        self._random = random

    def for_slot(self, state: RequestState, pool: Pool, now: float) -> float:
        """Predicted seconds until a request like this one would get a slot of `pool`, with jitter."""
        rate = drain_per_s(self._forecaster.costs(pool), pool)
        wait_s = (pool.queue.ahead_of(state.request.tier, now) + 1) / rate if rate else DEFAULT_RETRY_AFTER_S
        if pool.queue.at_stake(state.request.tier.priority, now):
            # Requests are being lost. A client that returns into the same overload would be refused again.
            wait_s = max(wait_s, AT_STAKE_S)
        return self.jittered(wait_s)

    def told(self, told_s: float | None, pool: Pool, now: float) -> float | None:
        """Seconds until a retry makes sense after an engine has said `told_s`; None if it said nothing.

        Never sooner than the engine said, so that a backoff is respected. All its clients would come back at once, so
        each hears up to a quarter more.
        """
        if told_s is None:
            return None
        rests = pool.backoffs
        waits = [wait_s for replica in rests.until if (wait_s := rests.left_s(replica, now)) > 0.0]
        return min([told_s, *waits]) * (1.0 + TOLD_SPREAD * self._random.random())

    def jittered(self, wait_s: float) -> float:
        """`wait_s` (at most 60 s) times a random factor of 0.5 to 1.5, so that refused clients do not all return at
        once.
        """
        return min(MAX_RETRY_AFTER_S, wait_s) * (0.5 + self._random.random())
