"""Readings of replicas: health, load and models as one gateway finds them. Loads and limits that gateways share."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.policy import LimitKind


class Proof(StrEnum):
    """Answers that the gateway's own probe of a replica got, besides its health check."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    NONE = "none"
    LISTED = "listed"
    """A list of models."""
    COMPLETED = "completed"
    """A list of models, and a completion of one token."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of a health check, a scrape or a model list of one replica. Missing values are None."""

    healthy: bool | None = None
    waiting: int | None = None
    running: int | None = None
    kv_fraction: float | None = None
    preemptions: int | None = None
    """Number of preemptions since the engine started: requests that lost their KV cache because it was full."""
    context_tokens: int | None = None
    """The smallest `max_model_len` of the models that the replica serves."""
    longest_tokens: int | None = None
    """The largest `max_model_len` of these models; None if any model has none."""
    models: tuple[str, ...] | None = None
    """Names that the replica lists, adapters included. Empty if its list leaves open which names it takes."""
    late: bool = False
    """Whether the health check timed out."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that the replica lists."""
    max_adapters: int | None = None
    """How many LoRA adapters the replica can have in one batch."""
    active_adapters: tuple[str, ...] | None = None
    """LoRA adapters with running or waiting requests there."""
    cache_queries: int | None = None
    """Prompt tokens that were looked up in the prefix cache since the engine started."""
    cache_hits: int | None = None
    """Prompt tokens that were found in the prefix cache since the engine started."""
    generated_tokens: int | None = None
    """Tokens that the engine generated since it started; None if it counts them only when a request ends."""
    error: str = field(default="", compare=False)
    """Why the health check failed. It is ignored when samples are compared."""
    proof: Proof = Proof.NONE
    """How much more than the health check was asked of a replica that is out, and answered."""
    asked_at: float | None = field(default=None, compare=False)
    """Start of the health check; None stands for now. It is ignored when samples are compared."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of one replica by the requests of one gateway, or of several."""

    name: str
    in_flight: int = 0
    unread_prompts: int = 0
    unread_tokens: int = 0
    """Prompt tokens that the engine has not read."""
    held_tokens: int = 0
    """Tokens of context in use: prompts, and answers so far."""
    growth_tokens: float = 0.0
    """Output tokens that these requests are still expected to get."""
    prompt_tokens_per_s: float = 0.0
    """Unread prompt tokens sent per second, over the last seconds."""


NO_LOAD: Final = ReplicaLoad("")


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Requests of one gateway at one pool."""

    name: str
    by_tier: tuple[tuple[str, int], ...] = ()
    """Requests under way, by tier; tiers without any are left out."""
    waiting: tuple[tuple[int, int], ...] = ()
    """Queued requests, by priority; priorities without any are left out."""


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """Load of one gateway. Replicas and pools without any are left out. Replicas have the same names everywhere."""

    interval_s: float
    """Seconds (> 0) between two messages of the gateway. After three of them without a message it is forgotten."""
    replicas: tuple[ReplicaLoad, ...] = ()
    pools: tuple[PoolLoad, ...] = ()
    ejected: tuple[tuple[str, str], ...] = ()
    """Replicas that the gateway has ejected, with the reason."""


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """The present day or month of quotas."""

    period: str
    """`day` or `month`."""
    name: str
    """Such as 2026-11-29, or 2026-11."""
    ends_at: float
    """The next one begins at this time."""


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Use of one limit of a tenant at one gateway."""

    limit: LimitKind
    burst: float
    """The whole limit: the most that all gateways may use at once."""
    per_min: float
    """Refill of the whole limit."""
    used: float
    """All that this gateway has used and not given back since it began."""
    left: float
    """Amount (>= 0) that it may use now."""
    need: float
    """Amount (>= 1) of one request: without as much, a lease is of no use."""
    window: str = ""
    """Name of the window of a quota; empty for other limits."""


@dataclass(frozen=True, slots=True)
class LimitLease:
    """One gateway's part of a tenant's limit, until it lapses."""

    tenant: str
    tier: str
    limit: LimitKind
    up_to: float
    """The gateway may use the limit until `LimitUse.used` reaches this."""
    elsewhere: float
    """Amount (>= 0) that is left for other gateways."""
    share: float
    """Expected share (0-1, above 0) of the refill that the gateway gets."""
    until: float
    """Time at which the lease lapses."""
    window: str = ""
    """As in `LimitUse`."""
