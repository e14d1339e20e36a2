"""Figures of one engine, workload and load: kept objectives, cold starts, and the search for a cap."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from gateway.core.estimators.histograms import most_by_chance
from gateway.sim.engine.profiles import ENGINES
from loadtests.experiments.engines_cell import (
    COLD_S,
    MIXES,
    WORKLOADS,
    Cell,
    best_cap,
    figures,
    parts,
    run,
    weighted,
)


@pytest.mark.parametrize(
    ("n", "p", "most"),
    [
        (0, 0.5, 0),
        (9, 0.0, 0),
        (50, 0.01, 2),
        (100, 0.5, 58),
        (1000, 0.01, 15),
        (5000, 0.5, 2558),
        (10**9, 0.5, 500_026_007),
    ],
)
def test_most_misses_by_chance_follow_the_binomial(n: int, p: float, most: int) -> None:
    assert most_by_chance(n, p) == most


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", ENGINES)
def test_every_request_of_the_engines_experiment_fits_its_engine(name: str, workload: str) -> None:
    for tiers in MIXES:
        cell = Cell(ENGINES[name], workload, tiers)
        arrivals = cell.arrivals(1, 5.0, 100.0)
        assert {arrival.tier for arrival in arrivals} == set(cell.policy().tiers)
        for arrival in arrivals:
            assert arrival.output_tokens >= 1
            assert arrival.prompt_tokens + arrival.output_tokens <= cell.max_model_len


def test_searched_static_cap_is_better_than_no_control_and_is_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Cell, "knee_per_s", lambda _: 0.42)
    cell = Cell(ENGINES["small-4"], load=3.0, seconds=100.0)
    _, cap = best_cap(cell, (1,))
    capped, open_ = (parts(run(cell, who, (1,)))[1] for who in (cap, "round-robin"))
    assert min(record.request.head_at for record in capped) >= COLD_S
    assert weighted(cell, capped) > weighted(cell, open_) + 0.2
    assert figures(cell, capped).ttft_p99 < figures(cell, open_).ttft_p99
    monkeypatch.setattr("loadtests.experiments.engines_cell._search", None)
    assert best_cap(cell, (1,))[1] == cap
