"""The compiled policy: tiers, models and keys; pool_spec.py has its pools. `gateway.policy` builds it from a file. All
values are immutable: a reload makes a new `Policy`, and each request keeps the one under which it arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.pool_spec import USUAL_TIMEOUTS, PoolSpec, Timeouts
from gateway.core.slo import NO_OBJECTIVES, Slo


class AdmissionMode(StrEnum):
    """Whether admission decisions are enforced, only counted (shadow), or not taken (off)."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    OFF = "off"


class OnTotal(StrEnum):
    """Treatment of an answer that is under way when its `total` timeout passes."""

    CUT = "cut"
    """The answer ends as if it had reached its length limit, and names the reason."""
    ERROR = "error"


class Value(StrEnum):
    """Unit in which a good request is valued. Its value is multiplied by the weight of its tier."""

    REQUEST = "request"
    TOKENS = "tokens"
    """The tokens of its prompt and its answer."""


class Report(StrEnum):
    """Which model name answers contain."""

    __hash__ = str.__hash__  # the hash of Enum is a Python function, and slow

    ASKED = "asked"
    """The name that the client asked for."""
    UPSTREAM = "upstream"
    """The engine's own name."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper limits on the size of one request. All counts are >= 1 unless their text says otherwise."""

    max_tokens_default: int = 0
    """Output cap for requests that set none. With 0, the engine is told no cap."""
    max_tokens_limit: int = 32768
    """Largest output cap that a request may set. The longest answers of reasoning models are about as long."""
    degrade: bool = False
    watch: bool = False
    """Whether an overlong answer is cut if other requests need its slot."""
    n: int = 1
    best_of: int = 1
    top_logprobs: int = 20
    """Largest `top_logprobs`/`logprobs` accepted; 0 forbids log-probabilities."""
    prompt_logprobs: int = 0
    """Largest `prompt_logprobs` accepted; 0 forbids them."""
    stop: tuple[str, ...] = ()
    """Stop sequences that are added to every request that generates."""
    batch: int = 256
    """Largest number of prompts, inputs or documents in one request."""
    engine_priority: int | None = None
    """Value of `priority` in the upstream request (vLLM serves lower values earlier). None: it is not set."""
    media: bool = False
    media_urls: bool = False
    """Whether messages may carry images, audio or video, and whether as URLs, which the engine fetches."""
    engine_options: bool = False  # such as a chat template; no other cap bounds them
    stored_responses: bool = False
    """Whether engines may store responses, and requests may continue stored responses."""
    aggregate: bool = False
    """Whether unstreamed answers are requested from engines as streams, and then assembled."""

    def granted(self, asked: int | None) -> int:
        """Output tokens granted to a request that asks for `asked`. None: the request sets no cap."""
        wanted = self.max_tokens_default or self.max_tokens_limit if asked is None else asked
        return min(wanted, self.max_tokens_limit)


class CountedTokens(StrEnum):
    """Tokens that count against a limit of tokens per minute."""

    ALL = "all"
    UNCACHED = "uncached"
    """All tokens except prompt tokens that the engine has in its prefix cache."""


class LimitKind(StrEnum):
    """A limit of one tenant."""

    __hash__ = str.__hash__  # the hash of Enum is a Python function, and slow

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    REQUESTS_DAY = "requests-day"
    REQUESTS_MONTH = "requests-month"
    TOKENS_DAY = "tokens-day"
    TOKENS_MONTH = "tokens-month"


