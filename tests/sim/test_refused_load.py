"""Prompts that an engine refuses at once are no load: the others are served as if they had never come."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import median

import pytest

from gateway.core.controller import Controller
from gateway.core.policy import AdmissionSpec, Policy
from gateway.core.results import Outcome, Reason, Record
from gateway.core.slo import Objective, Slo
from gateway.policy.builtin import builtin
from gateway.sim.baselines import baselines
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import ENGINES
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival

from .made import Spy

SECONDS, PER_S = 20.0, 60.0
SHORT, LONG = 1000, 6000
"""Prompt tokens; the context is 4,096."""
TPOT, E2E = Slo(tpot=(Objective(0.99, 0.15),)), Slo(e2e=(Objective(0.99, 60.0),))


def rules(slo: Slo) -> Policy:
    made = builtin([f"http://127.0.0.1:{port}" for port in range(9001, 9005)])
    tier = replace(made.tiers["default"], slo=slo, admission=AdmissionSpec())
    return replace(made, tiers={"default": tier})


def arrivals() -> list[Arrival]:
    draw, at, made = Random(1), 0.0, []
    while (at := at + draw.expovariate(PER_S)) < SECONDS:
        made.append(Arrival(at, "default", "t", "any", draw.choice((SHORT, LONG)), 100))
    return made


def served(policy: Policy, decider: Decider, known: bool) -> dict[int, list[Record]]:
    """The records by prompt tokens."""
    spy = Spy(decider)
    options = Options(duration_s=SECONDS, prompts_known=known)
    fleet = FleetSpec({"default": ENGINES["llama2-70b-h100-tp8"]})
    simulate(policy, arrivals(), fleet=fleet, options=options, decider=spy)
    records = spy.records()
    return {tokens: [r for r in records if r.request.prompt_bytes == 4 * tokens] for tokens in (SHORT, LONG)}


def ttft_p50(records: list[Record]) -> float:
    return median(record.ttft_s for record in records if record.ttft_s is not None)


@pytest.mark.parametrize("known", [False, True], ids=["prompts estimated", "prompts counted"])
@pytest.mark.parametrize("slo", [TPOT, E2E], ids=["tpot", "e2e"])
def test_short_prompts_beside_refused_ones_are_served_as_by_round_robin(slo: Slo, known: bool) -> None:
    policy = rules(slo)
    ours = served(policy, Controller(policy, Random(1)), known)
    plain = served(policy, baselines.setup("round-robin", policy).decider(policy, Random(1)), known)
    assert sum(record.good for record in ours[SHORT]) >= 0.99 * len(ours[SHORT])
    assert ttft_p50(ours[SHORT]) <= 1.5 * ttft_p50(plain[SHORT])
    assert {record.outcome for record in ours[LONG]} == {Outcome.INVALID}
    whys = {record.why for record in ours[LONG]}
    assert whys == ({Reason.CONTEXT_LENGTH} if known else {Reason.UPSTREAM_REJECTED})
