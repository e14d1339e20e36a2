"""The rules by which a request is metered.

1. A request pays for the answer that its client was sent, whole or in part: also if the client left, or the answer
   broke off or was cut. Nothing sent, nothing paid: a refusal, a timeout before the first token, an engine's rejection.
2. Only the attempt whose answer was sent counts. Hedges and retries are the operator's: their time counts as slot
   seconds, their tokens count nowhere.
3. Counts are the engine's own, or else estimates, which are summed apart as well. A count beyond what the request
   allowed was replaced by an estimate before (`gateway.core.scheduling.usage`).
4. Cached tokens are a part of the prompt's, reasoning tokens a part of the output's. 0 is a value; a missing count is
   missing, and adds nothing.
5. Every API is metered alike, streamed or not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from gateway.core.results import Outcome, Reason
from gateway.observe.metrics.metrics import early_outcome
from gateway.observe.requests.ring import Found, ended_at
from gateway.observe.requests.row import RequestRow

Cell = tuple[int, str, str, str, str]
"""Hour since 1970 (UTC), tenant, key, tier, model."""
HOUR_S: Final = 3600.0
REFUSED = (Outcome.REFUSED, Outcome.QUOTA)
FAILED = (Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)


@dataclass(slots=True)
class Sums:
    """Sums of some requests. `None`: no engine reported it."""

    requests: int = 0
    good: int = 0
    refused: int = 0
    failed: int = 0
    abandoned: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    estimated_tokens: int = 0
    """The part of prompt and output tokens that no engine has counted."""
    good_tokens: int = 0
    """The prompt and output tokens of good requests."""
    slot_s: float = 0.0
    """Seconds for which replicas were held, by all attempts."""

    def add(self, other: Sums) -> None:
        """Add what other requests used."""
        for name in COLUMNS:
            mine, more = getattr(self, name), getattr(other, name)
            if more is not None:
                setattr(self, name, more if mine is None else mine + more)


COLUMNS = tuple(field.name for field in fields(Sums))


class UsageMeter:
    """Sums requests by cell, as they end."""

    __slots__ = ("sums", "zero_s")

    def __init__(self, zero_s: float) -> None:
        """`zero_s`: Unix time at the zero of the monotonic clock."""
        self.zero_s = zero_s
        self.sums: dict[Cell, Sums] = {}

    def add(self, one: Found) -> None:
        """Count a request that is over. A request without a known key belongs to nobody, and is not counted."""
        hour = int((self.zero_s + ended_at(one)) // HOUR_S)
        if isinstance(one, RequestRow):
            meter(one, self._of((hour, one.tenant, one.key, one.tier, one.adapter or one.model)))
        elif one.tenant:
            sums = self._of((hour, one.tenant, one.key, one.tier, ""))
            sums.requests += 1
            sums.refused += early_outcome(Reason(one.why)) in REFUSED

    def _of(self, cell: Cell) -> Sums:
        sums = self.sums.get(cell)
        if sums is None:
            sums = self.sums[cell] = Sums()
        return sums


def meter(row: RequestRow, sums: Sums) -> None:
    """Add a request to the sums of its kind."""
    outcome = row.outcome
    sums.requests += 1
    sums.good += row.good
    sums.refused += outcome in REFUSED
    sums.failed += outcome in FAILED
    sums.abandoned += outcome is Outcome.ABANDONED
    for attempt in row.history.attempts:
        sums.slot_s += attempt.ended_at - attempt.opened_at
    answer = row.answer
    if answer is None or outcome is Outcome.INVALID:
        return
    tokens = row.prompt_tokens + row.output_tokens
    sums.prompt_tokens += row.prompt_tokens
    sums.output_tokens += row.output_tokens
    if answer.cached_tokens is not None:
        sums.cached_tokens = (sums.cached_tokens or 0) + answer.cached_tokens
    if answer.reasoning_tokens is not None:
        sums.reasoning_tokens = (sums.reasoning_tokens or 0) + answer.reasoning_tokens
    if not row.tokens_exact:
        sums.estimated_tokens += row.output_tokens
    if answer.prompt_tokens is None:
        sums.estimated_tokens += row.prompt_tokens
    if row.good:
        sums.good_tokens += tokens
