"""Results: how requests, attempts and checks ended, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.core.history import History
from gateway.core.request import Request
from gateway.core.sample import Proof as Proof
from gateway.core.sample import Sample as Sample


class Reason(StrEnum):
    """Why a request was not served. The value is sent in `x-tailgate-reason` and is a metric label."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    # refused before it became a Request
    BAD_REQUEST = "bad-request"
    UNAUTHORIZED = "unauthorized"
    HOST_NOT_ALLOWED = "host-not-allowed"
    ORIGIN_NOT_ALLOWED = "origin-not-allowed"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    MODEL_NOT_FOUND = "model-not-found"
    RESPONSE_NOT_FOUND = "response-not-found"
    BODY_TOO_LARGE = "body-too-large"
    HEADERS_TOO_LARGE = "headers-too-large"
    RECEIVE_TIMEOUT = "receive-timeout"
    UNSUPPORTED_ENCODING = "unsupported-encoding"
    EXPECTATION_FAILED = "expectation-failed"
    NO_WEBSOCKETS = "no-websockets"
    RECEIVING_FULL = "receiving-full"
    # refused because it seems to kill replicas
    QUARANTINED = "quarantined"
    # impossible whatever the load
    CONTEXT_LENGTH = "context-length"
    FORBIDDEN_MODEL = "forbidden-model"
    # the tenant's own limits
    LIMIT_REQUESTS = "limit-requests"
    LIMIT_TOKENS = "limit-tokens"
    LIMIT_CONCURRENCY = "limit-concurrency"
    LIMIT_QUOTA = "limit-quota"
    # short of room at the moment: worth trying again
    PREDICTED = "predicted-breach"
    """The forecast says that the request would miss an objective."""
    QUEUE_FULL = "queue-full"
    EVICTED = "evicted"
    # no capacity at all
    NO_REPLICAS = "no-replicas"
    SHUTTING_DOWN = "shutting-down"
    # deadlines
    QUEUE_TIMEOUT = "queue-timeout"
    CONNECT_TIMEOUT = "connect-timeout"
    TTFT_TIMEOUT = "ttft-timeout"
    IDLE_TIMEOUT = "idle-timeout"
    TOTAL_TIMEOUT = "total-timeout"
    # cut by us, because the answer would not have ended well
    REPETITION = "repetition"
    OUTPUT_LENGTH = "output-length"
    # caused by the replica
    UPSTREAM_UNREACHABLE = "upstream-unreachable"
    UPSTREAM_BUSY = "upstream-busy"
    UPSTREAM_ERROR = "upstream-error"
    UPSTREAM_TRUNCATED = "upstream-truncated"
    UPSTREAM_UNREADABLE = "upstream-unreadable"
    UPSTREAM_REJECTED = "upstream-rejected"
    # caused by the client
    CLIENT_GONE = "client-gone"
    CLIENT_STALLED = "client-stalled"
    # caused by the gateway
    INTERNAL = "internal"


LIMITS: Final = frozenset({Reason.LIMIT_REQUESTS, Reason.LIMIT_TOKENS, Reason.LIMIT_CONCURRENCY, Reason.LIMIT_QUOTA})
"""Reasons that are a limit of a tenant."""


class Outcome(StrEnum):
    """How a request ended, for metrics. Goodput is (OK and within the SLO) / (all outcomes that count)."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    OK = "ok"
    REFUSED = "refused"
    """We refused it for lack of capacity. Counts as a miss, like the next three."""
    TIMEOUT = "timeout"
    CUT = "cut"
    """We ended an answer that had begun. The answer says so."""
    ERROR = "error"
    QUOTA = "quota"
    """The tenant exceeded its limit. This and the next two do not count in goodput."""
    INVALID = "invalid"
    """The request was invalid (4xx)."""
    ABANDONED = "abandoned"
    """The client left."""

    @property
    def counts(self) -> bool:
        """Whether the outcome counts in goodput's denominator."""
        return self in (Outcome.OK, Outcome.REFUSED, Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)


class CountSource(StrEnum):
    """Source of the count in a `count_tokens` answer. A metric label."""

    ENGINE = "engine"
    ESTIMATE = "estimate"
    """The gateway estimated it from the learned ratio of tokens to bytes."""


class MirrorResult(StrEnum):
    """Outcome of a copy for a shadow pool. A metric label."""

    OK = "ok"
    FAILED = "failed"
    """No replica of the shadow pool was up and took the model, or its answer was an error or too late."""
    FULL = "full"
    """Not sent, because too many copies, or too many bytes of copies, were under way."""
    SHEDDING = "shedding"
    """Not sent, because the gateway was short of capacity."""


class Callback(StrEnum):
    """Kind of a callback of the gateway that raised an exception (a bug). A metric label."""

    DECISION = "decision"
    """A call of the controller."""
    COMMAND = "command"
    """Carrying out commands of the controller."""
    REPLICA = "replica"
    """Bytes or events of a connection: to a replica, from a client, or to the admin port."""
    CLIENT = "client"
    ADMIN = "admin"
    TIMER = "timer"
    """A deadline of a connection, or periodic work."""
    WATCH = "watch"
    """Handling a health check, a scrape or a list of models."""


class HedgeResult(StrEnum):
    """Result of a hedge: a request was sent a second time because its first token was late."""

    WON = "won"
    LOST = "lost"
    """The first attempt had its first token before the duplicate."""
    FAILED = "failed"
    """Neither attempt had a first token."""


