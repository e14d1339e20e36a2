"""Throughput and goodput by offered load, and none if only chance made the load vary."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loadtests.charts.chart import Chart
from loadtests.replay.columns import read_rows
from loadtests.replay.request import Request
from loadtests.report.figures import report
from loadtests.report.page import page
from loadtests.report.pictures import pictures
from loadtests.report.run_file import read_run
from loadtests.report.side import over_each_other
from tests.loadtests.report.made import SECONDS, answered, policy, written

CARRIES = 40.0


def steps(*rates: float) -> list[float]:
    """Times of evenly spaced requests, at one rate after the other."""
    each_s = SECONDS / len(rates)
    return [n * each_s + k / rate for n, rate in enumerate(rates) for k in range(int(rate * each_s))]


def served(due: list[float]) -> list[Request]:
    """Answers of a target that serves this many requests a second and lets the others wait."""
    found, free_s = [], 0.0
    for at in due:
        free_s = max(at, free_s) + 1 / CARRIES
        found.append(answered(at, ttft_s=free_s - at, tpot_s=0.0))
    return found


def made(folder: Path, requests: list[Request]) -> dict[str, Any]:
    written(folder, requests)
    return report(read_run(folder), read_rows(folder), policy())


def test_throughput_plateaus_and_goodput_falls(tmp_path: Path) -> None:
    found = made(tmp_path, served(steps(10, 20, 30, 60, 90)))
    over = found["over_load"]
    assert over["offered_per_s"] == pytest.approx([10, 20, 30, 60, 90], rel=0.05)
    assert over["answered_per_s"] == pytest.approx([10, 20, 30, 40, 40], rel=0.05)
    assert over["good_per_s"][:3] == pytest.approx([10, 20, 30], rel=0.05)
    assert over["good_per_s"][3] < 10
    assert over["good_per_s"][4] == 0.0
    assert over["ttft_p99_s"][:3] == pytest.approx([1 / CARRIES] * 3)
    assert 5.0 < over["ttft_p99_s"][3] < over["ttft_p99_s"][4]
    first = pictures(found)[0]
    assert first.name == "over-load"
    assert re.search(r"<figcaption>Throughput and goodput over the offered load", page(found))


def test_tests_under_a_rising_load_are_drawn_over_it_and_others_are_not(tmp_path: Path) -> None:
    slow = made(tmp_path / "slow", served(steps(10, 20, 30, 60, 90)))
    fast = made(tmp_path / "fast", [answered(at, ttft_s=0.1, tpot_s=0.0) for at in steps(10, 20, 30, 60, 90)])
    picture, first, *_ = over_each_other({"slow": slow, "fast": fast})
    assert isinstance(picture, Chart)
    assert [line.name for line in picture.lines] == ["slow", "fast", "all that is offered"]
    assert picture.lines[0].y[-1] == 0.0
    assert picture.lines[1].y == pytest.approx(picture.lines[1].x, rel=0.05)
    assert isinstance(first, Chart)
    assert first.lines[1].y == pytest.approx([0.1] * len(first.lines[1].x))
    assert first.lines[0].y == slow["over_load"]["ttft_p99_s"]
    even = made(tmp_path / "even", served(steps(20)))
    assert "load" not in over_each_other({"slow": slow, "even": even})[0].name


def test_rising_load_is_paired_with_its_own_throughput(tmp_path: Path) -> None:
    """Answers take a quarter of a step."""
    over = made(tmp_path, [answered(at, ttft_s=5.0, tpot_s=0.0) for at in steps(10, 20, 30, 40, 50)])["over_load"]
    assert over["answered_per_s"] == pytest.approx(over["offered_per_s"], rel=0.01)


@pytest.mark.parametrize("rates", [(10, 30, 70, 9, 9.1), (30, 60, 10, 20, 30)])
def test_backlog_of_a_higher_load_does_not_raise_throughput_beyond_the_offered(
    tmp_path: Path, rates: tuple[float, ...]
) -> None:
    over = made(tmp_path, served(steps(*rates)))["over_load"]
    calm = [n for n, rate in enumerate(over["offered_per_s"]) if 15 < rate < 35]
    assert calm
    for n in calm:
        assert over["answered_per_s"][n] <= 1.05 * over["offered_per_s"][n]


def test_goodput_is_never_above_throughput(tmp_path: Path) -> None:
    """The answers of the last level are longer: most of them end after the test."""
    due = steps(10, 20, 30, 40)
    requests = [answered(at, tokens=11 if at < 0.75 * SECONDS else 501) for at in due]
    over = made(tmp_path, requests)["over_load"]
    assert len(over["offered_per_s"]) == 4
    assert all(good <= answered for good, answered in zip(over["good_per_s"], over["answered_per_s"], strict=True))


def test_pause_in_the_load_does_not_shift_its_throughput(tmp_path: Path) -> None:
    requests = [answered(at, ttft_s=5.0, tpot_s=0.0) for at in steps(0.001, 20, 30, 40, 50)]
    over = made(tmp_path, requests)["over_load"]
    assert over["answered_per_s"][1:] == pytest.approx(over["offered_per_s"][1:], rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_steady_poisson_load_has_no_load_levels(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    due = [at for at in accumulate(draw.expovariate(30) for _ in range(4000)) if at < SECONDS]
    found = made(tmp_path, served(due))
    assert found["over_load"] == {"ttft_p99_s": [], "offered_per_s": [], "answered_per_s": [], "good_per_s": []}
    assert "over the offered load" not in page(found)
    assert "over-load" not in [picture.name for picture in pictures(found)]


def test_ramp_has_three_to_nine_load_levels(tmp_path: Path) -> None:
    draw = Random(1)
    ramp = sorted(SECONDS * draw.random() ** 0.5 for _ in range(4000))
    offered = made(tmp_path, served(ramp))["over_load"]["offered_per_s"]
    assert 3 <= len(offered) <= 9
    assert offered == sorted(offered)
