"""A run, for its meter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.core.commands import Command
from gateway.core.policy import Policy
from gateway.sim.analysis.tally import Tally
from gateway.sim.run.decider import Decider
from gateway.sim.run.fleet import Host
from gateway.sim.run.requests import SimulatedAttempt


class ObservedRun(ABC):
    """State that a meter reads, and calls by which it plans its looks. `Simulation` fills them in."""

    def __init__(self, decider: Decider, policy: Policy, hosts: dict[str, Host], tally: Tally) -> None:
        self.decider = decider
        self.policy = policy
        self.hosts = hosts
        self.tally = tally
        self.now = 0.0
        self.arrived = 0
        self.in_system_s = 0.0
        """Integral of the number of requests in the system, over time, up to the last `count`."""
        self.flights: dict[int, SimulatedAttempt] = {}

    @abstractmethod
    def at(self, at: float, what: Callable[[], None]) -> None:
        """Call `what` at time `at`, which is not before now."""

    @abstractmethod
    def count(self, change: int) -> None:
        """The number of requests in the system changes now."""

    @abstractmethod
    def settle(self, host: Host) -> None:
        """Take a replica's work up to now: before it is changed, or when it is due."""

    @abstractmethod
    def tell(self, call: Callable[..., list[Command]], *args: object) -> None:
        """Tell the decider of an event, in turn."""

    @abstractmethod
    def carry_out(self, commands: list[Command]) -> None:
        """Carry out commands and tell their events, until nothing follows."""
