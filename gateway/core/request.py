"""Values about a request: the request itself, the results of its attempts, and its record.

Times are of `time.monotonic`, in seconds. docs/internals/architecture.md has the table of their anchors.

Values made for every request (requests, commands, records) never change, but are not frozen: that would take four times
as long. Their `__init__` is written out, because that of `dataclass` is not compiled and takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from gateway.core.policy import Model, Policy, Slo, Tier
from gateway.core.sample import Proof as Proof
from gateway.core.sample import Sample as Sample
from gateway.core.sessions import Session, StoredResponse


class Random(Protocol):
    """The caller's seeded source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """A float in [0, 1)."""


class Endpoint(StrEnum):
    """API calls that reach a replica. The value is the path."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    RERANK = "/v1/rerank"
    RERANK_BARE = "/rerank"
    RERANK_V2 = "/v2/rerank"
    SCORE = "/v1/score"
    SCORE_BARE = "/score"
    POOLING = "/pooling"
    CLASSIFY = "/classify"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"


GENERATING: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints that generate text, so their answers have an output cap."""
WEIGHTLESS: Final = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""Endpoints that an engine answers without its GPU. No latency is learned from them."""


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
    """No replica of the shadow pool was up, or its answer was an error or too late."""
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


@dataclass(frozen=True, slots=True)
class Prefix:
    """The leading blocks of a prompt. Each block is named by a hash of the prompt up to the block's end."""

    blocks: tuple[int, ...] = ()
    """Hashes (64 bits) of the blocks, from the beginning of the prompt."""
    ends: tuple[int, ...] = ()
    """Bytes of the prompt up to the end of each block, ascending."""
    size: int = 0  # bytes of the whole prompt in the form that is hashed
    has_media: bool = False  # whether the prompt has pictures or sound; their size is an estimate


NO_PREFIX: Final = Prefix()


@dataclass(slots=True, init=False)
class Request:
    """A request that needs a replica. The caller fills it once; then it is only read."""

    id: int
    policy: Policy
    tier: Tier
    model: Model
    tenant: str
    endpoint: Endpoint
    stream: bool
    prompt_bytes: int
    """UTF-8 bytes of all parts that become prompt: messages, tools, instructions."""
    prompt_exact: int | None
    """Exact number of prompt tokens (from token ids); None if only an estimate is possible."""
    max_tokens: int | None
    """Output cap per choice that the client set; None if it set none."""
    choices: int
    """Number of sequences to generate: n (or best_of) times `batch`, >= 1."""
    body_bytes: int
    head_at: float
    body_at: float
    batch: int = 1  # number of prompts in the request; each has to fit a pool by itself
    asked_model: str = ""  # the model name that the client asked for, if `model` is the catch-all
    body_hash: int | None = None
    """64-bit hash of the body; None while the controller has no `suspects`."""
    slo: Slo | None = None
    """The tier's SLO, tightened as the request asks for; None if it is the tier's own."""
    assembled: bool = False
    """Whether the replica streams the answer to us, while the client gets it as a whole."""
    prefix: Prefix = NO_PREFIX
    """Hashes of the prompt's beginning. With them, replicas that have it cached are found."""
    split: str = ""
    """Name of the split model that the client asked for, if `model` is an arm of it."""
    is_token_ids: bool = False
    """Whether the prompt consists of token ids, which have a meaning only for this model."""
    fallback_of: str = ""
    """Name of the model that the client asked for, if `model` is the fallback of its tier."""
    adapter: str = ""
    """LoRA adapter that the client asked for, under the name that replicas list; empty if none."""
    session: Session | None = None
    comeback: bool = False
    """Whether the client says that this is a retry."""
    stored: StoredResponse | None = None
    """The stored response that the request continues; None if none."""
    truncates: bool = False  # whether the engine is asked to cut a prompt that is too long

    def __init__(
        self,
        id: int,
        policy: Policy,
        tier: Tier,
        model: Model,
        tenant: str,
        endpoint: Endpoint,
        stream: bool,
        prompt_bytes: int,
        prompt_exact: int | None,
        max_tokens: int | None,
        choices: int,
        body_bytes: int,
        head_at: float,
        body_at: float,
        batch: int = 1,
        asked_model: str = "",
        body_hash: int | None = None,
        slo: Slo | None = None,
        assembled: bool = False,
        prefix: Prefix = NO_PREFIX,
        split: str = "",
        is_token_ids: bool = False,
        fallback_of: str = "",
        adapter: str = "",
        session: Session | None = None,
        comeback: bool = False,
        stored: StoredResponse | None = None,
        truncates: bool = False,
    ) -> None:
        self.id = id
        self.policy = policy
        self.tier = tier
        self.model = model
        self.tenant = tenant
        self.endpoint = endpoint
        self.stream = stream
        self.prompt_bytes = prompt_bytes
        self.prompt_exact = prompt_exact
        self.max_tokens = max_tokens
        self.choices = choices
        self.body_bytes = body_bytes
        self.head_at = head_at
        self.body_at = body_at
        self.batch = batch
        self.asked_model = asked_model
        self.body_hash = body_hash
        self.slo = slo
        self.assembled = assembled
        self.prefix = prefix
        self.split = split
        self.is_token_ids = is_token_ids
        self.fallback_of = fallback_of
        self.adapter = adapter
        self.session = session
        self.comeback = comeback
        self.stored = stored
        self.truncates = truncates

    @property
    def visible(self) -> bool:
        """Whether the tokens of its answer can be seen one by one as they come."""
        return self.stream or self.assembled


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


@dataclass(slots=True, init=False)
class Record:
    """Record of a request that is over, for metrics, logs and the journal. Durations in seconds."""

    request: Request
    outcome: Outcome
    why: Reason | None
    pool: str | None
    replica: str | None
    queue_s: float
    """From body complete to the first dispatch, or to the end if there was none."""
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
    in_vain: float | None = None
    """P(refused after waiting) that was forecast when it was queued; None without a wait or a forecast."""

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
        in_vain: float | None = None,
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
        self.in_vain = in_vain

    @property
    def admission(self) -> int:
        """Index among four counts: first tries refused, admitted; client retries refused, admitted."""
        return 2 * self.request.comeback + (self.attempts > 0)
