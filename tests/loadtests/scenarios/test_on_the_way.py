"""Times of requests outside of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loadtests.live.start import Broken
from loadtests.scenarios import on_the_way
from loadtests.scenarios.file import ContenderSection
from loadtests.scenarios.load import load_scenario

OURS = ContenderSection(kind="tailgate")
OVERLOAD = load_scenario("overload")


def test_delays_keep_their_spread_around_the_mean_under_load() -> None:
    assert on_the_way.stretched([0.003, 0.001], 0.004) == pytest.approx([0.002, 0.006])


def test_early_timers_give_no_negative_delay() -> None:
    assert on_the_way.stretched([0.002, -0.001, 0.001], 0.002) == pytest.approx([0.0, 0.002, 0.004])


@pytest.mark.parametrize(("found_s", "mean_s"), [([0.001], -0.001), ([0.001], 0.0), ([0.0, -0.001], 0.001)])
def test_engine_time_longer_than_the_client_wait_is_an_error(found_s: list[float], mean_s: float) -> None:
    with pytest.raises(Broken, match="longer than its client waits"):
        on_the_way.stretched(found_s, mean_s)


@pytest.mark.long
def test_time_outside_of_engines_is_measured_over_real_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """At half speed, a wrong unit of engine seconds would make an error of .1 s or more."""
    monkeypatch.setattr(on_the_way, "MAX_LATE_S", 1.0)  # a busy machine is late, which is no fault here
    slow = OVERLOAD.model_copy(update={"time_scale": 0.5})
    found_s = asyncio.run(on_the_way.ways_s(slow, OURS, 5, 0.03))
    assert len(found_s) == 5
    assert found_s == sorted(found_s)
    assert 0.0002 < sum(found_s) / 5 < 0.1


@pytest.mark.long
def test_time_outside_engines_is_unknown_if_engines_began_more_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: Iterator[on_the_way.Told] = iter([on_the_way.Told(7.0, 7), on_the_way.Told(8.0, 7 + 10**6)])

    async def more(_: object) -> on_the_way.Told:
        return next(told)

    monkeypatch.setattr(on_the_way, "_told", more)
    fast = OVERLOAD.model_copy(update={"time_scale": 10.0})
    with pytest.raises(Broken, match=r"answers have begun, but 1000000 in the engines: were some hedged\?"):
        asyncio.run(on_the_way.ways_s(fast, OURS, 2, 0.01))
