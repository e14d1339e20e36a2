"""What `Retry-After` was worth: what became of clients that were told when to come again, over all their tries."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.replay.request import Outcome, Request

MOST_REASONS = 100
OTHERS = "others"
REFUSED = (Outcome.SHED, Outcome.QUOTA)


@dataclass(slots=True)
class Told:
    """Refusals of one tier, for one reason, that came with a Retry-After."""

    told: int = 0
    obeyed: int = 0
    """Of those: came again when they were told to, or later."""
    admitted: int = 0
    """Of those that obeyed: were answered. What is neither met an error, or was not answered in time."""
    refused: int = 0
    """Of those that obeyed: were refused again."""


class Again:
    """Counts tries of requests that are due from `from_s` on."""

    def __init__(self, from_s: float) -> None:
        self.tiers: dict[str, dict[str, Told]] = {}
        """By tier and reason."""
        self._from_s = from_s
        self._obeying: dict[int, Told] = {}

    def tried(self, request: Request, rest_s: float | None) -> None:
        """A try is over; the next comes after `rest_s`, if there is one."""
        before = self._obeying.pop(request.number, None)
        if before is not None:
            before.obeyed += 1
            before.refused += request.outcome in REFUSED
            before.admitted += request.status == 200
        if request.outcome in REFUSED and request.retry_after_s is not None and request.arrival.at >= self._from_s:
            told = self._told(request.arrival.tier, request.reason)
            told.told += 1
            if rest_s is not None and rest_s >= request.retry_after_s:
                self._obeying[request.number] = told

    def _told(self, tier: str, reason: str) -> Told:
        reasons = self.tiers.setdefault(tier, {})
        if reason not in reasons and len(reasons) >= MOST_REASONS:
            reason = OTHERS  # a target may make them up
        return reasons.setdefault(reason, Told())
