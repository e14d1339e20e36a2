"""The replicas of a run, with their engines and their faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.policy import Policy
from gateway.sim.engine.profiles import DEFAULT, Profile, profile_of
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest, ReplicaEvent

NEVER: Final = 1e12
"""Slowdown factor of a hung replica."""


class Harm(StrEnum):
    """A fault of a replica."""

    SLOW = "slow"
    """Every step takes `factor` times as long."""
    DOWN = "down"
    """New connections are refused; running requests go on."""
    DEAD = "dead"
    """The process has ended: running requests break off, and new connections are refused."""
    HUNG = "hung"
    """It accepts requests but answers none, and running requests make no progress. Its health checks pass."""
    BUSY = "busy"
    """Every request is refused at once with 503, and running requests go on. Its health checks pass."""
    BALLOON = "balloon"
    """Every answer goes on to its allowed length. Its health checks pass."""
    RECOVER = "recover"
    """It is repaired. Running requests go on, but requests that hung break off. Answers that ballooned go on to their
    allowed length.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """`replica` gets the fault `harm` at `at` seconds. `factor` (> 0) applies only to SLOW."""

    at: float
    replica: str
    harm: Harm
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.factor <= 0 or not math.isfinite(self.factor):
            raise ValueError(f"{self.replica}: the factor of a fault must be above 0, not {self.factor:g}")


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Engine profiles by name of a replica or a pool, and faults. The profile of a replica takes precedence over that
    of its pool. Without both, a replica has the profile `default`.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def profile(self, pool: str, replica: str) -> Profile:
        """The engine profile of `replica` in `pool`."""
        return self.profiles.get(replica) or self.profiles.get(pool) or DEFAULT

    def hosts(self, policy: Policy) -> dict[str, Host]:
        """The replicas of a policy by name, all idle.

        Raises ValueError if a fault names a replica that does not exist.
        """
        hosts = {
            replica.name: Host(replica.name, self.profile(pool.name, replica.name))
            for pool in policy.pools.values()
            for replica in pool.replicas
        }
        for fault in self.faults:
            if fault.replica not in hosts:
                raise ValueError(f"--fault names {fault.replica}, but the replicas are {', '.join(hosts)}")
        return hosts


def fleet_of(text: str, policy: Policy) -> dict[str, Profile]:
    """Read `PROFILE` (for all pools) or `NAME=PROFILE,...` (by pool or replica). Raises ValueError that says what is
    right.
    """
    try:
        return _by_name(text, policy)
    except ValueError as error:
        raise ValueError(f"--fleet: {error}") from None


def _by_name(text: str, policy: Policy) -> dict[str, Profile]:
    if "=" not in text:
        return {pool: profile_of(text) for pool in policy.pools}
    names = {name for pool in policy.pools.values() for name in (pool.name, *(r.name for r in pool.replicas))}
    profiles = {}
    for part in text.split(","):
        name, _, profile = part.strip().partition("=")
        if name not in names:
            raise ValueError(f"{name} is neither a pool nor a replica of the policy; pools: {', '.join(policy.pools)}")
        profiles[name] = profile_of(profile)
    return profiles


def fault_of(text: str) -> Fault:
    """Read `REPLICA@SECONDS=HARM[:FACTOR]`, such as `r1@30=slow:4`. Raises ValueError that says what is right."""
    place, _, what = text.rpartition("=")
    replica, _, at = place.rpartition("@")
    harm, _, factor = what.partition(":")
    wanted = (
        f"--fault {text}: a fault is written REPLICA@SECONDS=HARM, HARM one of slow:FACTOR, down, dead, hung, busy, "
        "balloon, recover"
    )
    if not replica or (harm == Harm.SLOW) != bool(factor):
        raise ValueError(wanted)
    try:
        fault = Fault(float(at), replica, Harm(harm), float(factor or 1.0))
    except ValueError:
        raise ValueError(wanted) from None
    if not 0.0 <= fault.at < math.inf:
        raise ValueError(wanted)
    return fault


