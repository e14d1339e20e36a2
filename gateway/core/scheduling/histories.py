"""Makes the history of a request that is over (`gateway.core.history`)."""

from __future__ import annotations

from gateway.core.history import AttemptHistory, History
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptResult


def attempt_history(attempt: Attempt, result: AttemptResult, now: float) -> AttemptHistory:
    """The history of an attempt that ends now."""
    spec, prediction = attempt.replica.spec, attempt.prediction
    told = AttemptHistory(attempt.replica.pool.spec.name, spec.name, attempt.hedge, result.end, attempt.opened_at, now)
    told.id = attempt.id
    told.sent_at, told.first_at = attempt.sent_at, attempt.first_at
    if prediction is not None:
        told.expected_ttft_s = prediction.ttft_s
    told.status = result.status
    told.prompt_tokens = result.prompt_tokens
    told.output_tokens = result.output_tokens
    told.cached_tokens = result.cached_tokens
    told.reasoning_tokens = result.reasoning_tokens
    told.answer_id = result.answer_id
    return told


def history_of(state: RequestState) -> History:
    """The history of a request that is over."""
    offer, decision = state.offer, state.decision
    told = History(state.tried, state.prompt_tokens if offer is None else offer.prompt_tokens, state.max_tokens)
    told.detail, told.retry_after_s = state.detail, state.retry_after_s
    if state.committed is not None:
        told.answered_by = state.committed.id
    if decision is None:
        return told
    told.rule, told.mode = decision.rule, state.request.tier.admission.mode
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
