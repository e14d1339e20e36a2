"""Skew, for the experiment `affinity`: 60% of the prompts begin alike, and must not overload a single replica."""

from __future__ import annotations

from random import Random

from gateway.core.commands import Command
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.sample import Sample
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.gateways import Gateways, played


class Watched(Gateways):
    """One controller that also keeps the requests that scrapes find at each replica from `begins_at` on."""

    def __init__(self, controller: Controller, begins_at: float) -> None:
        super().__init__([controller], lambda _: 0)
        self._begins_at = begins_at
        self._found: dict[str, list[int]] = {}

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        if sample.running is not None and sample.waiting is not None and now >= self._begins_at:
            self._found.setdefault(replica_name, []).append(sample.running + sample.waiting)
        return super().observe(replica_name, sample, now)

    @property
    def busiest(self) -> float:
        """Mean number of requests at the busiest replica, over that at the mean replica."""
        means = [sum(found) / len(found) for found in self._found.values()]
        return max(means) * len(means) / sum(means)


def shared(of: tuple[Policy, FleetSpec, Synthetic, int, Options]) -> tuple[Result, float]:
    """One run, and the load of its busiest replica over the mean; from policy, fleet, traffic, seed and options."""
    policy, fleet, traffic, seed, options = of
    decider = Watched(Controller(policy, Random(f"{seed} controller")), options.warmup_s)
    return played(decider, policy, fleet.hosts(policy), traffic.arrivals(seed), seed, options), decider.busiest
