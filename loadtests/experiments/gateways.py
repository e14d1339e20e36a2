"""Deciders of experiments: independent gateways, and one that sees all caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.core.commands import Cancel, Command, Commit, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.request import Prefix, Request
from gateway.core.results import AttemptResult
from gateway.core.sample import Sample
from gateway.sim.engine.fleet import Host
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result, Window, result
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.arrivals import Arrival


class Gateways:
    """Controllers in front of the same replicas, as one decider. `chosen` picks the controller of a request.

    Each sees only its own requests, and the health and metrics of all replicas. Of `n` gateways,
    attempt `a` of gateway `g` has the id `a * n + g` for the caller.
    """

    def __init__(self, controllers: Sequence[Controller], chosen: Callable[[Request], int]) -> None:
        self._controllers = controllers
        self._chosen = chosen
        self._at: dict[int, int] = {}
        """The gateway of each request."""

    def arrive(self, request: Request, now: float) -> list[Command]:
        at = self._at[request.id] = self._chosen(request)
        return self.outside(at, self._controllers[at].arrive(request, now))

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        own, at = self._inside(attempt_id)
        return self.outside(at, self._controllers[at].sent(own, now))

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        own, at = self._inside(attempt_id)
        return self.outside(at, self._controllers[at].first_token(own, now))

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        own, at = self._inside(attempt_id)
        return self.outside(at, self._controllers[at].progress(own, tokens, now))

    def finish(self, attempt_id: int, finish: AttemptResult, now: float) -> list[Command]:
        own, at = self._inside(attempt_id)
        return self.outside(at, self._controllers[at].finish(own, finish, now))

    def leave(self, request_id: int, now: float) -> list[Command]:
        at = self._at[request_id]
        return self.outside(at, self._controllers[at].leave(request_id, now))

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        commands: list[Command] = []
        for at, controller in enumerate(self._controllers):
            commands += self.outside(at, controller.observe(replica_name, sample, now))
        return commands

    def wake(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for at, controller in enumerate(self._controllers):
            if controller.wake_at() <= now:
                commands += self.outside(at, controller.wake(now))
        return commands

    def wake_at(self) -> float:
        return min(controller.wake_at() for controller in self._controllers)

    def _inside(self, attempt_id: int) -> tuple[int, int]:
        return divmod(attempt_id, len(self._controllers))

    def outside(self, at: int, commands: list[Command]) -> list[Command]:
        """Commands of gateway `at`, with the ids of attempts that the caller knows."""
        for command in commands:
            match command:
                case Dispatch() | Commit() | Cancel():
                    command.attempt = command.attempt * len(self._controllers) + at
                case Ended(record):
                    del self._at[record.request.id]
        return commands


class SeesCaches:
    """One controller. Before each decision its cache indexes are rebuilt from the caches of the engines and the prompts
    on their way."""

    def __init__(self, controller: Controller, hosts: Mapping[str, Host]) -> None:
        self._controller = controller
        self._hosts = hosts
        self._waiting: dict[int, Request] = {}
        self._under_way: dict[int, tuple[str, Prefix]] = {}
        """Replica and prompt of each attempt."""
        self._coming: dict[str, Counter[int]] = {name: Counter() for name in hosts}
        """Blocks of the prompts under way, by replica."""

    def arrive(self, request: Request, now: float) -> list[Command]:
        self._waiting[request.id] = request
        self._rebuild()
        return self._heard(self._controller.arrive(request, now))

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        return self._controller.sent(attempt_id, now)

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        self._rebuild()
        return self._heard(self._controller.first_token(attempt_id, now))

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        self._rebuild()
        return self._heard(self._controller.progress(attempt_id, tokens, now))

    def finish(self, attempt_id: int, finish: AttemptResult, now: float) -> list[Command]:
        replica, prefix = self._under_way.pop(attempt_id)
        self._coming[replica].subtract(prefix.blocks)
        self._rebuild()
        return self._heard(self._controller.finish(attempt_id, finish, now))

    def leave(self, request_id: int, now: float) -> list[Command]:
        return self._heard(self._controller.leave(request_id, now))

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        self._rebuild()
        return self._heard(self._controller.observe(replica_name, sample, now))

    def wake(self, now: float) -> list[Command]:
        self._rebuild()
        return self._heard(self._controller.wake(now))

    def wake_at(self) -> float:
        return self._controller.wake_at()

    def _rebuild(self) -> None:
        """Rebuild the indexes for the requests that wait to be sent."""
        if not self._waiting:
            return
        for name, host in self._hosts.items():
            replica = self._controller.state.fleet.replica(name)
            assert replica is not None
            replica.cache.clear()
            for request in self._waiting.values():
                prefix, coming = request.affinity.prefix, self._coming[name]
                known = host.model.cache.match(prefix.blocks)
                while known < len(prefix.blocks) and coming[prefix.blocks[known]] > 0:
                    known += 1
                if known:
                    blocks, ends = prefix.blocks[:known], prefix.ends[:known]
                    replica.cache.sent(Prefix(blocks, ends, prefix.size))

    def _heard(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            match command:
                case Dispatch(request_id=number, attempt=attempt, replica=replica):
                    prefix = self._waiting.pop(number).affinity.prefix
                    self._under_way[attempt] = replica, prefix
                    self._coming[replica].update(prefix.blocks)
                case Refuse(request_id=number):
                    self._waiting.pop(number, None)
        return commands


def played(
    decider: Decider, policy: Policy, hosts: dict[str, Host], arrivals: Iterator[Arrival], seed: int, options: Options
) -> Result:
    """One run of a decider in front of replicas. All arrivals ask for the model `any`."""
    engine = Simulation(decider, policy, hosts, options, Tally(policy.tiers.values(), options.warmup_s), seed)
    engine.run(replace(arrival, model="any") for arrival in arrivals)
    opened, closed = engine.watch.opened, engine.watch.closed
    assert opened is not None
    assert closed is not None
    return result(engine, Window(opened, closed), seed, 0.0)
