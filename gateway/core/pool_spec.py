"""Pools of a policy: their replicas, and the settings of their timeouts, health checks, ejections and sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class EngineKind(StrEnum):
    """Engine of a replica. It determines the names of its metrics and the extensions that it understands."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds; inf is no limit. `queue` counts from body complete, `ttft` from sent, `idle` from the last
    byte, `total` from head received.
    """

    queue_s: float = 10.0
    ttft_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 600.0

    def narrowed(self, other: Timeouts) -> Timeouts:
        """A copy with the smaller of the two timeouts for each phase."""
        return Timeouts(
            min(self.queue_s, other.queue_s),
            min(self.ttft_s, other.ttft_s),
            min(self.idle_s, other.idle_s),
            min(self.total_s, other.total_s),
        )


USUAL_TIMEOUTS: Final = Timeouts()
NO_TIMEOUTS: Final = Timeouts(math.inf, math.inf, math.inf, math.inf)


class EjectionMode(StrEnum):
    """Whether replicas are ejected."""

    ENFORCE = "enforce"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Ejection:
    """Settings of outlier detection: when a slow or silent replica is ejected. Durations in seconds, shares 0-1."""

    slowdown: float = 2.0
    """Largest tolerated multiple of the pool's median latency, > 1."""
    time_s: float = 30.0
    """Duration of the first ejection. The second lasts twice as long, the third three times, and so on."""
    max_time_s: float = 300.0
    """Longest ejection."""
    max_share: float = 0.1
    """Share of the pool that may be ejected for slowness. One replica always may be, two of eight or more."""
    panic_share: float = 0.5
    """If less than this share of the pool is healthy, slow replicas are used as well."""
    probe_s: float = 5.0
    """Seconds between two probes of an ejected replica."""
    stall_s: float = 5.0
    """Shortest silence of a busy replica that counts as a stall."""


@dataclass(frozen=True, slots=True)
class Health:
    """Settings of health checks and breakers of a pool's replicas. Intervals and durations in seconds."""

    path: str = ""
    """Path of a check whose 2xx alone is life. Empty: any answer below 500 to the engine's own check is life."""
    interval_s: float = 2.0
    timeout_s: float = 2.0
    failures: int = 3
    """Number of consecutive failures, of checks and requests together, that opens the breaker."""
    open_s: float = 5.0
    """An open breaker becomes half-open after this many seconds."""
    metrics_path: str = "/metrics"
    scrape_interval_s: float = 1.0
    warmup: int = 0
    """Number of one-token completions that a new or returning replica must answer before it serves."""
    warmup_prompt_tokens: int = 0
    """About how many tokens their prompts have; 0 for a short one."""
    slow_start_s: float = 30.0
    """Duration of the slow start of a replica that is added or comes back; 0 for none."""
    ejection: Ejection | None = Ejection()


@dataclass(frozen=True, slots=True)
class Tls:
    """How replicas at https URLs are checked, and what is shown to them. Files are in PEM; empty if there is none."""

    ca_file: str = ""
    """Certificates that are trusted. Empty: those of the system."""
    cert_file: str = ""
    """The gateway's own certificate, with its chain."""
    key_file: str = ""
    """Private key of `cert_file`; empty if it stands in the same file."""
    server_name: str = ""
    """Name that the certificate must have. Empty: the host of the URL."""
    digest: str = ""
    """Hash of the files' bytes. New files thus make a new value, and new connections."""


@dataclass(frozen=True, slots=True)
class ReplicaAccess:
    """Token, Host header and TLS of requests to a pool's replicas."""

    key: str | None = field(default=None, repr=False)
    """Bearer token that the replicas require, if any."""
    key_file: str = ""
    """File from which `key` is read; empty if there is none."""
    host: str = ""
    """Value of the Host header. Empty: host and port of the URL."""
    tls: Tls = Tls()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine: `name` is unique in the policy, `url` is `http://host:port` or `https://host:port`, perhaps with a
    path before those of the API. It does not end with a slash.

    Data-parallel ranks of one vLLM are replicas with one URL, named `server#0`, `server#1`, ...
    """

    name: str
    url: str
    dp_rank: int | None = None
    """Value of the header `X-data-parallel-rank` (>= 0) in its requests; None if the URL has only one engine."""
    is_found: bool = False
    """Whether discovery found it, so that it gets no request before its first passed health check."""

    @property
    def server(self) -> str:
        """Name of the replica's server process: its name without the rank."""
        return self.name if self.dp_rank is None else self.name.partition("#")[0]


Labels = tuple[tuple[str, str], ...]
"""(name, value) pairs that an entry of a source must have to count."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file in Prometheus's format `file_sd`, in JSON or YAML."""

    path: str
    labels: Labels = ()


class DnsRecord(StrEnum):
    """Records of a name that are replicas."""

    ADDRESSES = "A"
    """A and AAAA: each address is a replica, at the port of the policy."""
    SRV = "SRV"
    """Each address of each target is a replica, at the port of the record."""


