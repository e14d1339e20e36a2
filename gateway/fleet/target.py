"""A server of replicas that is watched, and what a watch reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.pool_spec import EngineKind, Health, ReplicaAccess, ReplicaSpec
from gateway.core.request import Random
from gateway.core.sample import Sample
from gateway.fleet.board import ModelBoard
from gateway.fleet.engine_times import EngineTimes
from gateway.fleet.fault import Failed, ReadFault

WHOLE_SERVER: Final = frozenset({ReadFault.UNREACHABLE, ReadFault.TIMEOUT, ReadFault.BROKEN})
"""Failures without an answer. If the health check has one of them, other readings fail for the same cause."""
_OWN_CHECKS: Final[Mapping[EngineKind, str]] = {EngineKind.OPENAI: "/v1/models"}
"""Path of the health check by engine, if the policy gives none. Others have /health."""
_SERVER_ERROR: Final = 500


class Reading(StrEnum):
    """A kind of reading from a replica. A metric label."""

    HEALTH = "health"
    METRICS = "metrics"
    MODELS = "models"


@dataclass(frozen=True, slots=True)
class Target:
    """All settings for the watch of one server. If they stay equal in a reload, the watch goes on."""

    replicas: tuple[ReplicaSpec, ...]
    """One replica, or the data-parallel ranks in their order."""
    pool: str
    engine: EngineKind
    health: Health
    access: ReplicaAccess
    models: frozenset[str] = field(default=frozenset(), compare=False)
    """Names by which the policy asks these replicas for models. A catch-all without `upstream` has none. A change of
    them does not interrupt the watch.
    """

    takes_any: bool = field(default=False, compare=False)
    """Whether only a catch-all sends requests here, so that the replicas' lists decide what a request may name."""

    may_sleep: bool = False
    """Whether the server is asked if it sleeps: vLLM's sleep mode."""

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.replicas[0].server

    @property
    def url(self) -> str:
        """URL of the server."""
        return self.replicas[0].url

    @property
    def by_rank(self) -> bool:
        """Whether its replicas are data-parallel ranks."""
        return self.replicas[0].dp_rank is not None

    @property
    def check_path(self) -> str:
        """Path of the health check."""
        return self.health.path or _OWN_CHECKS.get(self.engine, "/health")

    def is_life(self, answer: bytes | Failed) -> bool:
        """Whether this answer to a health check shows that the server is alive.

        A server without the path answers 404 or 405, one with other keys 401. That is no failure, unless the policy
        names the path.
        """
        if not isinstance(answer, Failed):
            return True
        if self.health.path or answer.fault in WHOLE_SERVER:
            return False
        return answer.status < _SERVER_ERROR


@dataclass(frozen=True, slots=True)
class Tools:
    """Callbacks and clocks that a watch needs."""

    on_sample: Callable[[str, Sample], None]
    board: ModelBoard
    clock: Callable[[], float]
    random: Random
    pause: Callable[[float], Awaitable[None]]
    models_interval_s: float
    on_bug: Callable[[Exception], None]
    is_out: Callable[[str], bool]
    """Whether the replica of a name gets no requests."""
    times: EngineTimes
    stretch: Callable[[], float]
    """How many times as long as written an interval is (>= 1), because the fleet is large."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """State of the readings of one replica. `errors` has no secrets."""

    name: str
    url: str
    pool: str
    healthy: bool | None
    errors: Mapping[Reading, str]
    """By reading that is failing now: its last error."""
    failures: Mapping[tuple[Reading, ReadFault], int]
    """Number of failures since this watch began, by reading and kind of failure."""
