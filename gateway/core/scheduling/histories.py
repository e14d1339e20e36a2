"""Makes the history of a request that is over (`gateway.core.history`)."""

from __future__ import annotations

from gateway.core.history import AttemptHistory, History
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptResult


def attempt_history(attempt: Attempt, finish: AttemptResult, now: float) -> AttemptHistory:
    """The history of an attempt that ends now."""
    spec, prediction = attempt.replica.spec, attempt.prediction
    told = AttemptHistory(attempt.replica.pool.spec.name, spec.name, attempt.hedge, finish.end, attempt.opened_at, now)
    told.id = attempt.id
    told.sent_at, told.first_at = attempt.sent_at, attempt.first_at
    if prediction is not None:
        told.expected_ttft_s = prediction.ttft_s
    told.status = finish.status
    told.prompt_tokens = finish.prompt_tokens
    told.output_tokens = finish.output_tokens
    told.cached_tokens = finish.cached_tokens
    told.reasoning_tokens = finish.reasoning_tokens
    told.answer_id = finish.answer_id
    return told


def history_of(live: RequestState) -> History:
    """The history of a request that is over."""
    offer, decision = live.offer, live.decision
    told = History(live.tried, live.prompt_tokens if offer is None else offer.prompt_tokens, live.max_tokens)
    told.detail, told.retry_after_s = live.detail, live.retry_after_s
    if live.committed is not None:
        told.answered_by = live.committed.id
    if decision is None:
        return told
    told.rule, told.mode = decision.rule, live.request.tier.admission.mode
    told.binds = decision.binds
    told.threshold = decision.offer.max_breach
    forecast = decision.forecast
    if forecast is not None:
        told.wait_s, told.ttft_s = forecast.wait_s, forecast.ttft_s
        told.tpot_s, told.e2e_s = forecast.tpot_s, forecast.e2e_s
    if decision.runner_up is not None:
        told.runner_up, other = decision.runner_up
        told.runner_up_ttft_s, told.runner_up_breach = other.ttft_s, other.breach
    return told
