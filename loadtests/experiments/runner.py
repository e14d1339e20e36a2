"""Common parts of experiments: the committed setup, lengths and seeds of runs, 1x, and the optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TypeVar

from gateway.core.policy import AdmissionMode, AdmissionSpec, Policy
from gateway.policy import load
from gateway.sim.analysis.bound import bound, capacity, replay_set
from gateway.sim.analysis.compare import Comparison, Contender
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.options import Options
from gateway.sim.run.processes import shared
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival, Workload
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.synthetic import Synthetic
from loadtests.experiments.targets import SET_ASIDE_ENGINE, SET_ASIDE_WORKLOAD

SETUP = Path(__file__).parent / "setup"

T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of an experiment: seeds, seconds of counted arrivals, seconds of warm-up before them."""

    seeds: int = 5
    seconds: float = 60.0
    warmup_s: float = 30.0
    quick: bool = False
    full: bool = False
    set_aside: bool = False
    """Whether only the cells of the engine and the workload that were set aside are run."""


FULL = Effort(seeds=10, seconds=120.0, full=True)
QUICK = Effort(seeds=2, seconds=30.0, warmup_s=20.0, quick=True)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The results of the optimum on one seed's arrivals, as shares of the weight that arrived after the warm-up."""

    constrained: float
    """The result of the constrained program."""
    free: float
    """The optimum that may drop long requests and whole tiers."""
    replays: dict[str, float]
    """Replays of the requests that the constrained optimum accepts, by server."""


