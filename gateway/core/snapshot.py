"""What the controller knows, copied out for people and metrics. Reading it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.model import Sample


class ReplicaState(StrEnum):
    """Whether a replica gets requests."""

    UP = "up"
    DOWN = "down"
    """Its breaker is open: nothing is sent."""
    PROBING = "probing"
    """Its breaker is half open: one request at a time."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica now. `sample_age_s` is the age of the last scrape that was answered, None if none ever was."""

    name: str
    url: str
    pool: str
    state: ReplicaState
    in_flight: int
    unprefilled_tokens: int
    """Prompt tokens sent whose request has no first token yet."""
    failures: int
    """Consecutive failures counted by the breaker."""
    sample: Sample | None
    sample_age_s: float | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool now. `slots` is the sum over replicas that get requests, None if unbounded."""

    name: str
    in_flight: int
    queued: int
    queued_bytes: int
    queue_limit: int
    slots: int | None
    drain_rate: float | None
    """Requests per second that leave while the waiting room is not empty; None before there was a backlog."""
    replicas: tuple[ReplicaView, ...]


@dataclass(frozen=True, slots=True)
class LimitView:
    """What one tenant has left now; None where the tier sets no limit. `reset` is seconds until full again."""

    tenant: str
    tier: str
    requests_limit: float | None
    requests_left: float | None
    requests_reset_s: float | None
    tokens_limit: float | None
    tokens_left: float | None
    tokens_reset_s: float | None
    concurrency_limit: int | None
    in_flight: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    generation: int
    pools: tuple[PoolView, ...]
    tenants: tuple[LimitView, ...]
