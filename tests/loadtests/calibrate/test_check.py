"""The check of a calibration: other traffic, live and simulated."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gateway.sim.engine.profiles import DEFAULT, PROFILES
from loadtests.calibrate.bursts import Seen
from loadtests.calibrate.check import Checked, compared, full, good_s, judged, mixed
from loadtests.calibrate.fit import served


def of_times(*ttft_s: float) -> list[Seen]:
    return [Seen(float(n), n + ttft, n + ttft + 1.0, 100, 11) for n, ttft in enumerate(ttft_s)]


def most_off(*found: Checked) -> float:
    return max(figure.off for figure in judged(found))


def test_calibration_check_has_as_many_requests_at_any_rate_and_they_fit_the_context() -> None:
    for rate in (0.1, 1000.0):
        asked = mixed(PROFILES["test"], rate, 3, 300)
        assert len(asked) == 300
        assert 300 / asked[-1].at == pytest.approx(rate, rel=0.2)
        assert max(a.prompt_tokens + a.output_tokens for a in asked) <= PROFILES["test"].max_model_len


def test_estimated_full_rate_is_where_an_engine_falls_behind() -> None:
    """The wait of the last requests."""
    rate = full(DEFAULT)

    def waits(share: float) -> float:
        asked = mixed(DEFAULT, share * rate, 2, 1200)
        seen = served(DEFAULT, [Seen(a.at, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in asked])
        return sum(one.first_s - one.sent_s for one in seen[-30:]) / 30

    assert waits(1.2) > 10 * waits(0.8)


def test_calibration_check_is_off_only_for_an_engine_unlike_its_profile() -> None:
    asked = [Seen(a.at, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in mixed(DEFAULT, 3.0, 1, 300)]
    told = served(DEFAULT, asked)
    assert most_off(Checked(0.5, 3.0, [told], [told])) == 0.0
    slower = served(replace(DEFAULT, prefill_s_per_token=2 * DEFAULT.prefill_s_per_token), asked)
    assert most_off(Checked(0.5, 3.0, [slower], [told])) > 0.25


def test_calibration_check_is_infinitely_off_without_a_good_answer() -> None:
    first = Checked(0.5, 1.0, [of_times(0.1, 0.1)], [of_times(0.1, 0.1)])
    assert most_off(first, Checked(0.75, 1.5, [of_times(1.0, 1.0)], [of_times(0.1, 0.1)])) == math.inf


def test_calibration_check_counts_first_tokens_within_twice_the_median() -> None:
    live = of_times(0.1, 0.1, 0.1, 0.3)
    found = Checked(0.5, 1.0, [live], [of_times(0.1, 0.1, 0.1, 0.1)])
    assert good_s([found]) == pytest.approx(0.2)
    assert (found.goodput(0.2).live, found.goodput(0.2).told) == (0.75, 1.0)


def test_calibration_check_simulates_each_turn_at_its_sending_times() -> None:
    turns = [of_times(0.1, 0.2), of_times(0.3, 0.4)]
    half, more = compared(DEFAULT, (1.0, 1.5), ([turns, turns[:1]], [turns[1:]]))
    assert (half.share, half.rate, more.share, more.rate) == (0.5, 1.0, 0.7, 1.5)
    assert half.live == [turns[0] + turns[1], turns[0]]
    assert half.told == [served(DEFAULT, turns[0]) + served(DEFAULT, turns[1]), served(DEFAULT, turns[0])]
    assert more.live == turns[1:]


def test_calibration_check_reports_the_median_round_and_the_spread_of_rounds() -> None:
    told = of_times(0.11, 0.11)
    found = Checked(0.5, 1.0, [of_times(0.1, 0.1), of_times(0.3, 0.3), of_times(0.12, 0.12)], [told] * 3)
    figure = found.ttft_s("p50")
    assert [figure.live, figure.least, figure.most] == pytest.approx([0.12, 0.1, 0.3])
    assert figure.off == pytest.approx(1 / 12)
    assert figure.apart == pytest.approx(2.0)
    assert found.p99_overlaps is None  # of six
