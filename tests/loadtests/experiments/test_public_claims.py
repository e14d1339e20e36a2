"""The experiments `split` and `long-prompts`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtests.experiments import long_prompts as of_prompts
from loadtests.experiments import split as of_split
from loadtests.experiments.long_prompts import PROMPTS, long_prompts
from loadtests.experiments.real_traces import FOLDER, TRACES
from loadtests.experiments.runner import QUICK, Runner
from loadtests.experiments.split import RESERVED, SHARED, SPLITS, Fleet, fewest, split


def test_split_without_traces_measures_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    findings = split(Runner(QUICK))
    assert findings.figures == {}
    assert findings.notes == [f"Nothing was measured: {FOLDER} names no folder with the traces."]


def test_prompts_go_to_the_pool_of_their_length_and_seats_follow_the_longest_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"2023-11-16 18:00:{n:02}.0000000,{100 if n % 2 else 6000},10" for n in range(60)]
    (tmp_path / TRACES["code"]).write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setitem(of_split.RATES_PER_S, "code", 1.0)
    assert fewest(Fleet("code", SHARED, SPLITS[0], None)).keys() == {"short", "long"}
    assert fewest(Fleet("code", SHARED, None, None)).keys() == {"long"}
    seats = {name: profile.max_num_seqs for name, profile in Fleet("code", RESERVED, 1, None).search().profiles.items()}
    assert seats == {"short": 109, "long": 6}


@pytest.mark.long
@pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder with the traces")
def test_quick_form_of_split_counts_each_fleet() -> None:
    findings = split(Runner(QUICK))
    picture = findings.bars
    assert picture is not None
    totals = [sum(values) for values in zip(*picture.parts.values(), strict=True)]
    assert [row[3] for row in findings.grids[0].rows if row[2] == "one pool"] == [
        str(round(total)) for total, label in zip(totals, picture.labels, strict=True) if "one pool" in label
    ]
    assert findings.figures["saved_conversations_2048_reserved"].value > 0.3


@pytest.mark.long
def test_cpu_of_the_gateway_is_measured_with_and_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_prompts, "REPLICAS", 2)
    monkeypatch.setattr(of_prompts, "RATE_PER_S", 5.0)
    findings = long_prompts(Runner(QUICK))
    assert findings.figures["unanswered"].value == 0.0
    assert findings.figures["cores"].value > 0.0
    assert [row[0] for row in findings.grids[0].rows] == ["none sent", *(f"{tokens:,}" for tokens in PROMPTS)]
