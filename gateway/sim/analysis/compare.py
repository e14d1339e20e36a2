"""Compares policies over identical arrivals. The runs are simulated one after the other, or in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from random import Random

from gateway.core.policy import Policy
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.options import Options
from gateway.sim.run.processes import shared
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival, Traffic, Workload


@dataclass(frozen=True, slots=True)
class OfModel:
    """A workload in which every request asks for `model`."""

    workload: Traffic
    model: str

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The requests of one run."""
        for arrival in self.workload.arrivals(seed):
            yield replace(arrival, model=self.model)

    def faster(self, times: float) -> OfModel:
        """A copy whose rate is `times` times as high."""
        return OfModel(self.workload.faster(times), self.model)


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of a comparison: a policy, or a named baseline that is built from a policy."""

    name: str
    policy: Policy
    fleet: FleetSpec
    baseline: str | None = None

    def setup(self) -> baselines.Setup:
        """The policy and decider of this row. Raises ValueError if there is no such baseline."""
        if self.baseline is None:
            return baselines.Setup(self.policy)
        return baselines.setup(self.baseline, self.policy)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison: contenders, their common inputs, and the seeds."""

    candidates: tuple[Contender, ...]
    workload: Workload
    seeds: tuple[int, ...]
    options: Options

    def run(self, candidate: Contender, seed: int) -> Result:
        """Run one contender with one seed. Arrivals depend only on the seed. Raises ValueError as `simulate` does."""
        setup = candidate.setup()
        try:
            found = simulate(
                setup.policy,
                self.workload.arrivals(seed),
                seed=seed,
                fleet=candidate.fleet,
                options=self.options,
                decider=setup.decider(setup.policy, Random(f"{seed} controller")),
            )
        except ValueError as error:
            raise ValueError(f"{candidate.name}: {error}") from None
        return replace(found, policy=candidate.name)

    def run_all(self, jobs: int = 1, on_done: Callable[[Result], None] = lambda _: None) -> list[list[Result]]:
        """Run every contender with every seed, in order. `jobs`: number of processes."""
        tasks = [(c, s) for s in range(len(self.seeds)) for c in range(len(self.candidates))]
        found: dict[tuple[int, int], Result] = {}
        if jobs <= 1:
            for c, s in tasks:
                found[c, s] = self.run(self.candidates[c], self.seeds[s])
                on_done(found[c, s])
        else:
            with shared(jobs) as pool:
                running = {pool.submit(self.run, self.candidates[c], self.seeds[s]): (c, s) for c, s in tasks}
                for done in as_completed(running):
                    found[running[done]] = done.result()
                    on_done(done.result())
        return [[found[c, s] for s in range(len(self.seeds))] for c in range(len(self.candidates))]
