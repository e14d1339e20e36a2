"""Simulates one run from beginning to end, with a decider, a workload, a fleet and a seed."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain, takewhile
from random import Random
from time import process_time

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.requests import Misfit
from gateway.sim.run.results import Result, Window, result
from gateway.sim.run.simulation import Simulation
from gateway.sim.run.tally import Tally
from gateway.sim.workload.arrivals import Arrival


def simulate(
    policy: Policy,
    arrivals: Iterable[Arrival],
    *,
    seed: int = 0,
    fleet: FleetSpec | None = None,
    options: Options | None = None,
    decider: Decider | None = None,
) -> Result:
    """Simulate `arrivals` under `policy`. `seed`: for the random draws of the gateway, not for the arrivals.

    `decider`: replaces the production controller. Raises ValueError if workload, policy and fleet do not fit together.
    """
    fleet, options = fleet or FleetSpec(), options or Options()
    if options.duration_s <= options.warmup_s:
        raise ValueError(_all_warmup(options, f"--duration is {options.duration_s:g} s"))
    hosts = fleet.hosts(policy)
    tally = Tally(policy.tiers.values(), options.warmup_s)
    began = process_time()
    engine = Simulation(
        decider or Controller(policy, Random(f"{seed} controller")), policy, hosts, options, tally, seed
    )
    for fault in fleet.faults:
        engine.plan(fault)
    stream = iter(arrivals)
    try:
        engine.run(stream)
    except Misfit as misfit:
        rest = takewhile(lambda arrival: arrival.at < options.duration_s, stream)
        missing = _missing(policy, chain((misfit.arrival,), rest))
        raise ValueError(f"the policy lacks what the workload asks for: {missing}") from None
    finally:
        if isinstance(stream, Generator):
            stream.close()  # the generator may not be finished, and may have a file open
    for request in engine.requests.values():
        tally.given_up(request.tier, request.arrival)
    cpu_s = process_time() - began
    opened, closed = engine.watch.opened, engine.watch.closed
    if opened is None or closed is None or not any(tier.offered for tier in tally.tiers.values()):
        raise ValueError(_all_warmup(options, f"requests arrive for {len(tally.seconds)} s"))
    return result(engine, Window(opened, closed), seed, cpu_s)


def _all_warmup(options: Options, arrivals: str) -> str:
    return f"nothing arrives after the warm-up: --warmup is {options.warmup_s:g} s, {arrivals}"


def _missing(policy: Policy, arrivals: Iterable[Arrival]) -> str:
    """An error text. It names the tiers and models of these requests that are not in the policy, and those that the
    policy has.
    """
    tiers: dict[str, None] = {}
    models: dict[str, None] = {}
    for arrival in arrivals:
        if arrival.tier not in policy.tiers:
            tiers[arrival.tier] = None
        if policy.model(arrival.model) is None:
            models[arrival.model] = None
    parts = [("tier", tiers, list(policy.tiers)), ("model", models, list(policy.models))]
    return "; ".join(f"{noun} {', '.join(lost)} (it has {', '.join(known)})" for noun, lost, known in parts if lost)
