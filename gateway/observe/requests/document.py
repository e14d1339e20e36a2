"""Records of requests as documents: for the admin pages, the access log and `tailgate why`."""

from __future__ import annotations

import math

from gateway.core.history import AttemptHistory, EarlyRefusal
from gateway.core.results import Outcome, Reason
from gateway.observe.logs import in_utc
from gateway.observe.requests.ring import Found, ended_at
from gateway.observe.requests.row import RequestRow
from gateway.wire.errors.replies import status_of

DIGITS = 6
"""Decimals of a time in seconds."""


def document_of(one: Found, wall_s: float) -> dict[str, object]:
    """The record as plain data. `wall_s`: Unix time at the zero of the monotonic clock."""
    ended = {"request_id": one.request_id, "ended": in_utc(wall_s + ended_at(one))}
    if isinstance(one, EarlyRefusal):
        return {**ended, **_early(one)}
    return {**ended, "arrived": in_utc(wall_s + one.ended_at - one.e2e_s - one.receive_s), **_row(one)}


def _early(one: EarlyRefusal) -> dict[str, object]:
    return {
        "tenant": one.tenant or None,
        "tier": one.tier or None,
        "key": one.key or None,
        "status": status_of(Reason(one.why)),
        "outcome": "early",
        "reason": one.why,
        "param": one.param or None,
        "retry_after_s": _seconds(one.retry_after_s),
    }


def _row(row: RequestRow) -> dict[str, object]:
    history = row.history
    opened_at = row.ended_at - row.e2e_s
    return {
        "tenant": row.tenant,
        "tier": row.tier,
        "key": row.key or None,
        "endpoint": row.endpoint,
        "model": row.model,
        "asked_model": row.asked_model or None,
        "adapter": row.adapter or None,
        "stream": row.stream,
        "client_retry": row.comeback,
        "status": row.status,
        "outcome": row.outcome.value,
        "reason": None if row.why is None else row.why.value,
        "detail": history.detail or None,
        "retry_after_s": _seconds(history.retry_after_s),
        "good": row.good,
        "missed": missed(row),
        "pool": row.pool,
        "replica": row.replica,
        "receive_s": _seconds(row.receive_s),
        "queue_s": _seconds(row.queue_s),
        "engine_queue_share": None if row.engine is None else round(row.engine, DIGITS),
        "ttft_s": _seconds(row.ttft_s),
        "tpot_s": _seconds(row.tpot_s),
        "e2e_s": _seconds(row.e2e_s),
        "bounds": {
            "ttft_s": _seconds(row.ttft_bound_s),
            "tpot_s": _seconds(row.tpot_bound_s),
            "e2e_s": _seconds(row.e2e_bound_s),
        },
        "prompt_tokens": row.prompt_tokens,
        "prompt_tokens_estimated": history.estimated_tokens,
        "cached_tokens": cached_tokens(row),
        "output_tokens": row.output_tokens,
        "reasoning_tokens": None if row.answer is None else row.answer.reasoning_tokens,
        "max_tokens": history.max_tokens,
        "tokens_exact": row.tokens_exact,
        "decision": None if not history.rule else _decision(row),
        "waited": row.waited,
        "hedged": None if row.hedged is None else row.hedged.value,
        "degraded": row.degraded,
        "explored": row.explored,
        "would_shed": row.would_shed,
        "attempts": [{**_attempt(each, opened_at), "answered": each is row.answer} for each in history.attempts],
        "traceparent": row.traceparent or None,
        "policy": row.policy,
    }


def _decision(row: RequestRow) -> dict[str, object]:
    """The last decision of admission. Its forecast is None if no objective applied."""
    history = row.history
    has_forecast = history.ttft_s is not None
    return {
        "rule": history.rule,
        "mode": history.mode,
        "binds": history.binds or None,
        "breach": row.breach,
        "threshold": history.threshold,
        "forecast": {
            "wait_s": _seconds(history.wait_s),
            "ttft_s": _seconds(history.ttft_s),
            "tpot_s": _seconds(history.tpot_s),
            "e2e_s": _seconds(history.e2e_s),
        }
        if has_forecast
        else None,
        "runner_up": {
            "replica": history.runner_up,
            "ttft_s": _seconds(history.runner_up_ttft_s),
            "breach": history.runner_up_breach,
        }
        if history.runner_up
        else None,
    }


def _attempt(one: AttemptHistory, opened_at: float) -> dict[str, object]:
    """An attempt. Its times count from body complete, like all others."""

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - opened_at, DIGITS)

    return {
        "pool": one.pool,
        "replica": one.replica,
        "hedge": one.hedge,
        "opened_s": since(one.opened_at),
        "sent_s": since(one.sent_at),
        "first_token_s": since(one.first_at),
        "ended_s": since(one.ended_at),
        "expected_ttft_s": _seconds(one.expected_ttft_s),
        "end": one.end,
        "status": one.status,
        "prompt_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        "cached_tokens": one.cached_tokens,
        "answer_id": one.answer_id or None,
    }


def missed(row: RequestRow) -> list[str]:
    """The metrics whose bound an answer missed; empty if it met all of them, or was no whole answer."""
    if row.good or row.outcome is not Outcome.OK:
        return []
    late = (
        ("ttft", row.ttft_s, row.ttft_bound_s),
        ("tpot", row.tpot_s, row.tpot_bound_s),
        ("e2e", row.e2e_s, row.e2e_bound_s),
    )
    return [name for name, value_s, bound_s in late if value_s is not None and value_s > bound_s]


def cached_tokens(row: RequestRow) -> int | None:
    """Prompt tokens that the engine of the forwarded answer found in its cache; None if it did not say so."""
    answer = row.answer
    return None if answer is None else answer.cached_tokens


def _seconds(value_s: float | None) -> float | None:
    """Rounded seconds. JSON has no infinity: no bound, and a retry that never succeeds, are None."""
    return None if value_s is None or math.isinf(value_s) else round(value_s, DIGITS)
