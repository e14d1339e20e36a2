"""What HTTP takes between a client and an engine that is idle."""

from __future__ import annotations

import asyncio

from loadtests.scenarios.at_rest import on_the_way_s
from loadtests.scenarios.file import ContenderSection
from loadtests.scenarios.load import load_scenario


def test_it_is_what_the_engine_does_not_take() -> None:
    """At a tenth of its speed the engine alone takes 132 ms."""
    scenario = load_scenario("overload").model_copy(update={"time_scale": 0.1})
    way_s = asyncio.run(on_the_way_s(scenario, ContenderSection(kind="tailgate"), 10))
    assert -0.001 < way_s < 0.1  # timers are of milliseconds