class AttemptOutcome(StrEnum):
    __hash__ = str.__hash__  # Enum's own is a function in Python

    COMPLETE = "complete"
    REJECTED = "rejected"
    """The engine answered 4xx. That is the request's fault, so it is neutral to health."""
    BUSY = "busy"
    """The engine answered 429 or 503, or a 200 that contains such an error: neutral to the breaker."""
    CLOSING = "closing"
    """The engine answered that it is shutting down. It has not worked on the request, and accepts no others."""
    FAILED = "failed"
    """The engine answered another 5xx, or an error event."""
    UNREACHABLE = "unreachable"  # no connection could be made, so the replica never saw the request
    CONNECT_TIMEOUT = "connect-timeout"
    GATEWAY_LATE = "gateway-late"  # not connected in time, but the gateway itself had stood still
    IDLE_CLOSED = "idle-closed"  # the replica closed an idle connection just as it was used
    RESET = "reset"  # the connection broke before any byte of the answer
    TRUNCATED = "truncated"
    """The answer broke off, was not HTTP, or was aborted by the engine."""
    UNREADABLE = "unreadable"
    """The answer is complete HTTP, but its content cannot be forwarded. This is neutral to health."""
    CANCELLED = "cancelled"
    """We closed the attempt: the client left, a deadline passed, or another attempt won."""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that another controller opened, and that goes on."""

    attempt: int
    replica: str
    sent_at: float | None
    first_at: float | None
    """Time of its first token; None if none has come, or if none can be seen."""
    committed: bool
    """Whether its answer is forwarded to the client."""


@dataclass(slots=True, init=False)
class AttemptResult:
    """The result of an attempt. Token counts are from the engine's `usage`; None if it sent none."""

    end: AttemptOutcome
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_seen: int = 0
    """Number of events with content that were forwarded. It is the estimate of output tokens if there is no usage."""
    status: int | None = None
    retry_after_s: float | None = None
    body_hash: int | None = None
    """64-bit hash of the request body, if the attempt failed before commit."""
    empty: bool = False
    """Whether the answer is complete but useless: nothing was generated, or it cannot be read."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine found in its prefix cache; None if it does not report them."""
    context_tokens: int | None = None
    """The engine's context, if it refused the request for its length and named the context."""
    answer_id: str = field(default="", repr=False, compare=False)
    """The engine's id of the answer, for people; empty if it is unknown."""
    reasoning_tokens: int | None = field(default=None, repr=False, compare=False)
    """Output tokens that are reasoning; None if the engine does not report them. They decide nothing."""

    def __init__(
        self,
        end: AttemptOutcome,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        tokens_seen: int = 0,
        status: int | None = None,
        retry_after_s: float | None = None,
        body_hash: int | None = None,
        empty: bool = False,
        cached_tokens: int | None = None,
        context_tokens: int | None = None,
        answer_id: str = "",
        reasoning_tokens: int | None = None,
    ) -> None:
        self.end = end
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.tokens_seen = tokens_seen
        self.status = status
        self.retry_after_s = retry_after_s
        self.body_hash = body_hash
        self.empty = empty
        self.cached_tokens = cached_tokens
        self.context_tokens = context_tokens
        self.answer_id = answer_id
        self.reasoning_tokens = reasoning_tokens


@mypyc_attr(acyclic=True)
@dataclass(slots=True, init=False)
class Record:
    """Record of a request that is over, for metrics, logs and the journal. Durations in seconds."""

    request: Request
    outcome: Outcome
    why: Reason | None
    pool: str | None
    replica: str | None
    queue_s: float
    """From body complete to the first dispatch that reached a replica, or to the end if none did."""
    ttft_s: float | None
    """From body complete to the first content token; None if there was none, or the answer was not streamed."""
    tpot_s: float | None
    """(ended - first token) / (output tokens - 1); None for fewer than two tokens, or if TTFT is None."""
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    tokens_exact: bool
    """Whether the token counts are from the engine's `usage`; if not, they are estimates."""
    good: bool
    """Whether the outcome is OK and every latency is within its bound."""
    attempts: int
    breach: float | None = None
    """P(breach) that was forecast on arrival; None without a forecast."""
    would_shed: bool = False
    """Whether the tier's mode is `shadow`, and `enforce` would have shed the request."""
    explored: bool = False
    """Whether the request was doubtful and was admitted as exploration, to learn from its outcome."""
    degraded: bool = False
    hedged: HedgeResult | None = None
    waited: bool = False
    history: History | None = field(default=None, repr=False, compare=False)
    """The decision and the attempts, for people; None in a simulation of another balancer."""

    def __init__(
        self,
        request: Request,
        outcome: Outcome,
        why: Reason | None,
        pool: str | None,
        replica: str | None,
        queue_s: float,
        ttft_s: float | None,
        tpot_s: float | None,
        e2e_s: float,
        prompt_tokens: int,
        output_tokens: int,
        tokens_exact: bool,
        good: bool,
        attempts: int,
        breach: float | None = None,
        would_shed: bool = False,
        explored: bool = False,
        degraded: bool = False,
        hedged: HedgeResult | None = None,
        waited: bool = False,
        history: History | None = None,
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.why = why
        self.pool = pool
        self.replica = replica
        self.queue_s = queue_s
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s
        self.e2e_s = e2e_s
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.tokens_exact = tokens_exact
        self.good = good
        self.attempts = attempts
        self.breach = breach
        self.would_shed = would_shed
        self.explored = explored
        self.degraded = degraded
        self.hedged = hedged
        self.waited = waited
        self.history = history

    @property
    def admission(self) -> int:
        """Index among four counts: first tries refused, admitted; client retries refused, admitted."""
        return 2 * self.request.comeback + (self.attempts > 0)
