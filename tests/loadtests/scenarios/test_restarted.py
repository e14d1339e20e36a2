"""A decider that is replaced in an overload, with its state, decides as the one before."""

from __future__ import annotations

import math
from random import Random
from typing import Any, cast

import pytest

from gateway.core.commands import Command
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.results import RunningAttempt
from gateway.core.snapshot import Trust
from gateway.policy.load import load
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.decider import Decider
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from loadtests.scenarios.file import policy_path
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import engine_of
from tests.core.made import memory_of

AT_S = 50.0
SEEDS = range(1, 21)
"""The good requests of ten seconds differ by a tenth from seed to seed, and with any change of a decision."""


class Replaced:
    """A controller that is replaced at `AT_S`, under load: its successor adopts what runs, and asks again for what
    waits.
    """

    def __init__(self, policy: Policy, seed: int) -> None:
        self.controller = Controller(policy, Random(seed))
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> list[Command]:
            commands = self._replace(args[-1]) if self._is_first and args[-1] >= AT_S else []
            return commands + cast("list[Command]", getattr(self.controller, name)(*args))

        return call

    def wake_at(self) -> float:
        return min(self.controller.wake_at(), AT_S if self._is_first else math.inf)

    def _replace(self, now: float) -> list[Command]:
        old, self._is_first = self.controller, False
        new = self.controller = Controller(old.policy, Random(7))
        new.recall(memory_of(old, now), 0.0, now)
        assert new.forecaster.trust("main") is Trust.TRUSTED
        commands = new.number_from(10**6, now)
        for state in old.state.requests.values():
            running = [
                RunningAttempt(
                    each.id, each.replica.spec.name, each.sent_at, each.first_at, committed=state.committed is each
                )
                for each in state.open
            ]
            commands += new.adopt(state.request, running, now) if running else new.arrive(state.request, now)
        return commands


@pytest.mark.long
def test_goodput_after_a_restart_at_1_5x_is_that_of_before() -> None:
    scenario = load_scenario("overload").model_copy(update={"lasts": AT_S + 12.0})
    policy = load(policy_path(scenario.policy), {})
    good = {}
    for restarts in (False, True):
        found = []
        for seed in SEEDS:
            decider = Replaced(policy, seed) if restarts else Controller(policy, Random(seed))
            result = simulate(
                policy,
                scenario.arrivals(seed=seed, times=1.5),
                seed=seed,
                fleet=FleetSpec(dict.fromkeys(policy.pools, engine_of(scenario))),
                options=Options(duration_s=scenario.lasts, prompts_known=False, give_up_s=scenario.grace),
                decider=cast(Decider, decider),
            )
            found.append(sum(result.timeline.good[int(AT_S) : int(AT_S) + 10]))
        good[restarts] = sum(found)
    assert good[True] >= 0.97 * good[False]
