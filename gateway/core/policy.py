"""The compiled policy file: tiers, pools, models, keys and the policy that holds them.

`gateway.policy` builds these from a policy file; nothing here reads a file. Everything is immutable: a reload
makes a new `Policy`, and each request keeps the one it arrived under.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final


class Metric(StrEnum):
    """The latencies that an objective can be set on."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


class EngineKind(StrEnum):
    """Engine of a replica: decides metric names and the extra features it understands."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    OPENAI = "openai"


class AdmissionMode(StrEnum):
    """Whether admission decisions are acted on, only counted, or not taken."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    OFF = "off"


class EjectionMode(StrEnum):
    """Whether replicas are ejected."""

    ENFORCE = "enforce"
    OFF = "off"


class OnTotal(StrEnum):
    """Treatment of an answer that is under way when its time is up."""

    CUT = "cut"
    """It ends as if it had reached its length limit, and names the reason."""
    ERROR = "error"


class Value(StrEnum):
    """Worth of a good request, times the weight of its tier."""

    REQUEST = "request"
    TOKENS = "tokens"
    """The tokens of its prompt and its answer."""


class Report(StrEnum):
    """Model name in answers."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    ASKED = "asked"
    """The name that the client asked for."""
    UPSTREAM = "upstream"
    """The engine's own name."""


ASKED_QUANTILE: Final = 0.99
"""Quantile of an objective set by a request where its tier has none."""


