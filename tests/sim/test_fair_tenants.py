"""A tenant within its share is served, whatever overload a greedy tenant makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import AdmissionSpec
from gateway.core.results import Outcome
from gateway.core.slo import Objective, Slo
from gateway.policy.builtin import builtin
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.lengths import LENGTHS

from .made import Spy

ENGINE = ENGINES["llama3-8b-a100"]
KNEE_PER_S = 8.1
"""Highest rate at which one of these engines, with round robin, serves 97% of Azure's conversations in time."""
SECONDS = 40.0
COLD_S = 5.0
"""The first seconds, in which costs are unknown and the queue decides, do not count."""


def offered(load: float, tenants: int, replicas: int, part: float) -> list[Arrival]:
    """Each modest tenant asks for `part` of an equal share of the knee; the greedy one makes the rest of the load."""
    knee_per_s, draw, made = KNEE_PER_S * replicas, Random(1), []
    rates = {f"modest-{i}": part * knee_per_s / tenants for i in range(tenants - 1)}
    rates["greedy"] = load * knee_per_s - sum(rates.values())
    for tenant, per_s in rates.items():
        at = 0.0
        while (at := at + draw.expovariate(per_s)) < SECONDS:
            prompt = LENGTHS["azure-conversation-prompt"].draw(draw)
            made.append(Arrival(at, "default", tenant, "any", prompt, LENGTHS["azure-conversation-answer"].draw(draw)))
    return sorted(made, key=lambda arrival: arrival.at)


def share_served(load: float, tenants: int, replicas: int, part: float = 0.5) -> tuple[float, float]:
    """Share of the requests that were served, of the modest tenants and of the greedy one."""
    made = builtin([f"http://127.0.0.1:{9001 + i}" for i in range(replicas)])
    slo = Slo(ttft=(Objective(0.99, 2.0),))
    policy = replace(made, tiers={"default": replace(made.tiers["default"], slo=slo, admission=AdmissionSpec())})
    spy = Spy(Controller(policy, Random(1)))
    options = Options(duration_s=SECONDS, prompts_known=False)
    simulate(
        policy,
        offered(load, tenants, replicas, part),
        fleet=FleetSpec({"default": ENGINE}),
        options=options,
        decider=spy,
    )
    asked, got = Counter[bool](), Counter[bool]()
    for record in spy.records():
        if record.request.body_at < COLD_S:
            continue
        greedy = record.request.tenant == "greedy"
        asked[greedy] += 1
        got[greedy] += record.outcome is Outcome.OK
    return got[False] / asked[False], got[True] / asked[True]


@pytest.mark.parametrize(("load", "tenants"), [(1.5, 2), (3.0, 2), (3.0, 5)])
def test_modest_tenant_beside_a_greedy_one_is_served(load: float, tenants: int) -> None:
    modest, greedy = share_served(load, tenants, replicas=1)
    assert modest >= 0.95
    assert greedy < 0.9, "there is an overload"


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("load", [1.5, 3.0])
@pytest.mark.parametrize(("tenants", "part"), [(2, 0.9), (3, 0.5), (4, 0.5), (5, 0.9)])
def test_modest_tenants_of_any_number_are_served(replicas: int, load: float, tenants: int, part: float) -> None:
    modest, _ = share_served(load, tenants, replicas, part)
    assert modest >= 0.95
