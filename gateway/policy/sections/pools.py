"""The pools section of a policy file: where requests are served."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.core import pool_spec
from gateway.core.fleet.routing import ROUTERS
from gateway.policy.errors import among
from gateway.policy.sections import units, values
from gateway.policy.sections.discover import DiscoverSection
from gateway.policy.sections.hold import HoldSection
from gateway.policy.sections.section import Section, duration, field, nested, optional, plain, share
from gateway.policy.sections.values import (
    MAX_RANKS,
    Count,
    CountOrZero,
    Deadline,
    Duration,
    FileName,
    HeaderName,
    HostHeader,
    HostName,
    HttpPath,
    Name,
    Secret,
    Share,
    Size,
    Slots,
    Span,
    Url,
)

_POOL = pool_spec.PoolSpec("", ())
_EJECTION = pool_spec.Ejection()

AFFINITIES = ("prefix", "none")
ISOLATIONS = ("none", "tenant")
SessionKey = Annotated[str, AfterValidator(values.one_of(pool_spec.SessionKey)), values.choice(pool_spec.SessionKey)]
Isolation = Annotated[str, AfterValidator(values.one_of(ISOLATIONS)), values.choice(ISOLATIONS)]
Router = Annotated[str, AfterValidator(values.one_of(ROUTERS)), values.choice(ROUTERS)]
Engine = Annotated[str, AfterValidator(values.one_of(pool_spec.EngineKind)), values.choice(pool_spec.EngineKind)]

EjectionMode = Annotated[
    str, AfterValidator(values.one_of(pool_spec.EjectionMode)), values.choice(pool_spec.EjectionMode)
]


class ReplicaSection(Section):
    """One engine that serves requests."""

    url: Url = Field(description="http://host:port or https://host:port, with the path before /v1 if there is one.")
    name: Name | None = optional("Its name in metrics; host:port unless given.")
    dp: Annotated[int, Field(ge=1, le=MAX_RANKS)] = plain(
        1,
        "Data-parallel ranks behind the URL, each a replica of its own: vLLM's --data-parallel-size, with "
        "--data-parallel-hybrid-lb its --data-parallel-size-local.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [values.URL_JSON, handler(core)]}


class AffinitySection(Section):
    """Which requests belong together, and go to one replica."""

    prefix: bool = plain(
        True,
        "Whether a prompt goes to a replica that has its beginning in the prefix cache, if that is worth it. Only the "
        "rest then counts as unread.",
    )
    strict: bool = plain(
        False,
        "Whether only the home replica serves a session: its requests get 503 while that replica is down or drained.",
    )
    header: HeaderName = plain(_POOL.sessions.header, "The header that names a session.")
    keys: list[SessionKey] = plain(
        [key.value for key in _POOL.sessions.keys],
        "Where the name of a session is looked for, in this order; the first one found counts.",
    )

    @field_validator("keys")
    @classmethod
    def _each_once(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"has {key} twice: name each key once")
        return keys

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            if value not in AFFINITIES:
                raise ValueError("{value} is unknown: " + among(value, AFFINITIES))
            return {"prefix": value == "prefix"}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "enum": list(AFFINITIES)}, handler(core)]}


class QueueSection(Section):
    """The queue of a pool, bounded both in requests and in bytes."""

    limit: CountOrZero = plain(
        _POOL.queue_limit,
        "Requests that may wait for a slot; more get 429. By default in proportion to a longest bound above 10s.",
    )
    bytes: Size = field(
        _POOL.queue_bytes, units.write_size(_POOL.queue_bytes), "Bytes of request bodies that may wait for a slot."
    )


class PoolTimeouts(Section):
    """Timeouts that hold in this pool for every tier. The tighter timeout of tier and pool counts."""

    queue: Deadline = duration(pool_spec.NO_TIMEOUTS.queue_s, "Longest wait for a slot, from the complete request on.")
    ttft: Deadline = duration(pool_spec.NO_TIMEOUTS.ttft_s, "Longest time from sending to the first content token.")
    idle: Deadline = duration(pool_spec.NO_TIMEOUTS.idle_s, "Longest silence between two pieces of an answer.")
    total: Deadline = duration(pool_spec.NO_TIMEOUTS.total_s, "Longest time of the whole request, from its head on.")


class EjectionSection(Section):
    """When a replica that is slower than its pool, or silent, is left out for a while."""

    mode: EjectionMode = plain(
        pool_spec.EjectionMode.ENFORCE.value, "enforce: replicas that are slow or silent are left out; off: none is."
    )
    slowdown: Annotated[float, Field(gt=1, le=100, strict=False, allow_inf_nan=False)] = plain(
        _EJECTION.slowdown, "A replica is too slow above this multiple of its pool's median TTFT or ITL."
    )
    time: Duration = duration(
        _EJECTION.time_s, "How long the first ejection lasts; the second lasts twice as long, and so on."
    )
    max_share: Share = share(
        _EJECTION.max_share,
        "Largest share of the pool ejected for slowness; one replica always may be, two of eight or more.",
    )
    panic: Share = share(
        _EJECTION.panic_share, "If a smaller share of the replicas is healthy, slow ones are used as well."
    )
    canary: Duration = duration(_EJECTION.probe_s, "An ejected replica gets one request per this time.")
    stall: Duration = duration(_EJECTION.stall_s, "A replica that has requests and is silent for this long is stalled.")


class HealthSection(Section):
    """How the replicas of a pool are watched."""

    path: HttpPath | None = optional(
        "Path of a health check that must answer 2xx. Unless given, any answer below 500 counts: to GET /health, or to "
        "GET /v1/models with `api_key` if the engine is `openai`."
    )
    interval: Duration = duration(_POOL.health.interval_s, "Time between two checks.")
    timeout: Duration = duration(_POOL.health.timeout_s, "A check that takes longer has failed.")
    failures: Count = plain(
        _POOL.health.failures, "Failed checks and lost connections in a row that take the replica down."
    )
    open: Duration = duration(_POOL.health.open_s, "How long an open breaker keeps requests away before one is tried.")
    metrics_path: HttpPath = plain(_POOL.health.metrics_path, "Where the engine's Prometheus metrics are.")
    scrape_interval: Duration = duration(_POOL.health.scrape_interval_s, "Time between two scrapes of the metrics.")
    warmup: CountOrZero = plain(
        _POOL.health.warmup, "One-token completions that a new or recovered replica answers before it gets requests."
    )
    warmup_prompt_tokens: CountOrZero = plain(
        _POOL.health.warmup_prompt_tokens, "Tokens of their prompts, about: long ones fill caches and compile kernels."
    )
    slow_start: Span = duration(
        _POOL.health.slow_start_s, "Time over which a new or recovered replica gets its slots; none: at once."
    )
    ejection: EjectionSection = nested(EjectionSection(), "When a replica that is slow or silent is left out.")


class TlsSection(Section):
    """How replicas at https URLs are checked, and what the gateway shows to them. New files are read at once."""

    ca_file: FileName | None = optional("Certificates to trust, in PEM; those of the system unless given.")
    cert_file: FileName | None = optional("The certificate that the gateway shows, in PEM with its chain.")
    key_file: FileName | None = optional("Its private key, in PEM; in `cert_file` unless given.")
    server_name: HostName | None = optional("Name that the certificates have; the host of the URL unless given.")


class PoolSection(Section):
    """Replicas that are alike: same engine, same limits, same kind of requests."""

    engine: Engine = plain(
        _POOL.engine.value, "What the replicas run: decides metric names and which extra fields they understand."
    )
    replicas: list[ReplicaSection] = plain([], "Where the replicas are, as URLs or as {name, url}.")
    discover: DiscoverSection | None = optional("Where replicas are found, besides those in `replicas`.")
    max_prompt_tokens: Count | None = optional("Longest prompt this pool takes, in tokens; any length unless given.")
    slots: Slots = field(
        None,
        "auto",
        "Requests that one replica serves at once: at most the engine's max_num_seqs. `auto` learns it. "
        "`{max: 8, strict: true}`: gateways that share a store divide them, for engines that break beyond.",
    )
    queue: QueueSection = nested(QueueSection(), "Requests that wait for a slot.")
    hold: HoldSection | None = optional("Requests wait here while the pool has no replica; else they get 503.")
    connect_timeout: Duration = duration(_POOL.connect_timeout_s, "Longest time to open a connection to a replica.")
    timeouts: PoolTimeouts = nested(PoolTimeouts(), "Timeouts of this pool; the tighter of tier and pool counts.")
    kv_headroom: Share | None = optional(
        "Share of the engines' KV cache left free for answers to grow into; unless given, the forecast decides."
    )
    reserve: dict[Name, Share] = plain({}, "By tier: share of the pool's slots that only this tier may take.")
    spill_from: list[Name] = plain([], "Pools whose requests may come here when they would be shed there.")
    router: Router = plain(_POOL.router, "How a replica is picked.")
    affinity: AffinitySection = nested(
        AffinitySection(),
        "Which requests go to the same replica. `prefix`: the default; `none`: for engines without prefix caching.",
    )
    cache_isolation: Isolation = plain(
        "none", "`tenant`: no tenant finds prompts of another one in a prefix cache; for vLLM, with a `cache_key`."
    )
    cache_key: Secret | None = optional("Secret from which the salt of each tenant is made: ${CACHE_KEY}.")
    health: HealthSection = nested(HealthSection(), "How the replicas are watched.")
    api_key: Secret | None = optional("Bearer token the replicas want. Take it from the environment: ${VLLM_API_KEY}.")
    api_key_file: FileName | None = optional("Instead of `api_key`: a file with the token, read again when it changes.")
    host: HostHeader | None = optional("The Host header that the replicas get; host:port of the URL unless given.")
    tls: TlsSection = nested(TlsSection(), "How replicas at https URLs are checked.")