@dataclass(frozen=True, slots=True)
class DnsSource:
    """A name in DNS."""

    name: str
    port: int = 0
    """Port of the replicas, unless records tell theirs."""
    record: DnsRecord = DnsRecord.ADDRESSES
    server: str = ""
    """`address:port` of the server to ask; empty for those of the operating system."""
    interval_s: float = 1.0
    """Shortest time between two questions. An answer with a TTL is kept so long."""


@dataclass(frozen=True, slots=True)
class KubernetesSource:
    """The EndpointSlices of a service. Empty fields: as the pod of the gateway has them."""

    service: str
    namespace: str = ""
    port: str = ""
    """Name or number of the port; empty if the service has only one."""
    labels: Labels = ()
    server: str = ""
    """URL of the API server."""
    token_file: str = ""
    ca_file: str = ""


Source = FileSource | DnsSource | KubernetesSource


@dataclass(frozen=True, slots=True)
class Discovery:
    """Where a pool finds replicas, besides those that the policy lists."""

    sources: tuple[Source, ...]
    scheme: str = "http"
    """`http` or `https`, for entries without one of their own."""
    path: str = ""
    """Path before those of the API: empty, or `/path`."""
    dp: int = 1
    """Number of data-parallel ranks behind each address, >= 1."""
    hold_down_s: float = 10.0
    """Seconds within which at most a third of the replicas is removed, and an address that flaps stays."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How a pool keeps requests while it has no replica, instead of refusing them."""

    time_s: float = 60.0
    """Longest time, counted from body complete."""
    limit: int = 256
    """Number of requests that may be on hold."""
    bytes: int = 256 * 1024 * 1024
    """Limit on the total bytes of their bodies."""
    wake_url: str = field(default="", repr=False)
    """URL that is called when requests are on hold; empty for none. Not for the controller."""
    wakes_sleeping: bool = field(default=False, repr=False)
    """Whether replicas that sleep (vLLM's sleep mode) are woken then. Not for the controller."""


def replicas_at(url: str, name: str, dp: int, is_found: bool = False) -> tuple[ReplicaSpec, ...]:
    """The replica at a URL, or its `dp` data-parallel ranks. `name`: empty for host, port and path of the URL."""
    name = name or url.partition("://")[2]
    if dp == 1:
        return (ReplicaSpec(name, url, None, is_found),)
    return tuple([ReplicaSpec(f"{name}#{rank}", url, rank, is_found) for rank in range(dp)])


class SessionKey(StrEnum):
    """Parts of a request that can name its session."""

    HEADER = "header"
    PROMPT_CACHE_KEY = "prompt_cache_key"
    METADATA = "metadata.user_id"
    """The session id inside `metadata.user_id`, in the form that Claude Code writes."""
    USER = "user"
    """The field `user`; in the Messages API the whole of `metadata.user_id`."""
    FIRST_MESSAGE = "first-message"
    """The prompt up to its first user message, which every turn of a conversation repeats."""


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Where to find the name of a session in a request. Of `keys`, the first that a request has is used."""

    header: str = "x-session-id"
    """Name of the header, in lower case."""
    keys: tuple[SessionKey, ...] = (SessionKey.HEADER, SessionKey.PROMPT_CACHE_KEY, SessionKey.METADATA)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool of equal replicas. `max_prompt_tokens` None: any prompt fits. `slots`: per replica; None: learned."""

    name: str
    replicas: tuple[ReplicaSpec, ...]
    engine: EngineKind = EngineKind.VLLM
    max_prompt_tokens: int | None = None
    slots: int | None = None
    strict_slots: bool = False
    """Whether gateways divide the slots of a replica among them."""
    queue_limit: int = 256
    """Number of requests that may wait for a slot."""
    queue_bytes: int = 256 * 1024 * 1024
    """Limit on the total bytes of waiting requests' bodies. Bodies of coding agents with files have 2 to 10 MB each."""
    hold: Hold | None = None
    connect_timeout_s: float = 2.0
    timeouts: Timeouts = NO_TIMEOUTS
    kv_headroom: float | None = None
    """Share (0-1) of the KV cache to keep free for growing answers. None: as much as their forecast needs."""
    reserve: tuple[tuple[str, float], ...] = ()
    """(tier, share 0-1) pairs: the share of the pool's slots that is reserved for the tier."""
    spill_from: tuple[str, ...] = ()
    router: str = "least-prefill"
    affinity: bool = True
    """Whether prompts are sent preferably to engines that have cached their beginning."""
    strict_sessions: bool = False
    """Whether a session may be served only by its home replica."""
    sessions: SessionKeys = field(default=SessionKeys(), repr=False)
    """Used only by the proxy, which names sessions."""
    health: Health = Health()
    access: ReplicaAccess = field(default=ReplicaAccess(), repr=False)
    discovery: Discovery | None = field(default=None, repr=False)
    """Not for the controller, which gets the replicas that were found in `replicas`."""
    cache_key: str | None = field(default=None, repr=False)
    """Secret from which each tenant's cache salt is made. None: tenants share prefix caches."""

    def takes(self, prompt_tokens: int, prompts: int = 1) -> bool:
        """Whether `prompts` prompts of `prompt_tokens` in total fit, by their mean length."""
        return self.max_prompt_tokens is None or prompt_tokens <= self.max_prompt_tokens * prompts
