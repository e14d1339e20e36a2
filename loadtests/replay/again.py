"""Counts the effect of `Retry-After`: what became of the clients that were told when to retry."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadtests.replay.request import Outcome, Request

MAX_REASONS = 100
OTHERS = "others"
REFUSED = (Outcome.SHED, Outcome.QUOTA)
EARLY_S = 0.001
"""Seconds by which a retry may be early and still obey: timers are no more exact than that."""


@dataclass(slots=True)
class Told:
    """Refusals of one tier, for one reason, that came with a Retry-After."""

    told: int = 0
    obeyed: int = 0
    """Number of these clients that retried at the told time, or later."""
    admitted: int = 0
    """Clients that obeyed and were answered. Clients neither admitted nor refused met an error or a timeout."""
    refused: int = 0
    """Number of clients that obeyed and were refused again."""


@dataclass(slots=True)
class Newcomers:
    """First tries of one tier."""

    admitted: int = 0
    """First tries that were answered. First tries that were neither admitted nor refused met an error or a timeout."""
    refused: int = 0


class Again:
    """Counts the tries of requests that are due from `from_s` on."""

    def __init__(self, from_s: float) -> None:
        self.tiers: dict[str, dict[str, Told]] = {}
        """Refusals with a Retry-After, by tier and reason."""
        self.newcomers: dict[str, Newcomers] = {}
        """First tries, by tier."""
        self._from_s = from_s
        self._waiting: dict[int, tuple[float, Told]] = {}
        """By request number: the time at which a client was told to retry. Only clients that will retry are here."""

    def tried(self, request: Request, comes_again: bool) -> None:
        """Count a try that was sent at `tried_s` and ended at `ended_s`."""
        if request.tries == 1 and request.arrival.at >= self._from_s:
            new = self.newcomers.setdefault(request.arrival.tier, Newcomers())
            new.refused += request.outcome in REFUSED
            new.admitted += request.status == 200
        told_s, before = self._waiting.pop(request.number, (math.inf, None))
        if before is not None and request.tried_s >= told_s - EARLY_S:
            before.obeyed += 1
            before.refused += request.outcome in REFUSED
            before.admitted += request.status == 200
        if request.outcome in REFUSED and request.retry_after_s is not None and request.arrival.at >= self._from_s:
            told = self._told(request.arrival.tier, request.reason)
            told.told += 1
            if comes_again:
                self._waiting[request.number] = request.ended_s + request.retry_after_s, told

    def _told(self, tier: str, reason: str) -> Told:
        reasons = self.tiers.setdefault(tier, {})
        if reason not in reasons and len(reasons) >= MAX_REASONS:
            reason = OTHERS  # a target may invent reasons
        return reasons.setdefault(reason, Told())