@dataclass(frozen=True, slots=True)
class Objective:
    """`quantile` (0-1, exclusive) of a latency shall be at most `threshold_s` seconds."""

    quantile: float
    threshold_s: float

    @property
    def percentile(self) -> str:
        """`p99` of a quantile of 0.99, `p99.9` of 0.999."""
        return f"p{round(self.quantile * 100, 6):g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """The objectives of a tier. The bound of a metric is the threshold of its highest percentile; inf if none."""

    ttft: tuple[Objective, ...] = ()
    tpot: tuple[Objective, ...] = ()
    e2e: tuple[Objective, ...] = ()
    e2e_up_to_tokens: int | None = None
    ttft_bound_s: float = field(init=False)
    tpot_bound_s: float = field(init=False)
    e2e_bound_s: float = field(init=False)
    bounded: bool = field(init=False)
    """Whether it has any bound at all."""

    def __post_init__(self) -> None:
        for metric in Metric:
            objectives: tuple[Objective, ...] = getattr(self, metric.value)
            top = max(objectives, key=lambda o: o.quantile, default=Objective(1.0, math.inf))
            object.__setattr__(self, f"{metric.value}_bound_s", top.threshold_s)
        object.__setattr__(self, "bounded", bool(self.ttft or self.tpot or self.e2e))

    def objectives(self) -> tuple[tuple[Metric, Objective], ...]:
        """Every objective with its metric, in the order TTFT, TPOT, e2e."""
        return tuple(
            (metric, objective)
            for metric, group in ((Metric.TTFT, self.ttft), (Metric.TPOT, self.tpot), (Metric.E2E, self.e2e))
            for objective in group
        )

    def tightened(self, ttft_s: float | None, tpot_s: float | None) -> Slo:
        """The same, tightened to the bounds that a request sets. Looser bounds are ignored."""
        return replace(self, ttft=_tightened(self.ttft, ttft_s), tpot=_tightened(self.tpot, tpot_s))

    def covers(self, output_tokens: int) -> bool:
        """Whether the e2e objective holds for an answer of so many tokens."""
        return self.e2e_up_to_tokens is None or output_tokens <= self.e2e_up_to_tokens

    def met(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float, output_tokens: int) -> bool:
        """True if every latency that was observed lies within its bound; None means it could not be observed."""
        if ttft_s is not None and ttft_s > self.ttft_bound_s:
            return False
        if tpot_s is not None and tpot_s > self.tpot_bound_s:
            return False
        return e2e_s <= self.e2e_bound_s or not self.covers(output_tokens)


def _tightened(objectives: tuple[Objective, ...], bound_s: float | None) -> tuple[Objective, ...]:
    if bound_s is None:
        return objectives
    held = tuple(replace(o, threshold_s=min(o.threshold_s, bound_s)) for o in objectives)
    return held or (Objective(ASKED_QUANTILE, bound_s),)


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds on what one request may cost. All counts are >= 1 unless said otherwise."""

    max_tokens_default: int = 0
    """Cap for requests without one; 0: the engine gets none either."""
    max_tokens_limit: int = 32768
    """Largest cap that a request may set: about the longest answers of reasoning models."""
    degrade: bool = False
    watch: bool = False
    """Whether an overlong answer is cut where others need its slot."""
    n: int = 1
    best_of: int = 1
    top_logprobs: int = 20
    """Largest `top_logprobs`/`logprobs` accepted; 0 forbids log-probabilities."""
    prompt_logprobs: int = 0
    """Largest `prompt_logprobs` accepted; 0 forbids them."""
    stop: tuple[str, ...] = ()
    """Stop sequences added to every generation."""
    batch: int = 256
    """Largest number of prompts, inputs or documents in one request."""
    engine_priority: int | None = None
    """`priority` set on the upstream request (vLLM: lower is served earlier); None sends none."""
    media: bool = False
    """Whether messages may carry images, audio or video."""
    stored_responses: bool = False
    """Whether engines may keep responses, and requests may continue them."""
    aggregate: bool = False
    """Whether unstreamed answers are requested from engines as streams, and assembled."""

    def granted(self, asked: int | None) -> int:
        """Output tokens granted to a request that asks for this many; None: it sets no cap."""
        wanted = self.max_tokens_default if asked is None else asked
        return min(wanted or self.max_tokens_limit, self.max_tokens_limit)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; inf is no limit.

    `queue` counts from body complete, `ttft` from sent, `idle` between bytes, `total` from head received.
    """

    queue_s: float = 10.0
    ttft_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 600.0

    def narrowed(self, other: Timeouts) -> Timeouts:
        """The tighter of the two in every phase."""
        return Timeouts(
            min(self.queue_s, other.queue_s),
            min(self.ttft_s, other.ttft_s),
            min(self.idle_s, other.idle_s),
            min(self.total_s, other.total_s),
        )


NO_TIMEOUTS: Final = Timeouts(math.inf, math.inf, math.inf, math.inf)


class CountedTokens(StrEnum):
    """Which tokens count in a limit of tokens per minute."""

    ALL = "all"
    UNCACHED = "uncached"
    """Without the prompt tokens that the engine has in its prefix cache."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant; None is no limit. Rates refill continuously; a full minute is the burst."""

    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    concurrency: int | None = None
    count: CountedTokens = CountedTokens.ALL


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    """Largest P(breach) that is admitted, and the share of doubtful requests that explore (0-1 each)."""

    mode: AdmissionMode = AdmissionMode.ENFORCE
    max_breach_probability: float = 0.5
    exploration: float = 0.01


