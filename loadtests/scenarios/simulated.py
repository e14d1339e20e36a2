"""A scenario in the simulator: the same arrivals, policy, replicas and faults, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from gateway.core.commands import Command, Ended
from gateway.core.controller import Controller
from gateway.core.results import Outcome, Record
from gateway.policy.load import load
from gateway.sim.baselines.baselines import setup
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import PROFILES, TIMES, Profile
from gateway.sim.run.decider import Decider, Overheard
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.run.run import simulate
from loadtests.emulator.faults import FaultKind
from loadtests.scenarios.file import OURS, RECOVER, ContenderSection, EventSection, ScenarioFile, policy_path
from loadtests.scenarios.run import SEED

HARMS = {
    FaultKind.SLOW: Harm.SLOW,
    FaultKind.PAUSE: Harm.HUNG,
    FaultKind.REFUSE: Harm.DOWN,
    FaultKind.DEAD: Harm.DEAD,
    FaultKind.STATUS_503: Harm.BUSY,
    FaultKind.BALLOON: Harm.BALLOON,
}
BASELINES = {"nginx": "least-requests", "vllm-router": "round-robin"}
"""The baseline of the simulator that stands for each contender."""


class NotSimulated(Exception):
    """The simulator lacks this event, fault or contender. The text names it."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a test. TTFT (s) of all finished requests after the warm-up, by tier, sorted."""

    result: Result
    ttft_s: dict[str, list[float]]

    @property
    def goodput(self) -> float:
        """Goodput for clients: a client without patience is a miss. The gateway does not count it, since it left."""
        lost = sum(tier.outcomes.get(Outcome.ABANDONED, 0) for tier in self.result.tiers.values())
        counted = self.result.counted + lost
        return self.result.good / counted if counted else 0.0


def simulated(
    scenario: ScenarioFile,
    contender: ContenderSection,
    times: float,
    part: float,
    seed: int,
    ways_s: Sequence[float] = (),
) -> Simulated:
    """One test of a scenario, in virtual time of the same length. `seed` is for the draws of the gateway, of ways, and
    of retries.

    `ways_s` are the measured times of HTTP (on_the_way.py). The simulator adds them between the gateway and an engine.
    So a free slot is filled later by such a time, and its new request misses the step that begins meanwhile. A time is
    drawn for each request. The draws decide the order of two events at about the same time. But no request overtakes
    another on the way to the same engine.

    Raises NotSimulated for events and contenders that the simulator lacks.
    """
    if contender.kind == "litellm":
        raise NotSimulated("litellm is not a baseline of the simulator")
    policy = load(policy_path(contender.policy or scenario.policy), {})
    names = [replica.name for pool in policy.pools.values() for replica in pool.replicas]
    faults = tuple(fault for event in scenario.events for fault in _faults(event, names, part))
    fleet = FleetSpec(
        dict.fromkeys(policy.pools, engine_of(scenario)), tuple(sorted(faults, key=lambda fault: fault.at))
    )
    options = Options(
        duration_s=scenario.lasts * part,
        warmup_s=scenario.warmup * part,
        patience_s=scenario.patience,
        retries=scenario.retries,
        prompts_known=False,
        give_up_s=scenario.grace,
        ways_s=tuple(ways_s),
    )
    decider: Decider
    if contender.kind == OURS:
        acted, decider = policy, Controller(policy, Random(seed))
    else:
        baseline = setup(BASELINES.get(contender.kind, contender.kind), policy)
        acted, decider = baseline.policy, baseline.decider(baseline.policy, Random(seed))
    finished: list[tuple[float, Record]] = []

    def hear(commands: list[Command], now: float) -> None:
        for command in commands:
            if isinstance(command, Ended) and command.record.outcome is Outcome.OK:
                finished.append((now, command.record))

    result = simulate(
        acted,
        scenario.arrivals(SEED, times, part),
        seed=seed,
        fleet=fleet,
        options=options,
        decider=Overheard(decider, hear),
    )
    # Read now: the clocks of a retried request are set back to its first try after this call.
    ttft_s: dict[str, list[float]] = {name: [] for name in policy.tiers}
    for at, record in finished:
        if record.ttft_s is not None and at - record.e2e_s >= options.warmup_s:
            ttft_s[record.request.tier.name].append(record.ttft_s)
    return Simulated(result, {name: sorted(values) for name, values in ttft_s.items()})


def engine_of(scenario: ScenarioFile) -> Profile:
    """The profile of its engine in real seconds: one real second is `time_scale` seconds of the engine."""
    profile = PROFILES[scenario.profile]
    return replace(profile, **{name: getattr(profile, name) / scenario.time_scale for name in TIMES})


def _faults(event: EventSection, names: list[str], part: float) -> Iterator[Fault]:
    if event.fault is None:
        raise NotSimulated(f"{event.told} is the gateway's own business")
    assert event.replica is not None
    name, at = names[event.replica - 1], event.at * part
    if event.fault == RECOVER:
        yield Fault(at, name, Harm.RECOVER)
        return
    harm = HARMS.get(FaultKind(event.fault))
    if harm is None:
        raise NotSimulated(f"the simulator does not have the fault {event.fault}")
    yield Fault(at, name, harm, event.factor or 1.0)
    if event.lasts is not None:
        yield Fault(at + event.lasts * part, name, Harm.RECOVER)
