"""Replicas that are much slower than the others are found soon, though routing sends them little."""

from dataclasses import replace

import pytest

from gateway.core.commands import Command, Dispatch
from gateway.core.policy import Hedge
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import DEFAULT, TIMES
from gateway.sim.run.options import Options
from gateway.sim.workload.arrivals import Poisson

from .made import policy, tier
from .test_run import spied

SLOW = ("r3", "r6")
FOUND_BY_S, LASTS_S = 60.0, 120.0
LATE_S = 0.15
"""Three times the TTFT of a typical replica."""
HALF_SPEED = replace(DEFAULT, **{name: 2.0 * getattr(DEFAULT, name) for name in TIMES})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stragglers_are_ejected_within_a_minute_of_light_traffic(seed: int) -> None:
    """Two of eight replicas take 12 times as long from the beginning. After a minute they get only probes.

    A probe is a request of a client, and a duplicate rescues it.
    """
    rules = policy(tier(hedge=Hedge()), replicas=8)
    fleet = FleetSpec({"p": HALF_SPEED}, tuple(Fault(0.0, name, Harm.SLOW, 12.0) for name in SLOW))
    arrivals = Poisson(10.0, LASTS_S, 256, 32).arrivals(seed)
    spy, _ = spied(rules, arrivals, fleet=fleet, options=Options(duration_s=LASTS_S))
    probes = sum(heard.at >= FOUND_BY_S for heard in spy.heard for c in heard.out if sent_to_slow(c))
    ttft_s = [r.ttft_s for r in spy.records() if r.request.body_at >= FOUND_BY_S and r.ttft_s is not None]
    assert probes <= 5
    assert sum(of_one > LATE_S for of_one in ttft_s) <= 1


def sent_to_slow(command: Command) -> bool:
    return isinstance(command, Dispatch) and command.replica in SLOW
