"""State of requests under way and of their attempts."""

from __future__ import annotations

from typing import Final

from gateway.core.decision import Decision, RuleName
from gateway.core.estimators.attempt_prediction import AttemptPrediction
from gateway.core.estimators.ttft_judge import TtftJudge
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.slot import UNREAD, Slot
from gateway.core.history import AttemptHistory
from gateway.core.offer import Offer
from gateway.core.pool_spec import Timeouts
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.queueing.shares import FairShares
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, HedgeResult, Outcome, Reason, Record
from gateway.core.slo import Slo

UNNAMED_TOKENS: Final = 1024
"""Output tokens reserved for an uncapped answer. `max_tokens_limit` would leave a tenant one request at a time."""


class Attempt:
    """One try of a request at one replica. It holds its slot until it is closed."""

    __slots__ = (
        "cancelled",
        "first",
        "first_at",
        "has_begun",
        "hedge",
        "id",
        "indexed_tokens",
        "last_at",
        "new_blocks",
        "opened_at",
        "predicted_tokens",
        "prediction",
        "prompt_tokens",
        "replica",
        "sent_at",
        "slot",
        "state",
        "tokens",
        "watched",
    )

    def __init__(self, attempt_id: int, state: RequestState, slot: Slot[Replica], hedge: bool = False) -> None:
        self.id = attempt_id
        self.state = state
        self.slot = slot
        self.replica = slot.replica
        self.opened_at = slot.opened_at
        self.first = not state.attempts
        """Whether it is the first attempt of its request."""
        self.hedge = hedge
        """Whether it is a hedge: it runs beside a late attempt of the same request."""
        self.prompt_tokens = slot.prompt_tokens
        """Prompt tokens, as estimated when the attempt was opened."""
        self.indexed_tokens = 0
        """Prompt tokens that the replica's prefix index had when the attempt was opened."""
        self.new_blocks = 0
        """Blocks of the prompt that the attempt added to the replica's prefix index."""
        self.predicted_tokens = 0
        """How many of `indexed_tokens` were expected to be in the engine's cache."""
        self.prediction: AttemptPrediction | None = None
        """The load of the replica at dispatch, and the predicted latencies. Only the forecaster sets this."""
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.has_begun = False
        """Whether a part of an answer has come whose tokens cannot be seen."""
        self.last_at = slot.opened_at
        self.cancelled = False
        self.tokens = 0
        self.watched = state.request.tier.caps.watch
        """Whether an overlong answer may be cut."""

    def left_tokens(self, end: AttemptOutcome, now: float) -> int:
        """The part of the prompt that the engine never read, by its end or by the estimate of the replica model."""
        if end is AttemptOutcome.COMPLETE or self.first_at is not None:
            return 0
        if end in UNREAD or self.prediction is None:
            return self.slot.unread_tokens if end in UNREAD else 0
        return int(self.prediction.engine.left_of(self.id, now))

    def predicted_of(self, prompt_tokens: int) -> int:
        """`predicted_tokens`, scaled to the engine's own count of `prompt_tokens`."""
        return self.predicted_tokens * prompt_tokens // self.prompt_tokens if self.predicted_tokens else 0