@dataclass(frozen=True, slots=True)
class Hedge:
    """Duplicates past `quantile` of TTFT; `budget` and `holdout` are shares of requests (0-1)."""

    quantile: float = 0.95
    budget: float = 0.05
    holdout: float = 0.05


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries before commit, as a share of requests (0-1)."""

    budget: float = 0.1


@dataclass(frozen=True, slots=True)
class RepetitionSpec:
    """An answer is cut once at least `characters` of it are one piece, repeated at least `repeats` times."""

    characters: int = 2000
    repeats: int = 6


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. `priority`: lower is served first. `weight`: what one good request is worth."""

    name: str
    priority: int = 0
    weight: float = 1.0
    value: Value = Value.REQUEST
    fairness: float = 0.25
    """How much lower (0-1) the acceptance of one prompt length may be than that of the tier."""
    floor: float = 0.0
    """Share of service (0-1) that higher tiers cannot take."""
    pools: tuple[str, ...] | None = None
    """Pools that this tier is bound to; None is every pool of the model."""
    slo: Slo = Slo()
    caps: Caps = Caps()
    timeouts: Timeouts = Timeouts()
    on_total: OnTotal = OnTotal.CUT
    keep_alive_s: float = 0.0
    """Longest silence of a stream before a comment is sent, in seconds; 0: no comments."""
    repetition: RepetitionSpec | None = None
    limits: Limits = Limits()
    admission: AdmissionSpec = AdmissionSpec()
    hedge: Hedge | None = None
    retry: Retry = Retry()
    apis: tuple[tuple[str, bool], ...] = ()
    """(API, whether it is served) pairs, for the APIs that the policy names."""
    fallback: str = ""
    """Model that serves requests which their own model cannot serve in time; empty: none."""


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a replica that is slower than its pool, or silent, is ejected. Durations in seconds, shares 0-1."""

    slowdown: float = 2.0
    """Largest tolerated multiple of the pool's median latency, > 1."""
    time_s: float = 30.0
    """Duration of the first ejection. The second lasts twice as long, and so on."""
    max_time_s: float = 300.0
    """Longest ejection."""
    max_share: float = 0.1
    """Share of the pool that may be ejected for slowness; at least one replica, and two of eight or more."""
    panic_share: float = 0.5
    """If a smaller share of the pool is healthy, slow replicas are used as well."""
    probe_s: float = 5.0
    """Seconds from one probe of an ejected replica to the next."""
    stall_s: float = 5.0
    """Shortest silence of a busy replica that counts as a stall."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a pool's replicas are watched. Intervals and durations in seconds."""

    path: str = "/health"
    interval_s: float = 2.0
    timeout_s: float = 2.0
    failures: int = 3
    """Consecutive failures (active checks and connections together) that open the breaker."""
    open_s: float = 5.0
    """How long an open breaker blocks requests before one probe."""
    metrics_path: str = "/metrics"
    scrape_interval_s: float = 1.0
    warmup: int = 0
    """One-token completions that a replica must answer before it serves again."""
    slow_start_s: float = 30.0
    """Duration of the slow start of a replica that is added or comes back; 0: none."""
    ejection: Ejection | None = Ejection()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine: `name` is unique in the policy, `url` is `http://host:port` without a path.

    Data-parallel ranks of one vLLM are replicas with one URL, named `server#0`, `server#1`, ...
    """

    name: str
    url: str
    dp_rank: int | None = None
    """Value of `X-data-parallel-rank` (>= 0) in its requests; None: the URL has one engine."""

    @property
    def server(self) -> str:
        """Name of its process, without the rank."""
        return self.name if self.dp_rank is None else self.name.partition("#")[0]


class SessionKey(StrEnum):
    """Parts of a request that can name its session."""

    HEADER = "header"
    PROMPT_CACHE_KEY = "prompt_cache_key"
    METADATA = "metadata.user_id"
    """The session in it, as Claude Code writes it."""
    USER = "user"
    """The field `user`; in Messages all of `metadata.user_id`."""
    FIRST_MESSAGE = "first-message"
    """The prompt up to its first user message, which every turn of a conversation repeats."""


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Where the name of a session is looked for. The first of `keys` that a request has names its session."""

    header: str = "x-session-id"
    """In lower case."""
    keys: tuple[SessionKey, ...] = (SessionKey.HEADER, SessionKey.PROMPT_CACHE_KEY, SessionKey.METADATA)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Replicas that are alike. `max_prompt_tokens` None: anything fits. `slots` per replica, None: learned."""

    name: str
    replicas: tuple[ReplicaSpec, ...]
    engine: EngineKind = EngineKind.VLLM
    max_prompt_tokens: int | None = None
    slots: int | None = None
    queue_limit: int = 256
    """Requests that may wait for a slot."""
    queue_bytes: int = 256 * 1024 * 1024
    """Bytes of request bodies that may wait for a slot. Bodies of agents, with files and pictures, are 2 to 10 MB."""
    connect_timeout_s: float = 2.0
    timeouts: Timeouts = NO_TIMEOUTS
    kv_headroom: float | None = None
    """Share (0-1) of the engines' KV cache kept free for growing answers; None: the forecast decides."""
    reserve: tuple[tuple[str, float], ...] = ()
    """(tier, share 0-1) pairs: slots of the whole pool reserved for this tier."""
    spill_from: tuple[str, ...] = ()
    router: str = "least-prefill"
    affinity: bool = True
    """Whether prompts go to engines that have cached their beginning."""
    strict_sessions: bool = False
    """Whether only a session's home may serve it."""
    sessions: SessionKeys = field(default=SessionKeys(), repr=False)
    """For the proxy, which names sessions: nothing here depends on it."""
    health: Health = Health()
    upstream_key: str | None = field(default=None, repr=False)
    """Bearer token that the replicas require, if any."""
    cache_key: str | None = field(default=None, repr=False)
    """Secret from which the cache salt of each tenant is made; None: tenants share prefix caches."""

    def takes(self, prompt_tokens: int, prompts: int = 1) -> bool:
        """Whether a batch of this many prompts and tokens fits, by the mean length."""
        return self.max_prompt_tokens is None or prompt_tokens <= self.max_prompt_tokens * prompts


