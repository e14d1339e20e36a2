"""What requests take outside of engines."""

from __future__ import annotations

import asyncio
from statistics import fmean

import pytest

from loadtests.live.start import Broken
from loadtests.scenarios import on_the_way
from loadtests.scenarios.file import ContenderSection
from loadtests.scenarios.load import load_scenario

OURS = ContenderSection(kind="tailgate")
FAST = load_scenario("overload").model_copy(update={"time_scale": 10.0})


def ways_s(monkeypatch: pytest.MonkeyPatch, beside: list[float], engines: tuple[float, int]) -> list[float]:
    """Of two requests that took 1 and 3 ms more than an idle engine, some `beside` others, and what engines told."""
    idle_s = on_the_way._alone_s(on_the_way.as_slow(on_the_way.PROFILES[FAST.profile], FAST.time_scale))
    played = iter([[idle_s + 0.003, idle_s + 0.001], beside])
    told = iter([(7.0, 7), engines])

    async def to_first_s(*_: object) -> list[float]:
        return next(played)

    async def sums(_: object) -> tuple[float, int]:
        return next(told)

    monkeypatch.setattr(on_the_way, "_to_first_s", to_first_s)
    monkeypatch.setattr(on_the_way, "_engines", sums)
    return asyncio.run(on_the_way.ways_s(FAST, OURS, 2, 0.01))


def test_they_lie_as_far_apart_as_alone_around_the_mean_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """These took .5 s, of which .496 s in engines whose seconds are ten times as short."""
    found_s = ways_s(monkeypatch, [0.4, 0.6], (7.0 + 2 * 4.96, 9))
    assert found_s == pytest.approx([0.002, 0.006])


def test_timers_that_end_early_make_no_time_that_is_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways_s(monkeypatch, [0.4, 0.6], (7.0 + 2 * 5.01, 9)) == [0.0, 0.0]


def test_where_engines_have_begun_more_answers_than_there_were_it_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Broken, match=r"2 answers have begun, and 3 in the engines: were some hedged\?"):
        ways_s(monkeypatch, [0.4, 0.6], (8.0, 10))


def test_it_is_found_with_real_sockets() -> None:
    found_s = asyncio.run(on_the_way.ways_s(FAST, OURS, 20, 0.02))
    assert len(found_s) == 20
    assert found_s == sorted(found_s)
    assert 0.0 <= fmean(found_s) < 0.1
