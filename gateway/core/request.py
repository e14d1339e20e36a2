"""The nouns of a request: the request itself, the results of its attempts, and its record.

Time anchors, all from `time.monotonic` (seconds), all of one request:

    head_at       request head received         absolute deadlines count from here
    body_at       request body complete         the SLO clocks start: TTFT, e2e and queue time
    sent_at       attempt written to a replica  engine TTFT, the TTFT timeout and the hedge clock start
    first_at      first content token           TTFT ends, TPOT starts; commit of a streamed answer
    ended_at      answer complete or refused    TPOT and e2e end

Values made for every request (requests, commands, records) are never changed, yet not frozen: a frozen dataclass takes
four times as long to make. Their `__init__` is written out: the one that `dataclass` generates is never compiled, and
takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from gateway.core.policy import Model, Policy, Slo, Tier
from gateway.core.sessions import Session, StoredResponse


class Random(Protocol):
    """The caller's seeded source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Endpoint(StrEnum):
    """The API calls that reach a replica; the value is the path."""

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
"""Endpoints whose answers have an output cap. The others answer with numbers, or with text as long as the input."""
WEIGHTLESS: Final = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""Endpoints that an engine answers without its GPU, so no latency is learned from them."""


class Reason(StrEnum):
    """Why a request was not served: the machine-readable reason, `x-tailgate-reason` and a metric label."""

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
    # refused for what it did to replicas
    QUARANTINED = "quarantined"
    # impossible whatever the load
    CONTEXT_LENGTH = "context-length"
    FORBIDDEN_MODEL = "forbidden-model"
    # the tenant's own limits
    LIMIT_REQUESTS = "limit-requests"
    LIMIT_TOKENS = "limit-tokens"
    LIMIT_CONCURRENCY = "limit-concurrency"
    # contended: worth trying again
    PREDICTED = "predicted-breach"
    """The forecast says that it would miss its objective."""
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
    # cut by us, since it would not have ended well by itself
    REPETITION = "repetition"
    OUTPUT_LENGTH = "output-length"
    # the replica's doing
    UPSTREAM_UNREACHABLE = "upstream-unreachable"
    UPSTREAM_BUSY = "upstream-busy"
    UPSTREAM_ERROR = "upstream-error"
    UPSTREAM_TRUNCATED = "upstream-truncated"
    UPSTREAM_UNREADABLE = "upstream-unreadable"
    UPSTREAM_REJECTED = "upstream-rejected"
    # the client's doing
    CLIENT_GONE = "client-gone"
    CLIENT_STALLED = "client-stalled"
    # ours
    INTERNAL = "internal"


class Outcome(StrEnum):
    """How a request ended, for metrics. Goodput counts OK within the SLO over everything in the denominator."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    OK = "ok"
    REFUSED = "refused"
    """By us, for want of capacity: a miss. So are the next three."""
    TIMEOUT = "timeout"
    CUT = "cut"
    """We ended an answer that had begun, and said so in it."""
    ERROR = "error"
    QUOTA = "quota"
    """The tenant's own limit: counted apart."""
    INVALID = "invalid"
    """The request was wrong (4xx): counted apart."""
    ABANDONED = "abandoned"
    """The client left: counted apart."""

    @property
    def counts(self) -> bool:
        """Whether goodput's denominator includes it."""
        return self in (Outcome.OK, Outcome.REFUSED, Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)


class CountSource(StrEnum):
    """Where the count in a `count_tokens` answer came from. A metric label."""

    ENGINE = "engine"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"
    """The learned ratio of tokens to bytes."""


class MirrorResult(StrEnum):
    """Outcome of a copy that was due. A metric label."""

    OK = "ok"
    FAILED = "failed"
    """The shadow pool had no replica up, answered without success, or not in time."""
    FULL = "full"
    """Too many copies, or bytes of them, were under way, so it was not sent."""
    SHEDDING = "shedding"
    """The gateway was short of capacity, so it was not sent."""


class Callback(StrEnum):
    """The callback of ours that raised: a bug. A metric label."""

    DECISION = "decision"
    """A call of the controller."""
    COMMAND = "command"
    """Carrying out its commands."""
    REPLICA = "replica"
    """Bytes or news from a connection: to a replica, of a client, to the admin port."""
    CLIENT = "client"
    ADMIN = "admin"
    TIMER = "timer"
    """A deadline of a connection, or periodic work."""
    WATCH = "watch"
    """A health check, a scrape or a list of models."""


class HedgeResult(StrEnum):
    """Result of a hedge: a request that was sent a second time because its first token was late."""

    WON = "won"
    LOST = "lost"
    """The first attempt had the first token after all."""
    FAILED = "failed"
    """Neither had one."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a prompt: its leading blocks, each named by a hash of the prompt up to the block's end."""

    blocks: tuple[int, ...] = ()
    """Hashes (64 bits), the shortest beginning first."""
    ends: tuple[int, ...] = ()
    """Bytes of the prompt up to the end of each block, ascending."""
    size: int = 0  # bytes of the whole prompt, as it was hashed
    has_media: bool = False  # whether a part of it represents pictures or sound, at an estimated size


NO_PREFIX: Final = Prefix()