@dataclass(frozen=True, slots=True)
class Mirror:
    """A shadow pool that gets copies of a `share` (0-1) of a model's requests, at most `limit` at a time."""

    to: str
    share: float
    limit: int = 8
    upstream: str = ""
    """Name that the shadow pool knows the model by; empty: the same."""


@dataclass(frozen=True, slots=True)
class Model:
    """A name clients use. `upstream` is the name the replicas know it by. `any_name`: the catch-all model `*`.

    `pools` of a split are those of its arms, in their order.
    """

    name: str
    pools: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    upstream: str = ""
    tokenizer: str | None = None
    any_name: bool = False
    report: Report = Report.ASKED
    split: tuple[tuple[str, int], ...] = ()
    """Arms (model, weight) that share its requests; empty: it serves them itself."""
    mirror: Mirror | None = None
    has_adapters: bool = True
    """Whether the LoRA adapters that its replicas list are served."""

    def sent_as(self, asked: str) -> str:
        """The model name sent to replicas when a client asked for `asked`."""
        return self.upstream or (asked if self.any_name else self.name)


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key, stored as its SHA-256 (32 bytes)."""

    sha256: bytes = field(repr=False)
    tenant: str
    tier: str


ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class Policy:
    """One whole policy. `generation` counts loads of this process; `digest` is of the source text."""

    models: Mapping[str, Model]
    """Models by name and by alias. The key "*" holds the catch-all, if any."""
    pools: Mapping[str, PoolSpec]
    tiers: Mapping[str, Tier]
    keys: Mapping[bytes, Key]
    """Keys by SHA-256. If empty, no key is needed, and every request belongs to `default_tier`."""
    default_tier: str
    generation: int = 0
    digest: str = ""
    open_on_any_address: bool = False
    """Whether the policy explicitly allows serving without keys beyond loopback."""
    host_names: tuple[str, ...] = ()
    """Names in a Host header that are served without keys, in lower case."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use the API, in lower case; "*" is every one."""
    max_body_bytes: int | None = None
    """Largest request body, decoded; None: the setting of the process."""
    _routes: dict[tuple[str, str], tuple[PoolSpec, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cache of routes. Otherwise a policy never changes."""
    _timeouts: dict[tuple[str, str], Timeouts] = field(default_factory=dict, init=False, repr=False, compare=False)

    def model(self, name: str) -> Model | None:
        """The model that a client's `name` stands for, or None if this policy has none."""
        return self.models.get(name) or self.models.get("*")

    def route(self, model: Model, tier: Tier) -> tuple[PoolSpec, ...]:
        """The pools that serve `model` to `tier`, in the order of trial."""
        route = self._routes.get((model.name, tier.name))
        if route is None:
            allowed = tier.pools
            route = tuple(self.pools[p] for p in model.pools if allowed is None or p in allowed)
            self._routes[model.name, tier.name] = route
        return route

    def timeouts(self, tier: Tier, pool: str) -> Timeouts:
        """Timeouts of `tier` and of the pool, the tighter in every phase."""
        timeouts = self._timeouts.get((tier.name, pool))
        if timeouts is None:
            timeouts = self._timeouts[tier.name, pool] = tier.timeouts.narrowed(self.pools[pool].timeouts)
        return timeouts
