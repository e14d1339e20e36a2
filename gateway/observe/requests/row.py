"""The record of one request that is over, in plain values, so that it keeps neither prompt nor policy in memory."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.history import AttemptHistory, History
from gateway.core.results import HedgeResult, Outcome, Reason, Record
from gateway.wire.errors.replies import CLIENT_FAULTS, status_of

SURPRISE: Final = 2.0
"""A first token counts as slow if it came later than this multiple of its forecast TTFT."""
NO_HISTORY: Final = History([], 0, 0)


@mypyc_attr(acyclic=True)
class RequestRow:
    """The facts of a request, of its tier at that time, and of its answer. Durations in seconds, from body complete."""

    __slots__ = (
        "adapter",
        "asked_model",
        "attempts",
        "breach",
        "comeback",
        "degraded",
        "e2e_bound_s",
        "e2e_s",
        "ended_at",
        "endpoint",
        "engine",
        "explored",
        "good",
        "hedged",
        "history",
        "key",
        "model",
        "outcome",
        "output_tokens",
        "policy",
        "pool",
        "prompt_tokens",
        "queue_s",
        "receive_s",
        "replica",
        "request_id",
        "stream",
        "tenant",
        "tier",
        "tokens_exact",
        "tpot_bound_s",
        "tpot_s",
        "traceparent",
        "ttft_bound_s",
        "ttft_s",
        "waited",
        "why",
        "would_shed",
    )

    def __init__(self, record: Record, engine: float | None = None) -> None:
        request = record.request
        origin, slo = request.origin, request.slo or request.tier.slo
        self.request_id = origin.request_id
        """The id that the client knows; empty in a simulation."""
        self.key = origin.key
        self.traceparent = origin.traceparent
        self.tenant = request.tenant
        self.tier = request.tier.name
        self.endpoint = request.endpoint
        self.model = request.model.name
        """The model that served, or would have served."""
        self.asked_model = request.fallback_of or request.split or request.asked_model
        """The model name that the client asked for, if it differs."""
        self.adapter = request.affinity.adapter
        self.stream = request.stream
        self.comeback = request.comeback
        self.policy = request.policy.generation
        """Generation of the policy under which it arrived."""
        self.ttft_bound_s = slo.ttft_bound_s
        """The objective of the highest percentile; inf if there is none. The same holds for the next two."""
        self.tpot_bound_s = slo.tpot_bound_s
        self.e2e_bound_s = slo.e2e_bound_s if slo.covers(record.output_tokens) else float("inf")
        self.ended_at = request.body_at + record.e2e_s
        self.receive_s = request.body_at - request.head_at
        """From the head to body complete."""
        self.outcome: Outcome = record.outcome
        self.why: Reason | None = record.why
        self.pool = record.pool
        self.replica = record.replica
        self.queue_s = record.queue_s
        self.ttft_s = record.ttft_s
        self.tpot_s = record.tpot_s
        self.e2e_s = record.e2e_s
        self.prompt_tokens = record.prompt_tokens
        self.engine = engine
        """Share (0-1) of a request's time before the first token in the queue of the replica's engine: its latest
        mean. None if the engine does not tell it.
        """
        self.output_tokens = record.output_tokens
        self.tokens_exact = record.tokens_exact
        self.good = record.good
        self.attempts = record.attempts
        self.breach = record.breach
        self.would_shed = record.would_shed
        self.explored = record.explored
        self.degraded = record.degraded
        self.hedged: HedgeResult | None = record.hedged
        self.waited = record.waited
        self.history = NO_HISTORY if record.history is None else record.history

    @property
    def answer(self) -> AttemptHistory | None:
        """The attempt whose answer the client got, whole or in part; None if it got none."""
        answered_by = self.history.answered_by
        for attempt in self.history.attempts if answered_by else ():
            if attempt.id == answered_by:
                return attempt
        return None

    @property
    def status(self) -> int:
        """The HTTP status that the client got. A stream has 200 from its first token on, however it ends."""
        answer = self.answer
        if self.why is None or (self.stream and answer is not None and answer.first_at is not None):
            return 200
        theirs = None if answer is None or answer.status is None else CLIENT_FAULTS.get(answer.status)
        return status_of(self.why) if theirs is None else theirs

    @property
    def is_notable(self) -> bool:
        """Whether operators ask for such requests: not good, tried twice, doubtful, or slower than forecast."""
        if not self.good or self.attempts != 1 or self.would_shed or self.explored:
            return True
        expected_s = self.history.ttft_s
        return self.ttft_s is not None and expected_s is not None and self.ttft_s > SURPRISE * expected_s
