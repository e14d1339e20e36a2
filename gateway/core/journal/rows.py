"""Fast writers for the values that every request has. `codec` writes any value, but takes eight times as long.

The form is the same as in `codec`. Fields must be written in the order of their class, because they are read in that
order.
"""

from __future__ import annotations

from typing import Final

from gateway.core.commands import Commit, Dispatch
from gateway.core.journal.codec import members
from gateway.core.request import Affinity, Endpoint, Request
from gateway.core.results import AttemptOutcome, AttemptResult, HedgeResult, Outcome, Reason, Record

_ENDPOINTS: Final = members(Endpoint)
_ENDS: Final = members(AttemptOutcome)
_HEDGED: Final = members(HedgeResult)
_OUTCOMES: Final = members(Outcome)
_WHYS: Final = members(Reason)


def request(request: Request, policy: object, tier: object, model: object, slo: object) -> object:
    """A request in full, as plain data. `policy`, `tier`, `model` and `slo` are passed as plain data."""
    row = (
        request.id,
        policy,
        tier,
        model,
        request.tenant,
        _ENDPOINTS[request.endpoint],
        request.stream,
        request.prompt_bytes,
        request.prompt_exact,
        request.max_tokens,
        request.choices,
        request.body_bytes,
        _number(request.head_at),
        _number(request.body_at),
        request.batch,
        request.asked_model,
        request.body_hash,
        slo,
        request.assembled,
        request.split,
        request.is_token_ids,
        request.fallback_of,
        _affinity(request.affinity),
        request.comeback,
        request.truncates,
    )
    return {"Request": row}


def _affinity(affinity: Affinity) -> object:
    prefix, session, stored = affinity.prefix, affinity.session, affinity.stored
    row = (
        {
            "Prefix": {
                "blocks": prefix.blocks,
                "ends": prefix.ends,
                "size": prefix.size,
                "has_media": prefix.has_media,
            }
        },
        None if session is None else {"Session": {"name": session.name, "key": session.key}},
        None if stored is None else {"StoredResponse": {"replica": stored.replica, "tokens": stored.tokens}},
        affinity.adapter,
    )
    return {"Affinity": row}


def finish(result: AttemptResult) -> object:
    """The result of an attempt, as plain data."""
    row = (
        _ENDS[result.end],
        result.prompt_tokens,
        result.output_tokens,
        result.tokens_seen,
        result.status,
        _number(result.retry_after_s),
        result.body_hash,
        result.empty,
        result.cached_tokens,
        result.context_tokens,
    )
    return {"AttemptResult": row}


def dispatch(command: Dispatch) -> object:
    """A command."""
    return {
        "Dispatch": (
            command.request_id,
            command.attempt,
            command.replica,
            command.max_tokens,
            command.degraded,
            command.model,
        )
    }


def commit(command: Commit) -> object:
    """A command."""
    return {
        "Commit": (command.request_id, command.attempt, None if command.hedged is None else _HEDGED[command.hedged])
    }


def ended(record: Record) -> object:
    """The `Ended` command of a record, as plain data. It refers to the request by its id."""
    row = (
        {"Request": record.request.id},
        _OUTCOMES[record.outcome],
        None if record.why is None else _WHYS[record.why],
        record.pool,
        record.replica,
        _number(record.queue_s),
        _number(record.ttft_s),
        _number(record.tpot_s),
        _number(record.e2e_s),
        record.prompt_tokens,
        record.output_tokens,
        record.tokens_exact,
        record.good,
        record.attempts,
        _number(record.breach),
        record.would_shed,
        record.explored,
        record.degraded,
        None if record.hedged is None else _HEDGED[record.hedged],
        record.waited,
    )
    return {"Ended": ({"Record": row},)}


def _number(value: float | None) -> object:
    """A float as plain data. JSON has no infinity or NaN. For both, `value - value` is not 0."""
    return value if value is None or value - value == 0.0 else {"float": str(value)}
