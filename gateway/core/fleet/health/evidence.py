"""Evidence: what each observation says of a process, and whom it is about. All judgements of replicas read this table.

A request can provoke evidence about "the replica or the request". It never shows alone that a replica is ill: two
tenants and two bodies are needed, and a pool that does better (judge.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Proof, Sample


class Says(StrEnum):
    """Meaning of an observation for the process behind a replica."""

    DEAD = "dead"
    SLOW = "slow"
    ODD = "odd"
    ALIVE = "alive"
    NOTHING = "nothing"


class About(StrEnum):
    """The possible causes of an observation."""

    REPLICA = "the replica"
    EITHER = "the replica or the request"
    REQUEST = "the request"
    US = "us"


class EjectionReason(StrEnum):
    """Why a replica is ejected."""

    SLOW_TTFT = "slow-ttft"
    SLOW_ITL = "slow-itl"
    STALLED = "stalled"
    ODD_ANSWERS = "odd-answers"
    FAILING = "failing"


class Observation(StrEnum):
    """One thing seen of a replica, in words for logs and docs."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    ANSWER = "useful answer"
    EMPTY = "empty or unreadable answer"
    REJECTED = "HTTP 4xx"
    TOO_LONG = "refusal of a prompt that names the context"
    BUSY = "HTTP 429 or 503"
    FAILED = "other HTTP 5xx, or an error event"
    CLOSING = "answer that the engine shuts down"
    ABORTED = "answer that the engine aborted, or ended early"
    CUT = "connection broken within the answer"
    RESET = "connection broken before the answer"
    UNREACHABLE = "no connection"
    CONNECT_TIMEOUT = "connecting timed out"
    CANCELLED = "attempt that we closed"
    OURS = "deadline that we noticed late"
    IDLE_CLOSED = "idle connection closed as we used it"
    TOKENS = "token of a stream"
    COUNTED = "new tokens in the engine's metrics"
    STREAMS_SILENT = "streams without a token"
    COUNT_STANDS = "requests running, and no new token in the engine's metrics"
    WHOLE_SILENT = "unstreamed answers that have not come"
    LATE_TTFT = "first tokens later than forecast"
    LATE_ITL = "tokens slower than forecast"
    CHECK_PASSED = "health check passed"
    CHECK_FAILED = "health check failed"
    CHECK_LATE = "health check timed out while tokens came"
    LISTED = "gateway's own probe: check and model list answered"
    PROVED = "gateway's own probe: also a completion answered"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of the table."""

    says: Says
    about: About
    is_answer: bool = False
    """Whether it is a complete HTTP answer. Any status proves that the process lives."""
    out: EjectionReason | None = None
    """Why a replica is ejected if it lasts; None if such evidence ejects nobody."""


_REPLICA: Final = About.REPLICA
_EITHER: Final = About.EITHER

EVIDENCE: Final[dict[Observation, Evidence]] = {
    Observation.ANSWER: Evidence(Says.ALIVE, _REPLICA, True),
    Observation.EMPTY: Evidence(Says.ODD, _EITHER, True, EjectionReason.ODD_ANSWERS),
    Observation.REJECTED: Evidence(Says.ODD, About.REQUEST, True, EjectionReason.ODD_ANSWERS),
    Observation.TOO_LONG: Evidence(Says.NOTHING, About.REQUEST, True),
    Observation.BUSY: Evidence(Says.NOTHING, _REPLICA, True),
    Observation.FAILED: Evidence(Says.ODD, _EITHER, True, EjectionReason.FAILING),
    Observation.CLOSING: Evidence(Says.DEAD, _REPLICA),
    Observation.ABORTED: Evidence(Says.ODD, _EITHER, True, EjectionReason.FAILING),
    Observation.CUT: Evidence(Says.ODD, _EITHER, False, EjectionReason.FAILING),
    Observation.RESET: Evidence(Says.ODD, _EITHER, False, EjectionReason.FAILING),
    Observation.UNREACHABLE: Evidence(Says.DEAD, _REPLICA),
    Observation.CONNECT_TIMEOUT: Evidence(Says.DEAD, _REPLICA),
    Observation.CANCELLED: Evidence(Says.NOTHING, About.US),
    Observation.OURS: Evidence(Says.NOTHING, About.US),
    Observation.IDLE_CLOSED: Evidence(Says.NOTHING, About.US),
    Observation.TOKENS: Evidence(Says.ALIVE, _REPLICA),
    Observation.COUNTED: Evidence(Says.ALIVE, _REPLICA),
    Observation.STREAMS_SILENT: Evidence(Says.SLOW, _REPLICA, False, EjectionReason.STALLED),
    Observation.COUNT_STANDS: Evidence(Says.SLOW, _REPLICA, False, EjectionReason.STALLED),
    Observation.WHOLE_SILENT: Evidence(Says.NOTHING, _REPLICA),
    Observation.LATE_TTFT: Evidence(Says.SLOW, _REPLICA, False, EjectionReason.SLOW_TTFT),
    Observation.LATE_ITL: Evidence(Says.SLOW, _REPLICA, False, EjectionReason.SLOW_ITL),
    Observation.CHECK_PASSED: Evidence(Says.ALIVE, _REPLICA),
    Observation.CHECK_FAILED: Evidence(Says.DEAD, _REPLICA),
    Observation.CHECK_LATE: Evidence(Says.NOTHING, _REPLICA),
    Observation.LISTED: Evidence(Says.ALIVE, _REPLICA),
    Observation.PROVED: Evidence(Says.ALIVE, _REPLICA),
}

_PROOF: Final = {
    Proof.NONE: Observation.CHECK_PASSED,
    Proof.LISTED: Observation.LISTED,
    Proof.COMPLETED: Observation.PROVED,
}

SEEN: Final[dict[AttemptOutcome, Observation]] = {
    AttemptOutcome.COMPLETE: Observation.ANSWER,
    AttemptOutcome.REJECTED: Observation.REJECTED,
    AttemptOutcome.BUSY: Observation.BUSY,
    AttemptOutcome.CLOSING: Observation.CLOSING,
    AttemptOutcome.FAILED: Observation.FAILED,
    AttemptOutcome.UNREACHABLE: Observation.UNREACHABLE,
    AttemptOutcome.CONNECT_TIMEOUT: Observation.CONNECT_TIMEOUT,
    AttemptOutcome.GATEWAY_LATE: Observation.OURS,
    AttemptOutcome.IDLE_CLOSED: Observation.IDLE_CLOSED,
    AttemptOutcome.RESET: Observation.RESET,
    AttemptOutcome.TRUNCATED: Observation.CUT,
    AttemptOutcome.UNREADABLE: Observation.EMPTY,
    AttemptOutcome.CANCELLED: Observation.CANCELLED,
}


def seen_of(result: AttemptResult) -> Observation:
    """The observation that the end of an attempt is."""
    if result.context_tokens is not None:
        return Observation.TOO_LONG
    if result.end is AttemptOutcome.TRUNCATED and result.status is not None:
        return Observation.ABORTED  # the HTTP message was complete
    return Observation.EMPTY if result.empty else SEEN[result.end]


def text_of(result: AttemptResult, endpoint: Endpoint) -> str:
    """The end of an attempt in words, for the last error of its replica."""
    if result.status is not None and result.status >= 400:
        return f"HTTP {result.status} on {endpoint}"
    seen = seen_of(result)
    return f"{'error event' if seen is Observation.FAILED else seen} on {endpoint}"


def checked(sample: Sample, said_at: float) -> Observation | None:
    """The observation that a health check or our own probe is; None for other samples. `said_at`: when the replica last
    said anything.

    A busy engine may answer a check late, because it sends tokens first. An answer with an error counts: a server that
    shuts down wants no new requests. So does a check without a connection: tokens on open ones do not show that new
    ones are accepted.
    """
    if sample.healthy is None:
        return None
    if sample.healthy:
        return _PROOF[sample.proof]
    had_tokens = sample.asked_at is not None and said_at >= sample.asked_at
    return Observation.CHECK_LATE if sample.late and had_tokens else Observation.CHECK_FAILED


def fails(seen: Observation) -> bool:
    """Whether it is a failure that the replica or the body of the request may have caused."""
    return EVIDENCE[seen].out is EjectionReason.FAILING


def may_kill(seen: Observation) -> bool:
    """Whether the request may have killed the process: it failed, and there was no complete answer."""
    return fails(seen) and not EVIDENCE[seen].is_answer