class Host:
    """One replica of a run: its simulated engine, whether it can be reached, and its busy time."""

    __slots__ = (
        "_busy_s",
        "_busy_since",
        "_hit",
        "_preempted",
        "_queried",
        "balloons",
        "due",
        "hung",
        "model",
        "name",
        "noted",
        "profile",
        "reached_at",
        "refuses",
        "up",
    )

    def __init__(self, name: str, profile: Profile) -> None:
        self.name = name
        self.profile = profile
        self.model = SimulatedReplica(profile)
        self.up = True
        self.hung = False
        self.reached_at = 0.0
        """Time at which the last request that was sent arrives at the replica."""
        self.refuses = False
        """Whether the replica answers every request with 503."""
        self.balloons = False
        """Whether answers that begin now go on to their allowed length."""
        self.due = math.inf
        """Time at which `advance` must be called next; inf while idle."""
        self.noted = math.inf
        """Time of the replica's entry in the simulation's queue of events; inf if there is none."""
        self._busy_s = 0.0
        self._busy_since = 0.0
        self._preempted = self._queried = self._hit = 0

    @property
    def preemptions(self) -> int:
        """Number of preemptions since the start of the run."""
        return self._preempted + self.model.preemptions_total

    @property
    def queried_tokens(self) -> int:
        """Prompt tokens of all sequences since the start of the run."""
        return self._queried + self.model.cache.queried_tokens

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found in the prefix cache since the start of the run."""
        return self._hit + self.model.cache.hit_tokens

    def busy_s(self, now: float) -> float:
        """Seconds with a step under way since the start of the run."""
        return self._busy_s + (0.0 if self.due == math.inf else now - self._busy_since)

    def kv_fraction(self, now: float) -> float:
        """Share of the KV cache that is filled (0-1)."""
        return self.model.cached(now) / self.profile.kv_capacity_tokens

    def advance(self, now: float) -> list[ReplicaEvent]:
        """Simulate the engine up to `now`. Returns the events."""
        events = self.model.advance(now)
        self._update(now)
        return events

    def add(self, request: EngineRequest, now: float) -> None:
        """Add a request. Call `advance(now)` first: otherwise the request may join a step that began before it came, or
        ValueError is raised.
        """
        self.model.add(request, now)
        self._update(now)

    def abort(self, id: int, now: float) -> None:
        """Abort a request at once. Call `advance(now)` first: ValueError is raised if events are due."""
        self.model.abort(id, now)
        self._update(now)

    def suffer(self, fault: Fault, now: float) -> bool:
        """Apply a fault. Call `advance(now)` first: otherwise due events are lost, or ValueError is raised. Returns
        True if running requests break off.
        """
        breaks_off = fault.harm is Harm.DEAD or (fault.harm is Harm.RECOVER and self.hung)
        if breaks_off:
            self._preempted += self.model.preemptions_total
            self._queried += self.model.cache.queried_tokens
            self._hit += self.model.cache.hit_tokens
            self.model = SimulatedReplica(self.profile)
        match fault.harm:
            case Harm.SLOW:
                self.model.slow(fault.factor, now)
            case Harm.DOWN:
                self.up = False
            case Harm.DEAD:
                self.up = False
            case Harm.HUNG:
                self.hung = True
                self.model.slow(NEVER, now)
            case Harm.BUSY:
                self.refuses = True
            case Harm.BALLOON:
                self.balloons = True
            case Harm.RECOVER:
                self.up, self.hung, self.refuses, self.balloons = True, False, False, False
                self.model.slow(1.0, now)
        self._update(now)
        return breaks_off

    def _update(self, now: float) -> None:
        """Update `due` and the busy time."""
        due = self.model.next_at()
        if due == math.inf:
            if self.due != math.inf:
                self._busy_s += now - self._busy_since
        elif self.due == math.inf:
            self._busy_since = now
        self.due = due
