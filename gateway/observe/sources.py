"""Functions that read the running process, for the pages of the admin port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import Request
from gateway.core.request_state import RequestState
from gateway.core.scheduling.explanation import PlacementExplanation
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.snapshot import Snapshot
from gateway.observe.console.history import LastHour
from gateway.observe.metrics.little import LittleView
from gateway.observe.requests.ring import RequestRing
from gateway.observe.usage.ledger import UsageLedger


@dataclass(frozen=True, slots=True)
class Reload:
    """Result of the last load of the policy. `error`: empty if the policy was put in force."""

    at_unix_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """A policy that was put in force, and its differences from the one before, one line each."""

    generation: int
    digest: str
    at_unix_s: float
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """State of a replica's readings: present errors, and numbers of failures by reading and kind."""

    name: str
    pool: str
    errors: Mapping[str, str]
    failures: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Discovered:
    """State of one source of a pool's replicas. `error`: of its last answer; empty if it could be read."""

    pool: str
    source: str
    addresses: int | None
    """Number of addresses in its last listing; None before the first."""
    error: str
    held: int
    """Replicas of the pool that no source lists any more, and that are not removed yet."""


@dataclass(frozen=True, slots=True)
class RelayView:
    """One process that serves clients, where there are several."""

    number: int
    pid: int
    connections: int
    requests: int
    lag_s: float
    """Longest wait of anything ready to run on its event loop, lately."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """State of the store that gateways share. `error`: why it is away; empty while it is not. `limit_error`: why one
    limit of a tenant cannot be leased; empty if all can be.
    """

    address: str
    gateways: int
    """Other gateways whose loads came within the last rounds."""
    failures: int
    """Rounds that failed since the start."""
    error: str
    limit_error: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that the pages of the admin port read from the process."""

    version: str
    policy: Callable[[], Policy]
    snapshot: Callable[[], Snapshot]
    snapshot_in_pieces: Callable[[], Awaitable[Snapshot]]
    """The same for a page that may wait."""
    reload: Callable[[], Reload]
    connections: Callable[[], int]
    """Client connections that are open."""
    relays: Callable[[], Sequence[RelayView]]
    """The processes that serve clients; none if this process does."""
    not_ready: Callable[[], str]
    """Why this gateway should get no requests now; empty if it should get requests."""
    loop_lag_s: Callable[[], float]
    loop_waits: LogHistogram
    watched: Callable[[], Sequence[Watched]]
    discovered: Callable[[], Sequence[Discovered]]
    dropped: Callable[[], Mapping[str, int]]
    """Number of calls missing in the journal, lines in the access log, sampled requests in traces, by these names."""
    little: Callable[[Snapshot], Sequence[LittleView]]
    """Little's law for each pool, up to the time of a snapshot."""
    find: Callable[[str, Tier], tuple[Model | None, str]]
    """Returns (the model that serves a name to a tier, or None; the LoRA adapter of that name, or empty)."""
    explain: Callable[[Request], PlacementExplanation | Unplaceable]
    """Returns the decision that a request would get now."""
    now: Callable[[], float]
    """The monotonic clock of the request path."""
    history: LastHour
    under_way: Callable[[str], Sequence[RequestState]]
    """Requests under way that clients know by an id, or replicas."""
    usage: UsageLedger | None = None
    """The ledger; None if no usage is kept."""
    policies: Callable[[], Sequence[PolicyInForce]] = tuple
    """The latest policies in force, the present one last."""
    store: Callable[[], StoreView | None] = lambda: None
    """State of the store that gateways share; None without one."""
    wall_s: Callable[[], float] = lambda: 0.0
    """Unix time at the zero of that clock."""
    requests: RequestRing | None = None
    """The records of ended requests; None if none are kept."""
