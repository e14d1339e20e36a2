"""The experiment `real-traces`: stretches keep the recorded gaps, and its quick run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.experiments.real_traces import FOLDER, STRETCHES, TRACES, WHO, Case, real_traces
from loadtests.experiments.runner import QUICK, Runner

CASE = Case("code", ("llama3-8b-a100",), "all", requests=4, seconds=0.0)


def recorded(folder: Path, seconds: range, longest: int = 1000) -> None:
    rows = [f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0000000,{longest if at % 20 else 100},10" for at in seconds]
    (folder / TRACES["code"]).write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")


def test_stretches_are_played_at_one_speed_that_gives_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path, range(0, 200, 10))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    slow, fast = CASE.stretches(0.2), CASE.stretches(2.0)
    assert len(slow) == STRETCHES
    for stretch, faster in zip(slow, fast, strict=True):
        assert stretch[0].at == 0.0
        assert [a.at for a in faster] == pytest.approx([a.at / 10.0 for a in stretch])
    assert slow[0][1].at == pytest.approx(1 / 0.2, rel=0.06), "20 requests have 19 gaps"
    assert slow[0] != slow[1], "other lengths"


def test_stretch_is_longer_at_a_high_rate_so_that_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path, range(0, 600, 10))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    for rate, requests in ((0.1, 4), (1.0, 20), (1000.0, 60)):
        assert {len(stretch) for stretch in replace(CASE, seconds=20.0).stretches(rate)} == {requests}


def test_requests_that_do_not_fit_the_context_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path, range(0, 200, 5), longest=9000)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert {a.prompt_tokens for stretch in CASE.stretches(1.0) for a in stretch} == {100}


def test_experiment_without_traces_measures_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    findings = real_traces(Runner(QUICK))
    assert findings.figures == {}
    assert findings.notes == [f"Nothing was measured: {FOLDER} names no folder with the traces."]


@pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder with the traces")
def test_quick_form_of_the_real_traces_experiment_compares_three_servers() -> None:
    findings = real_traces(Runner(QUICK))
    figures = {name: found.value for name, found in findings.figures.items()}
    assert figures["mean_less_round_robin"] >= -0.03
    assert figures["mean_to_better_1.5x"] >= 0.95
    (chart,) = findings.charts
    assert [line.name for line in chart.lines] == list(WHO)
    (table,) = findings.grids
    assert [row[3] for row in table.rows] == ["1x", "1.5x"]