@dataclass(slots=True)
class Runner:
    """Runs the parts of an experiment in `jobs` processes; `tell` is called with progress."""

    effort: Effort
    jobs: int = 1
    tell: Callable[[str], None] = lambda _: None
    one_x_rates: dict[str, float] = field(default_factory=dict)
    """Requests per second at 1x by workload; each is measured once."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all candidates of a comparison."""
        return tuple(range(1, self.effort.seeds + 1))

    def runs(self, *, engines: Sequence[str] = (), workload: str = "") -> bool:
        """Whether a cell of these engines and this workload is run: what was set aside is run only if asked for."""
        return (SET_ASIDE_ENGINE in engines or workload == SET_ASIDE_WORKLOAD) == self.effort.set_aside

    @property
    def options(self) -> Options:
        """The options that set the length of a run."""
        return Options(duration_s=self.effort.warmup_s + self.effort.seconds, warmup_s=self.effort.warmup_s)

    def policy(self) -> Policy:
        """The committed policy: three tiers, four replicas."""
        return load(SETUP / "policy.yaml")

    def workload(self, name: str) -> Synthetic:
        """A committed workload, with the length of a run."""
        made = load_workload(SETUP / f"{name}.yaml", duration_s=self.options.duration_s)
        assert isinstance(made, Synthetic)
        return made

    def one_x(self, name: str) -> float:
        """The rate 1x of a committed workload on the committed fleet, in requests/s."""
        if name not in self.one_x_rates:
            self.one_x_rates[name] = self.one_x_of(self.workload(name), self.policy())
        return self.one_x_rates[name]

    def one_x_of(self, workload: Synthetic, policy: Policy) -> float:
        """The rate 1x of any workload under any policy, in requests/s."""
        self.tell("1x")
        longer = replace(workload, duration_s=100.0 if self.effort.quick else 300.0)
        return capacity(longer, policy, seeds=(1, 2, 3), precision=0.02 if self.effort.quick else 0.005)

    def compare(self, candidates: Sequence[Contender], workload: Workload) -> dict[str, list[Result]]:
        """Run every candidate with every seed. Results are by the name of the candidate."""
        comparison = Comparison(tuple(candidates), workload, self.seeds, self.options)
        found = comparison.run_all(self.jobs, lambda result: self.tell(f"{result.policy}, seed {result.seed}"))
        return {candidate.name: runs for candidate, runs in zip(candidates, found, strict=True)}

    def optima(self, policy: Policy, workload: Synthetic) -> list[Optimum]:
        """Find the optimum of every seed."""
        return self.map(optimum, [(policy, workload, seed, self.options) for seed in self.seeds])

    def replays(self, policy: Policy, workload: Synthetic) -> list[float]:
        """The replay of each seed by the best server, as `best_replay` of the optima: without the free optimum."""
        return _of_best_server(
            self.map(constrained_replays, [(policy, workload, seed, self.options) for seed in self.seeds])
        )

    def replays_without_lengths(self, policy: Policy, workload: Synthetic) -> list[float]:
        """The replay of each seed by the best server, if the program takes every answer to have the mean length."""
        found = self.map(without_lengths, [(policy, workload, seed, self.options) for seed in self.seeds])
        return _of_best_server(found)

    def map(self, function: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
        """Map a function over arguments in `jobs` processes. Progress messages have the function's name."""
        name, done = getattr(function, "__name__", "").strip("_").replace("_", " "), count(1)

        def tell() -> None:
            self.tell(f"{name}, {next(done)} of {len(arguments)}")

        if self.jobs <= 1:
            found = []
            for argument in arguments:
                found.append(function(argument))
                tell()
            return found
        with shared(self.jobs) as pool:
            running = [pool.submit(function, argument) for argument in arguments]
            for one in running:
                one.add_done_callback(lambda _: tell())
            return [one.result() for one in running]


def best_replay(optima: Sequence[Optimum]) -> list[float]:
    """The replay of each seed, by the server that is best over all seeds."""
    return _of_best_server([one.replays for one in optima])


def _of_best_server(replays: Sequence[dict[str, float]]) -> list[float]:
    server = max(replays[0], key=lambda name: fmean(one[name] for one in replays))
    return [one[server] for one in replays]


def ours(policy: Policy, name: str = "ours") -> Contender:
    """The gateway under this policy, on the default engines."""
    return Contender(name, policy, FleetSpec())


def against(text: str, policy: Policy) -> Contender:
    """A baseline made of this policy."""
    return Contender(text, policy, FleetSpec(), text)


def with_slots(policy: Policy, slots: int | None) -> Policy:
    """A policy with this many slots on each replica; None learns them."""
    return replace(policy, pools={name: replace(pool, slots=slots) for name, pool in policy.pools.items()})


def without_admission(policy: Policy) -> Policy:
    """A policy with admission off: slots, tiers and deadlines stay."""
    off = AdmissionSpec(AdmissionMode.OFF, exploration=0.0)
    return replace(policy, tiers={name: replace(tier, admission=off) for name, tier in policy.tiers.items()})


def servers(policy: Policy) -> list[Contender]:
    """Servers for the requests that the optimum accepts. No server is best for all traffic, so the best is taken."""
    tiered = against("static-cap-tiers:slots=64,wait=0.8", policy)
    return [ours(policy), ours(without_admission(policy), "slots and tiers alone"), tiered]


def optimum(of: tuple[Policy, Synthetic, int, Options]) -> Optimum:
    """Results of the optimum, from policy, workload, seed and options."""
    policy, workload, seed, options = of
    arrivals = list(workload.arrivals(seed))
    constrained, free = bound(arrivals, policy), bound(arrivals, policy, constrained=False)
    weights = [policy.tiers[a.tier].weight * (a.at >= options.warmup_s) for a in arrivals]
    offered = sum(weights)
    return Optimum(
        constrained=sum(w * x for w, x in zip(weights, constrained.accepted, strict=True)) / offered,
        free=sum(w * x for w, x in zip(weights, free.accepted, strict=True)) / offered,
        replays=_replays(policy, replay_set(arrivals, constrained), offered, seed, options),
    )


def constrained_replays(of: tuple[Policy, Synthetic, int, Options]) -> dict[str, float]:
    """Replays of what the constrained program accepts, by server."""
    policy, workload, seed, options = of
    arrivals = list(workload.arrivals(seed))
    offered = sum(policy.tiers[a.tier].weight * (a.at >= options.warmup_s) for a in arrivals)
    return _replays(policy, replay_set(arrivals, bound(arrivals, policy)), offered, seed, options)


def without_lengths(of: tuple[Policy, Synthetic, int, Options]) -> dict[str, float]:
    """Replays of what the constrained program accepts if it takes every answer to have the mean length, by server.

    Lengths of answers are the one thing that no gateway can know. Arrivals and prompts are still known in advance.
    """
    policy, workload, seed, options = of
    arrivals = list(workload.arrivals(seed))
    mean_tokens = round(fmean(arrival.output_tokens for arrival in arrivals))
    expected = [replace(arrival, output_tokens=mean_tokens) for arrival in arrivals]
    real = {id(guess): arrival for guess, arrival in zip(expected, arrivals, strict=True)}
    accepted = [real[id(guess)] for guess in replay_set(expected, bound(expected, policy))]
    offered = sum(policy.tiers[a.tier].weight * (a.at >= options.warmup_s) for a in arrivals)
    return _replays(policy, accepted, offered, seed, options)


def _replays(
    policy: Policy, accepted: Sequence[Arrival], offered: float, seed: int, options: Options
) -> dict[str, float]:
    """Weight of the good requests over `offered`, by server, if only `accepted` arrive."""

    def replayed(candidate: Contender) -> float:
        setup = candidate.setup()
        decider = setup.decider(setup.policy, Random(f"{seed} controller"))
        served = simulate(setup.policy, accepted, seed=seed, options=options, decider=decider)
        return sum(tier.weight * tier.good for tier in served.tiers.values()) / offered

    return {candidate.name: replayed(candidate) for candidate in servers(policy)}