class RequestState(QueuedRequest):
    """A request under way. It is over when it has an outcome and no open attempt."""

    __slots__ = (
        "attempts",
        "body_hash",
        "booked_tokens",
        "cached_tokens",
        "charged",
        "charged_in",
        "committed",
        "counted",
        "decision",
        "detail",
        "dispatched_at",
        "ended_at",
        "expected_output",
        "first_at",
        "hedged",
        "held_by",
        "is_read",
        "max_tokens",
        "offer",
        "open",
        "outcome",
        "output_tokens",
        "promised",
        "prompt_tokens",
        "reached",
        "replica",
        "reserved_tokens",
        "retry_after_s",
        "shares",
        "tokens_exact",
        "took_room",
        "took_turn",
        "tried",
        "visible",
        "waited",
        "waiting",
        "why",
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.visible = request.visible
        """Whether the tokens of the answer can be seen one by one as they come."""
        self.promised: list[tuple[TtftJudge, float, bool]] | None = None
        """Of an admitted request without a first token: the TTFT judges that count it, its P(late) for each, and
        whether costs were known.
        """
        self.body_hash = request.body_hash
        """64-bit hash of the body; None until quarantine needs it (redundancy/request_quarantine.py)."""
        self.offer: Offer | None = None
        """Its offer to its pool; None until there is one."""
        self.decision: Decision | None = None
        """The latest decision of admission on it."""
        self.replica: Replica | None = None
        """The replica of the committed attempt, or else of the latest attempt."""
        self.charged = 0.0
        """Tokens charged so far to its tenant's fair share."""
        self.counted = False
        """Whether `LengthFairness` counts it as admitted."""
        self.hedged: HedgeResult | None = None
        """Result of the hedge. It is FAILED until there is a first token, and None without a hedge."""
        self.prompt_tokens = 0
        """Tokens of all prompts together. It is a high estimate until an engine has counted them."""
        self.cached_tokens = 0
        """Cached prompt tokens, not charged to the tenant: predicted on arrival, told by the engine at the end."""
        self.max_tokens = 0
        """Most output tokens of one choice, within the caps of its tier and the context of its replica."""
        self.reserved_tokens = 0
        self.output_tokens = 0
        self.tokens_exact = False
        self.open: list[Attempt] = []
        self.attempts = 0
        self.reached = False
        """Whether any attempt was sent to an engine."""
        self.is_read = False
        """Whether any engine may have read some of the prompt."""
        self.expected_output = 0.0
        """Output tokens of all choices that were expected when it came to its pool."""
        self.shares: FairShares | None = None
        """The fair shares of its tier in that pool."""
        self.booked_tokens = 0.0
        """Tokens that its tier was counted as served, at the first dispatch."""
        self.held_by: Pool | None = None
        """The pool that keeps the request until it has a replica; None if it is not on hold."""
        self.waiting = self.waited = False
        """Whether the request is queued now, and whether it ever was."""
        self.took_room = self.took_turn = False
        """Whether the drain rate counted it, and whether its pool's queue sent it. One that fell back only waited."""
        self.committed: Attempt | None = None
        self.charged_in: tuple[Pool, float] | None = None
        """Pool and time of its first attempt, for which its tier and its tenant were charged."""
        self.dispatched_at: float | None = None
        """Time of its dispatch. It is taken back if all attempts ended before any of them was sent."""
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: Outcome | None = None
        self.why: Reason | None = None
        self.tried: list[AttemptHistory] = []
        """Its attempts that have ended."""
        self.detail = ""
        """Text of the error that its client gets, if it is refused, and seconds after which it may try again."""
        self.retry_after_s: float | None = None

    def __repr__(self) -> str:
        if self.outcome is not None:
            state = self.outcome.value if self.why is None else f"{self.outcome.value} ({self.why.value})"
        elif self.committed is not None:
            state = f"committed to attempt {self.committed.id}"
        else:
            state = "waiting" if self.waiting else "dispatched" if self.open else "not dispatched"
        place = "no pool" if self.pool is None else f"pool {self.pool.spec.name}"
        attempts = ", ".join(f"{attempt.id} at {attempt.replica.spec.name}" for attempt in self.open) or "none"
        who = f"{self.request.id}, tier {self.request.tier.name}"
        return f"<RequestState {who}, {place}, {state}, open attempts: {attempts}>"

    def ask(self, offer: Offer) -> None:
        """Take the offer as what the request asks for now."""
        self.request = offer.request
        self.prompt_tokens = offer.prompt_tokens
        self.deadline = offer.deadline
        self.needs_tokens = offer.needs_tokens
        self.grant(offer)

    def grant(self, offer: Offer) -> None:
        """Take the offer as what the request gets: another pool, or a shorter answer."""
        self.offer = offer
        self.max_tokens = offer.max_tokens

    def decided(self, decision: Decision) -> None:
        """Take a decision on the request, with its forecast."""
        self.decision, self.forecast = decision, decision.forecast

    @property
    def pool(self) -> Pool | None:
        """Its pool; None if none was found."""
        return None if self.offer is None else self.offer.pool

    @property
    def slo(self) -> Slo:
        """Its objectives."""
        return self.request.slo or self.request.tier.slo

    @property
    def timeouts(self) -> Timeouts:
        """Timeouts of the tier, and of the pool once there is one, by the policy under which the request arrived."""
        return self.request.tier.timeouts if self.offer is None else self.offer.timeouts

    @property
    def rule(self) -> RuleName | None:
        """The rule of admission that decided on it last."""
        return None if self.decision is None else self.decision.rule

    @property
    def degraded(self) -> bool:
        """Whether the answer is capped lower than the client asked for, to come in time."""
        return self.rule is RuleName.SHORTER_ANSWER

    @property
    def is_capped(self) -> bool:
        """Whether the engine is told a cap on the output tokens.

        No cap is sent if neither client nor tier sets one and the engine's context leaves less than the tier's limit.
        Then the context bounds the answer anyway. The prompt length is only an estimate, so a cap might not fit,
        and the engine would refuse it.
        """
        if self.request.max_tokens is not None or self.degraded:
            return True
        caps = self.request.tier.caps
        unnamed = caps.max_tokens_default
        return unnamed > 0 and (unnamed < caps.max_tokens_limit or self.max_tokens >= caps.max_tokens_limit)

    @property
    def can_be_cut(self) -> bool:
        """Whether the client has a part of a visible answer, which can be ended without an error."""
        return self.visible and self.outcome is None and self.committed in self.open

    @property
    def most_tokens(self) -> int:
        """The most tokens that the tenant may be charged for this request.

        A request is refused if its tenant's limit of tokens per minute has fewer left (queueing/limits.py).
        """
        output = self.max_tokens
        if self.request.max_tokens is None and not self.request.tier.caps.max_tokens_default:
            output = min(output, UNNAMED_TOKENS)
        return self.prompt_tokens - self.cached_tokens + output * self.request.choices

    @property
    def was_overfilled(self) -> bool:
        """Whether its replica was sent more than its step budget or KV cache hold, by this request or a later one."""
        if self.dispatched_at is None or self.replica is None:
            return False
        return self.replica.budget.overfilled_at >= self.dispatched_at

    def decide(self, outcome: Outcome, why: Reason | None, now: float) -> None:
        """Set the outcome of this request. If it has one already, the call is ignored."""
        if self.outcome is None:
            self.outcome, self.why, self.ended_at = outcome, why, now

    @property
    def is_worked_on(self) -> bool:
        """Whether an engine worked on the request, which is over. It did not if it refused it, or never got it."""
        return self.is_read and self.outcome is not Outcome.INVALID

    def settle(self, now: float) -> None:
        """Give unused tokens back to the tenant. A request that no engine worked on costs none."""
        assert self.use is not None
        used = self.prompt_tokens - self.cached_tokens + self.output_tokens if self.is_worked_on else 0
        self.use.settle(self.reserved_tokens, used, self.reached, now)

    def record(self) -> Record:
        """The record of a request that is over."""
        request = self.request
        assert self.outcome is not None
        assert self.ended_at is not None
        started = request.body_at
        ended = self.ended_at
        ttft_s = tpot_s = None
        if self.first_at is not None:
            ttft_s = self.first_at - started
            if self.output_tokens > 1:
                tpot_s = (ended - self.first_at) / (self.output_tokens - 1)
        e2e_s = ended - started
        good = self.outcome is Outcome.OK and self.slo.met(ttft_s, tpot_s, e2e_s, self.output_tokens)
        if self.degraded and self.output_tokens >= self.max_tokens:
            good = False  # the answer was cut short by our lower cap
        return Record(
            request=request,
            outcome=self.outcome,
            why=self.why,
            pool=None if self.pool is None else self.pool.spec.name,
            replica=None if self.replica is None else self.replica.spec.name,
            queue_s=(ended if self.dispatched_at is None else self.dispatched_at) - started,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=e2e_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            tokens_exact=self.tokens_exact,
            good=good,
            attempts=self.attempts,
            breach=None if self.forecast is None else self.forecast.breach,
            would_shed=self.rule is RuleName.SHADOW,
            explored=self.rule is RuleName.EXPLORATION,
            degraded=self.degraded,
            hedged=self.hedged,
            waited=self.waited,
        )


def offer_of(state: RequestState) -> Offer:
    """The offer of a request that has a pool."""
    assert state.offer is not None
    return state.offer
