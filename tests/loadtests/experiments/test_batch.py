"""The experiment `batch`: its traffic and bounds, and its quick run."""

from __future__ import annotations

import pytest

from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.batch import (
    ALONE,
    BATCH,
    BESIDE,
    DUE_S,
    FIRST,
    HIGH,
    INTERACTIVE,
    TURN_S,
    Benchmark,
    batch,
    highest_per_s,
    keeps,
    served,
)
from loadtests.experiments.runner import QUICK, Effort, Runner
from loadtests.experiments.targets import SET_ASIDE_ENGINE

SHORT = Benchmark(ENGINES[FIRST])


def test_bounds_are_the_benchmarks_on_its_engine_and_longer_on_a_slower_one() -> None:
    tight, loose = SHORT.slo, Benchmark(ENGINES[FIRST], "loose").slo
    assert [o.threshold_s for _, o in tight.objectives()] == pytest.approx([0.1, 0.2, 0.04])
    assert [o.threshold_s for _, o in loose.objectives()] == pytest.approx([0.4, 0.8, 0.16])
    slower = Benchmark(ENGINES["llama3-70b-a100-tp4"]).slo
    times = [
        s.threshold_s / t.threshold_s for s, t in zip(slower.ttft + slower.tpot, tight.ttft + tight.tpot, strict=True)
    ]
    assert times == pytest.approx([2.4, 2.4, 2.4], abs=0.1)


def test_interactive_rate_takes_turns_and_the_batch_comes_at_once() -> None:
    arrivals = SHORT.interactive(1, 15.0, 1.0, 4 * TURN_S)
    by_turn = [sum(turn * TURN_S <= a.at < (turn + 1) * TURN_S for a in arrivals) / TURN_S for turn in range(4)]
    assert by_turn == pytest.approx([15.0, 1.0, 15.0, 1.0], rel=0.25)
    jobs = SHORT.jobs()
    assert len(jobs) == 3000
    assert len({job.tenant for job in jobs}) == 3
    assert jobs[-1].at - jobs[0].at < 1.0


def test_batch_has_lower_priority_no_floor_and_twelve_minutes() -> None:
    tiers = SHORT.policy().tiers
    assert (tiers[INTERACTIVE].priority, tiers[BATCH].priority) == (0, 10)
    assert tiers[BATCH].floor == 0.0
    assert tiers[BATCH].slo.e2e_bound_s == tiers[BATCH].timeouts.queue_s == DUE_S


def test_round_robin_keeps_each_percentile_at_the_benchmarks_rate_and_not_at_twice_that() -> None:
    for rate, kept in ((15.0, True), (30.0, False)):
        assert keeps(SHORT.slo, served(SHORT, SHORT.interactive(1, rate, rate, 60.0), 1, "round-robin")) is kept


@pytest.mark.long
def test_high_rate_on_the_benchmarks_engine_is_the_benchmarks() -> None:
    assert HIGH * highest_per_s(SHORT) == pytest.approx(15.0, rel=0.05)


def test_quick_form_of_the_batch_experiment_serves_the_batch_and_compares_the_interactive_tier() -> None:
    findings = batch(Runner(QUICK))
    figures = {name: found.value for name, found in findings.figures.items()}
    assert figures["worst_batch_good"] >= 0.99
    assert figures["latest_batch_end_s"] < DUE_S
    assert 0.5 < figures["mean_beside_to_alone"] <= 1.01
    (table,) = findings.grids
    (row,) = table.rows
    assert float(row[3].split()[0]) > 0.98, ALONE
    (chart,) = findings.charts
    assert [line.name for line in chart.lines if line.bold] == [BESIDE]


class _Enough(Exception):
    """The benchmarks are known, and need not be run."""


def test_engine_that_was_set_aside_is_run_alone_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def no_run(self: Runner, function: object, benchmarks: list[Benchmark]) -> list[object]:
        asked.append([one.profile.name for one in benchmarks])
        raise _Enough

    monkeypatch.setattr(Runner, "map", no_run)
    for set_aside in (False, True):
        with pytest.raises(_Enough):
            batch(Runner(Effort(set_aside=set_aside)))
    usual, aside = asked
    assert len(set(usual)) == 4
    assert SET_ASIDE_ENGINE not in usual
    assert set(aside) == {SET_ASIDE_ENGINE}
