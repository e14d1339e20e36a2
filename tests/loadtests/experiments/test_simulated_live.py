"""Which live runs are held against the simulator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sim.results import Result
from loadtests.experiments import simulated_live
from loadtests.experiments.lab import Effort, Lab
from loadtests.live.start import Broken
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.simulated import Simulated


def compared(monkeypatch: pytest.MonkeyPatch, *live: tuple[bool, float, float]) -> simulated_live.Test:
    """A test of two live runs: of each whether it is to be trusted, its goodput, and its TTFT."""
    runs: list[tuple[dict[str, Any], dict[str, list[float]]]] = [
        ({"trusted": trusted, "totals": {"goodput": goodput}}, {"a": [ttft_s]}) for trusted, goodput, ttft_s in live
    ]
    told = Simulated(cast("Result", SimpleNamespace(good=3, counted=4, tiers={})), {"a": [1.0]})
    monkeypatch.setattr(simulated_live, "_live", lambda *_: runs.pop(0))
    monkeypatch.setattr(simulated_live, "_simulated", lambda _: told)
    monkeypatch.setattr(simulated_live, "runs_needed", lambda _: len(live))
    lab = cast("Lab", SimpleNamespace(effort=Effort(), map=lambda of, items: [of(item) for item in items]))
    return simulated_live._test(lab, "it", load_scenario("overload"), (1, 2), 0.0)


def test_runs_in_which_the_generator_was_late_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, (True, 0.5, 2.0), (False, 0.0, 99.0), (True, 0.7, 4.0))
    assert (found.played, found.in_time) == (3, 2)
    assert found.whole.values("p50") == (3.0, 1.0)
    assert found.goodput == (pytest.approx(0.6), 0.75)
    assert "it: 1 of 3 runs are left out, the generator was late in them" in found.notes


def test_where_it_was_late_in_all_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Broken, match="it: the generator was late in every run"):
        compared(monkeypatch, (False, 0.5, 2.0))
