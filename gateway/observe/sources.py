"""Reads of the running process for the admin port's pages, each made at the moment of reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.admission.explanation import PlacementExplanation
from gateway.core.admission.placement import Unplaceable
from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import Request
from gateway.core.snapshot import Snapshot
from gateway.core.stats import LogHistogram
from gateway.observe.metrics.little import LittleView


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of the last load of the policy. `error` is empty if that policy is in force."""

    at_unix_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """State of a replica's readings: the present errors, and the failures of each reading, by kind of fault."""

    name: str
    pool: str
    errors: Mapping[str, str]
    failures: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Sources:
    """The process, for its observers."""

    version: str
    policy: Callable[[], Policy]
    snapshot: Callable[[], Snapshot]
    reload: Callable[[], Reload]
    connections: Callable[[], int]
    """Client connections that are open."""
    not_ready: Callable[[], str]
    """The reason why no requests should be sent here now; empty if they may."""
    loop_lag_s: Callable[[], float]
    loop_waits: LogHistogram
    watched: Callable[[], Sequence[Watched]]
    journal_dropped: Callable[[], int]
    """Calls that are missing in the journal."""
    little: Callable[[Snapshot], Sequence[LittleView]]
    """Little's law of each pool, up to that snapshot."""
    find: Callable[[str, Tier], tuple[Model | None, str]]
    """The model that serves a name to a tier, if any, and the LoRA adapter that the name means."""
    explain: Callable[[Request], PlacementExplanation | Unplaceable]
    """The decision on a request now."""
    now: Callable[[], float]
    """The monotonic clock of the request path."""