@dataclass(slots=True, init=False)
class Request:
    """One request that wants a replica. Filled once by the caller, then read only."""

    id: int
    policy: Policy
    tier: Tier
    model: Model
    tenant: str
    endpoint: Endpoint
    stream: bool
    prompt_bytes: int
    """UTF-8 bytes of everything that becomes prompt: messages, tools, instructions."""
    prompt_exact: int | None
    """Prompt tokens where known exactly (token ids, a tokenizer); else None and an estimate is learned."""
    max_tokens: int | None
    """Output tokens per choice that the client asked for; None without a figure."""
    choices: int
    """Number of sequences generated: n (or best_of) times the batch size, >= 1."""
    body_bytes: int
    head_at: float
    body_at: float
    batch: int = 1
    """Number of prompts. Each has to fit a pool by itself."""
    asked_model: str = ""
    """Model name that the client asked for, where `model` is the catch-all."""
    body_hash: int | None = None
    """64-bit hash of the body; None as long as the controller has no `suspects`."""
    slo: Slo | None = None
    """SLO of its tier, tightened as the request asks for; None: that of the tier."""
    assembled: bool = False
    """Whether its replica streams to us, and the client gets the answer as a whole."""
    prefix: Prefix = NO_PREFIX
    """Finds the replicas that have already read the beginning of its prompt."""
    split: str = ""
    """Split model that the client asked for, where `model` is an arm of it."""
    is_token_ids: bool = False
    """Whether its prompt is token ids, which mean something to its own model alone."""
    fallback_of: str = ""
    """Model that would have served it, where `model` is the fallback of its tier."""
    adapter: str = ""
    """LoRA adapter of `model` that it asks for, under the name that replicas list; empty: none."""
    session: Session | None = None
    """The session that it belongs to, if it names one."""
    comeback: bool = False
    """Whether its client says that it tries again."""
    stored: StoredResponse | None = None
    """The response that it continues, if any."""

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

    @property
    def visible(self) -> bool:
        """Whether its first token, and each after it, can be seen as it comes."""
        return self.stream or self.assembled


class AttemptOutcome(StrEnum):
    """How one attempt at one replica ended."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    COMPLETE = "complete"
    REJECTED = "rejected"
    """The engine answered 4xx: the request's fault, neutral to health."""
    BUSY = "busy"
    """The engine answered 429 or 503, or a 200 that carries such an error: neutral to the breaker."""
    CLOSING = "closing"
    """The engine answered that it is shutting down. It has not worked on the request, and takes no others."""
    FAILED = "failed"
    """The engine answered another 5xx, or an error event."""
    UNREACHABLE = "unreachable"
    """No connection; the replica never saw the request."""
    CONNECT_TIMEOUT = "connect-timeout"
    RESET = "reset"
    """The connection broke before any byte of the answer."""
    TRUNCATED = "truncated"
    """The answer broke off, was not HTTP, or was given up by the engine."""
    UNREADABLE = "unreadable"
    """The answer is complete HTTP, but its content cannot be forwarded: neutral to health."""
    CANCELLED = "cancelled"
    """We closed it: the client left, a deadline passed, or another attempt won."""


@dataclass(slots=True, init=False)
class AttemptResult:
    """Facts at the end of an attempt. Token counts are the engine's own `usage`, None where it gave none."""

    end: AttemptOutcome
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_seen: int = 0
    """Events with content that passed: the estimate of output tokens without a usage."""
    status: int | None = None
    retry_after_s: float | None = None
    body_hash: int | None = None
    """64-bit hash of the body, where the connection broke off before commit."""
    empty: bool = False
    """Whether it is complete but useless: nothing was generated, or it cannot be read."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine found in its prefix cache; None if it does not say."""

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


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of a health check, a scrape or a model list of one replica; None for a figure it lacks."""

    healthy: bool | None = None
    waiting: int | None = None
    running: int | None = None
    kv_fraction: float | None = None
    preemptions: int | None = None
    """Requests that lost their KV cache for want of room, since the engine started."""
    context_tokens: int | None = None
    """The shortest `max_model_len` of the models it serves."""
    late: bool = False
    """Whether the health check timed out."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that it lists,"""
    max_adapters: int | None = None
    """how many of them it can have in one batch,"""
    active_adapters: tuple[str, ...] | None = None
    """and which adapters have requests there, running or waiting."""
    cache_queries: int | None = None
    """Prompt tokens looked up in the prefix cache since the engine started,"""
    cache_hits: int | None = None
    """and those that were found."""
    asked_at: float | None = field(default=None, compare=False)
    """Start of the health check; None: just now. Two samples with equal figures are equal whatever its value."""


@dataclass(slots=True, init=False)
class Record:
    """One request from end to end, for metrics, logs and the journal. Durations in seconds."""

    request: Request
    outcome: Outcome
    why: Reason | None
    pool: str | None
    replica: str | None
    queue_s: float
    """From body complete to the first dispatch, or to the end without one."""
    ttft_s: float | None
    """From body complete to the first content token; None if there was none, or the answer was not streamed."""
    tpot_s: float | None
    """(ended - first token) / (output tokens - 1); None below two tokens, or where TTFT is None."""
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    tokens_exact: bool
    """Whether the counts are the engine's `usage`; else they are our estimate."""
    good: bool
    """OK and within every bound of its tier's SLO."""
    attempts: int
    breach: float | None = None
    """P(breach) as forecast on arrival; None without a forecast."""
    would_shed: bool = False
    """Whether its tier is in shadow, and enforcement would have shed it."""
    explored: bool = False
    """Whether it was admitted by exploration: doubtful, but let in to learn from."""
    degraded: bool = False
    hedged: HedgeResult | None = None
    waited: bool = False
    in_vain: float | None = None
    """P(it is refused after waiting), as forecast when it was queued; None without a wait or a forecast."""

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
