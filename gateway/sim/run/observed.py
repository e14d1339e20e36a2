"""Interface of a run to its meter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.core.commands import Command
from gateway.core.policy import Policy
from gateway.sim.engine.fleet import Host
from gateway.sim.run.decider import Decider
from gateway.sim.run.requests import SimulatedAttempt
from gateway.sim.run.tally import Tally


class ObservedRun(ABC):
    """State that a meter reads, and methods with which it schedules its work. `Simulation` implements them."""

    def __init__(self, decider: Decider, policy: Policy, hosts: dict[str, Host], tally: Tally) -> None:
        self.decider = decider
        self.policy = policy
        self.hosts = hosts
        self.tally = tally
        self.now = 0.0
        self.arrived = 0
        self.in_system_s = 0.0
        """Integral over time of the number of requests in the system, up to the last `count`."""
        self.attempts: dict[int, SimulatedAttempt] = {}

    @abstractmethod
    def at(self, at: float, what: Callable[[], None]) -> None:
        """Schedule a call of `what` at the time `at`, which must not be before now."""

    @abstractmethod
    def count(self, change: int) -> None:
        """Change the number of requests in the system by `change`, now."""

    @abstractmethod
    def settle(self, host: Host) -> None:
        """Simulate a replica up to now. Called before the replica is changed, and when it is due."""

    @abstractmethod
    def tell(self, call: Callable[..., list[Command]], *args: object) -> None:
        """Report an event to the decider, after all earlier events."""

    @abstractmethod
    def carry_out(self, commands: list[Command]) -> None:
        """Carry out commands and report their events to the decider, until no more commands follow."""
