"""The frames between relays and the decider: requests, results, commands and records as plain values.

A frame is a list that begins with its kind. Frames about requests have the time (seconds of CLOCK_MONOTONIC, which is
the same in all processes of a machine) in the second place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from gateway.core.history import EarlyRefusal, Origin
from gateway.core.policy import Policy
from gateway.core.queueing.bucket import Rate
from gateway.core.queueing.limits import Left
from gateway.core.request import NO_PREFIX, Affinity, Endpoint, Prefix, Request
from gateway.core.results import (
    AttemptOutcome,
    AttemptResult,
    HedgeResult,
    Outcome,
    Reason,
    Record,
    RunningAttempt,
)
from gateway.core.sessions import Session, StoredResponse
from gateway.driving.channel import Frame
from gateway.driving.policy_bytes import slo_from_bytes, to_bytes

# From a relay to the decider.
ARRIVE: Final = 0
SENT: Final = 1
FIRST_TOKEN: Final = 2
FULL: Final = 3
REPEATS: Final = 4
PAUSED: Final = 5
RESUMED: Final = 6
PROGRESS: Final = 7
FINISH: Final = 8
LEAVE: Final = 9
FAIL: Final = 10
ADOPT: Final = 11
METER: Final = 12
"""One fact for metrics: the name of a method of `Meter`, and its arguments."""
GAPS: Final = 13
"""Times between events of streams: tier, pool, upper edges of buckets, new counts in them, and sum of the new times."""
LOST: Final = 14
"""A connection to a server was lost or refused."""
ASK: Final = 15
"""A question: its number, its subject, and its arguments. The decider tells the ANSWER with the number."""
STORED: Final = 16
LOADS: Final = 17
"""How busy the relay is, for metrics and state."""

# From the decider to a relay.
DISPATCH: Final = 20
COMMIT: Final = 21
CANCEL: Final = 22
REFUSE: Final = 23
CUT: Final = 24
ENDED: Final = 25
ABORT: Final = 26
POLICY: Final = 27
FACTS: Final = 28
CARDS: Final = 29
ANSWER: Final = 30
LIMITED: Final = 31
"""A tenant is beyond a limit until a time; or no longer, if the time is 0."""

_ENDPOINTS: Final = {endpoint.value: endpoint for endpoint in Endpoint}
_ENDS: Final = {end.value: end for end in AttemptOutcome}
_WHYS: Final = {why.value: why for why in Reason}
_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_HEDGED: Final = {result.value: result for result in HedgeResult}


def request_row(request: Request, generation: int) -> Frame:
    """A request as plain values. Tier and models go by their names in the policy of this generation."""
    affinity = request.affinity
    prefix, session, stored = affinity.prefix, affinity.session, affinity.stored
    return (
        request.id,
        generation,
        request.tier.name,
        request.model.name,
        request.tenant,
        request.endpoint.value,
        request.stream,
        request.prompt_bytes,
        request.prompt_exact,
        request.max_tokens,
        request.choices,
        request.body_bytes,
        request.head_at,
        request.body_at,
        request.batch,
        request.asked_model,
        request.body_hash,
        None if request.slo is None else to_bytes(request.slo),
        request.assembled,
        (prefix.blocks, prefix.ends, prefix.size, prefix.has_media) if prefix.size else None,
        request.split,
        request.is_token_ids,
        request.fallback_of,
        affinity.adapter,
        None if session is None else (session.name, session.key),
        request.comeback,
        None if stored is None else (stored.replica, stored.tokens),
        request.truncates,
        (request.origin.request_id, request.origin.key, request.origin.traceparent),
    )


def request_of(row: list[object], policy: Policy) -> Request:
    """The request of a row. `policy`: that of the generation in the row."""
    prefix, session, stored, slo = row[19], row[24], row[26], row[17]
    made = NO_PREFIX
    if prefix is not None:
        assert isinstance(prefix, list)
        made = Prefix(tuple(prefix[0]), tuple(prefix[1]), prefix[2], prefix[3])
    held: Session | None = None
    if session is not None:
        assert isinstance(session, list)
        held = Session(session[0], session[1])
    kept: StoredResponse | None = None
    if stored is not None:
        assert isinstance(stored, list)
        kept = StoredResponse(stored[0], stored[1])
    return Request(
        id=cast(int, row[0]),
        policy=policy,
        tier=policy.tiers[cast(str, row[2])],
        model=policy.models[cast(str, row[3])],
        tenant=cast(str, row[4]),
        endpoint=_ENDPOINTS[cast(str, row[5])],
        stream=cast(bool, row[6]),
        prompt_bytes=cast(int, row[7]),
        prompt_exact=cast("int | None", row[8]),
        max_tokens=cast("int | None", row[9]),
        choices=cast(int, row[10]),
        body_bytes=cast(int, row[11]),
        head_at=cast(float, row[12]),
        body_at=cast(float, row[13]),
        batch=cast(int, row[14]),
        asked_model=cast(str, row[15]),
        body_hash=cast("int | None", row[16]),
        slo=None if slo is None else slo_from_bytes(cast(bytes, slo)),
        assembled=cast(bool, row[18]),
        split=cast(str, row[20]),
        is_token_ids=cast(bool, row[21]),
        fallback_of=cast(str, row[22]),
        affinity=Affinity(made, held, kept, cast(str, row[23])),
        comeback=cast(bool, row[25]),
        truncates=cast(bool, row[27]),
        origin=_origin(cast("list[str]", row[28])),
    )


def _origin(row: list[str]) -> Origin:
    return Origin(row[0], row[1], row[2])


def running_rows(running: Iterable[RunningAttempt]) -> list[Frame]:
    """Attempts under way as plain values."""
    return [(each.attempt, each.replica, each.sent_at, each.first_at, each.committed) for each in running]


def running_of(rows: list[list[object]]) -> list[RunningAttempt]:
    """The attempts of these rows."""
    return [
        RunningAttempt(
            cast(int, row[0]),
            cast(str, row[1]),
            cast("float | None", row[2]),
            cast("float | None", row[3]),
            cast(bool, row[4]),
        )
        for row in rows
    ]


def result_row(result: AttemptResult) -> Frame:
    """The result of an attempt as plain values."""
    return (
        result.end.value,
        result.prompt_tokens,
        result.output_tokens,
        result.tokens_seen,
        result.status,
        result.retry_after_s,
        result.body_hash,
        result.empty,
        result.cached_tokens,
        result.context_tokens,
        result.answer_id,
        result.reasoning_tokens,
    )


def result_of(row: list[object]) -> AttemptResult:
    """The result of a row."""
    return AttemptResult(
        _ENDS[cast(str, row[0])],
        cast("int | None", row[1]),
        cast("int | None", row[2]),
        cast(int, row[3]),
        cast("int | None", row[4]),
        cast("float | None", row[5]),
        cast("int | None", row[6]),
        cast(bool, row[7]),
        cast("int | None", row[8]),
        cast("int | None", row[9]),
        cast(str, row[10]),
        cast("int | None", row[11]),
    )


def early_row(refusal: EarlyRefusal) -> Frame:
    """A request that was refused unread, as plain values."""
    return (
        refusal.at,
        refusal.why,
        refusal.request_id,
        refusal.param,
        refusal.tenant,
        refusal.tier,
        refusal.key,
        refusal.retry_after_s,
    )


def early_of(row: list[object]) -> EarlyRefusal:
    """The refused request of a row."""
    refusal = EarlyRefusal(cast(float, row[0]), cast(str, row[1]), cast(str, row[2]))
    refusal.param, refusal.tenant = cast(str, row[3]), cast(str, row[4])
    refusal.tier, refusal.key = cast(str, row[5]), cast(str, row[6])
    refusal.retry_after_s = cast("float | None", row[7])
    return refusal


def record_row(record: Record) -> Frame:
    """A record without its request, as plain values."""
    return (
        record.outcome.value,
        None if record.why is None else record.why.value,
        record.pool,
        record.replica,
        record.queue_s,
        record.ttft_s,
        record.tpot_s,
        record.e2e_s,
        record.prompt_tokens,
        record.output_tokens,
        record.tokens_exact,
        record.good,
        record.attempts,
        record.breach,
        record.would_shed,
        record.explored,
        record.degraded,
        None if record.hedged is None else record.hedged.value,
        record.waited,
    )


def record_of(row: list[object], request: Request) -> Record:
    """The record of `request` in a row of `record_row`."""
    why, hedged = row[1], row[17]
    return Record(
        request,
        _OUTCOMES[cast(str, row[0])],
        None if why is None else _WHYS[cast(str, why)],
        cast("str | None", row[2]),
        cast("str | None", row[3]),
        cast(float, row[4]),
        cast("float | None", row[5]),
        cast("float | None", row[6]),
        cast(float, row[7]),
        cast(int, row[8]),
        cast(int, row[9]),
        cast(bool, row[10]),
        cast(bool, row[11]),
        cast(int, row[12]),
        cast("float | None", row[13]),
        cast(bool, row[14]),
        cast(bool, row[15]),
        cast(bool, row[16]),
        None if hedged is None else _HEDGED[cast(str, hedged)],
        cast(bool, row[18]),
    )


def reason_of(value: object) -> Reason:
    """The reason of this value."""
    return _WHYS[cast(str, value)]


def hedge_of(value: object) -> HedgeResult | None:
    """The result of a hedge of this value; None if there was none."""
    return None if value is None else _HEDGED[cast(str, value)]


def left_of(pair: object) -> Left:
    """Requests and tokens that a tenant may still use, of a row."""
    requests, tokens = cast("list[list[float] | None]", pair)
    return _rate(requests), _rate(tokens)


def _rate(row: list[float] | None) -> Rate | None:
    return None if row is None else (row[0], row[1], row[2])