QUOTAS: Final = {
    LimitKind.REQUESTS_DAY: (LimitKind.REQUESTS, "day"),
    LimitKind.REQUESTS_MONTH: (LimitKind.REQUESTS, "month"),
    LimitKind.TOKENS_DAY: (LimitKind.TOKENS, "day"),
    LimitKind.TOKENS_MONTH: (LimitKind.TOKENS, "month"),
}
"""By quota: what it counts, and its period."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Use that one tenant has in a day or a month of UTC. It does not refill before the next."""

    limit: LimitKind
    period: str
    amount: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant; None is no limit. Rates refill continuously. A burst may use a whole minute's limit."""

    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    concurrency: int | None = None
    count: CountedTokens = CountedTokens.ALL
    quotas: tuple[Quota, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    """The largest P(breach) that is admitted, and the share of doubtful requests admitted as exploration (both 0-1)."""

    mode: AdmissionMode = AdmissionMode.ENFORCE
    max_breach_probability: float = 0.5
    exploration: float = 0.01


@dataclass(frozen=True, slots=True)
class Hedge:
    """A duplicate is sent once TTFT exceeds its `quantile`. `budget` and `holdout` are shares of requests (0-1)."""

    quantile: float = 0.95
    budget: float = 0.05
    holdout: float = 0.05


@dataclass(frozen=True, slots=True)
class Retry:
    """Retries before commit. `budget`: retries as a share of requests (0-1)."""

    budget: float = 0.1


@dataclass(frozen=True, slots=True)
class RepetitionSpec:
    """An answer is cut if a text repeats at its end at least `repeats` times and over at least `characters`."""

    characters: int = 2000
    repeats: int = 6


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. `priority`: lower values are served first. `weight`: value of one good request."""

    name: str
    priority: int = 0
    weight: float = 1.0
    value: Value = Value.REQUEST
    fairness: float = 0.25
    """The admitted share of requests of one prompt length may be this much (0-1) below that of the tier."""
    floor: float = 0.0
    """Share of service (0-1) that the tier is guaranteed against more urgent tiers."""
    pools: tuple[str, ...] | None = None
    """Pools that this tier may use; None allows every pool of the model."""
    slo: Slo = NO_OBJECTIVES
    caps: Caps = Caps()
    timeouts: Timeouts = USUAL_TIMEOUTS
    on_total: OnTotal = OnTotal.CUT
    keep_alive_s: float = 0.0
    """A comment is sent in a stream after this many seconds of silence; 0 sends none."""
    repetition: RepetitionSpec | None = None
    limits: Limits = Limits()
    admission: AdmissionSpec = AdmissionSpec()
    hedge: Hedge | None = None
    retry: Retry = Retry()
    apis: tuple[tuple[str, bool], ...] = ()
    """(API, whether it is served) pairs, for the APIs that the policy names."""
    fallback: str = ""
    """Model that serves requests if their own model cannot serve them in time; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A shadow pool gets copies of the share `share` (0-1) of a model's requests, at most `limit` at a time."""

    to: str
    share: float
    limit: int = 8
    upstream: str = ""
    """Name of the model at the shadow pool; empty if it is the same."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by the name that clients use. `upstream`: its name at replicas. `any_name`: it is the catch-all `*`.

    If it is split, `pools` are the pools of its arms, in their order.
    """

    name: str
    pools: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    upstream: str = ""
    any_name: bool = False
    report: Report = Report.ASKED
    split: tuple[tuple[str, int], ...] = ()
    """Arms (model, weight) among which its requests are split; empty if it is not split."""
    mirror: Mirror | None = None
    has_adapters: bool = True
    """Whether LoRA adapters that the replicas list are served, under their own names."""

    def sent_as(self, asked: str) -> str:
        """The model name sent to replicas when a client asked for `asked`."""
        return self.upstream or (asked if self.any_name else self.name)


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key, stored as its SHA-256 (32 bytes)."""

    sha256: bytes = field(repr=False)
    tenant: str
    tier: str


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a model's tokens, for a million of each. They only make reports."""

    prompt: float
    cached: float
    output: float


ANONYMOUS: Final = "anonymous"
MAX_VALUES: Final = 200_000  # JSON values of a body; parsed, one takes up to 250 bytes, so all take at most 50 MB


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy. `generation`: number of the load in this process. `digest`: hash of the source text."""

    models: dict[str, Model]  # not Mapping: compiled code would look up its methods by name
    """Models by name and by alias. The key "*" is the catch-all, if there is one."""
    pools: dict[str, PoolSpec]
    tiers: dict[str, Tier]
    keys: Mapping[bytes, Key]
    """Keys by SHA-256. If there are none, no key is needed, and every request belongs to `default_tier`."""
    default_tier: str
    generation: int = 0
    digest: str = ""
    open_on_any_address: bool = False
    """Whether the policy explicitly allows serving without keys on other addresses than loopback."""
    host_names: tuple[str, ...] = ()
    """Names in the Host header (lower case) that are accepted when no keys are set."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use the API, in lower case; "*" allows all."""
    max_body_bytes: int | None = None
    """Largest request body in bytes, after decoding. None: the setting of the process applies."""
    max_values: int = MAX_VALUES
    """Most JSON values of one request body, names of fields included."""
    currency: str = "USD"
    prices: Mapping[str, Prices] = field(default_factory=dict)
    """By model."""
    replica_hours: Mapping[str, float] = field(default_factory=dict)
    """Cost of one replica for an hour, by pool."""
    outline: Mapping[tuple[str, ...], str] = field(default_factory=dict, repr=False, compare=False)
    """Every value of the file as text, by its path, for people: secrets are only told apart."""
    _routes: dict[tuple[str, str], tuple[PoolSpec, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cache of `route`: the only part of a policy that changes."""
    _timeouts: dict[tuple[str, str], Timeouts] = field(default_factory=dict, init=False, repr=False, compare=False)

    def model(self, name: str) -> Model | None:
        """The model that clients call `name`; None if the policy has no such model."""
        return self.models.get(name) or self.models.get("*")

    def route(self, model: Model, tier: Tier) -> tuple[PoolSpec, ...]:
        """The pools that serve `model` to `tier`, in the order in which they are tried."""
        route = self._routes.get((model.name, tier.name))
        if route is None:
            allowed = tier.pools
            route = tuple(self.pools[p] for p in model.pools if allowed is None or p in allowed)
            self._routes[model.name, tier.name] = route
        return route

    def timeouts(self, tier: Tier, pool: str) -> Timeouts:
        """For each phase, the smaller of the timeouts of `tier` and of the pool."""
        timeouts = self._timeouts.get((tier.name, pool))
        if timeouts is None:
            timeouts = self._timeouts[tier.name, pool] = tier.timeouts.narrowed(self.pools[pool].timeouts)
        return timeouts
