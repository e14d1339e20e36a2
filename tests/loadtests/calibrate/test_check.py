"""The second half of a calibration: other traffic, live and simulated."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gateway.sim.profiles import DEFAULT, PROFILES
from loadtests.calibrate.bursts import Seen
from loadtests.calibrate.check import REQUESTS, Checked, check, full, good_s, mixed, worst
from loadtests.calibrate.fit import served
from loadtests.emulator import Emulator
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target


def of_times(*ttft_s: float) -> list[Seen]:
    return [Seen(float(n), n + ttft, n + ttft + 1.0, 100, 11) for n, ttft in enumerate(ttft_s)]


def test_requests_fit_into_the_context_and_are_as_many_at_any_rate() -> None:
    for rate in (0.1, 1000.0):
        asked = mixed(PROFILES["test"], rate, 3)
        assert len(asked) == REQUESTS
        assert REQUESTS / asked[-1].at == pytest.approx(rate, rel=0.2)
        assert max(a.prompt_tokens + a.output_tokens for a in asked) <= PROFILES["test"].max_model_len


def test_an_engine_is_behind_above_its_full_rate_and_not_below_it() -> None:
    """By what the last requests wait."""
    rate = full(DEFAULT)

    def waits(share: float) -> float:
        asked = mixed(DEFAULT, share * rate, 2, 4 * REQUESTS)
        seen = served(DEFAULT, [Seen(a.at, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in asked])
        return sum(one.first_s - one.sent_s for one in seen[-30:]) / 30

    assert waits(1.2) > 10 * waits(0.8)


def test_an_engine_that_is_what_the_profile_says_is_not_off_and_one_that_is_slower_is() -> None:
    asked = [Seen(a.at, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in mixed(DEFAULT, 3.0, 1)]
    told = served(DEFAULT, asked)
    assert worst([Checked(0.5, 3.0, told, told)]) == 0.0
    slower = served(replace(DEFAULT, prefill_s_per_token=2 * DEFAULT.prefill_s_per_token), asked)
    assert worst([Checked(0.5, 3.0, slower, told)]) > 0.25


def test_an_engine_with_no_good_answer_is_as_far_off_as_can_be() -> None:
    first = Checked(0.5, 1.0, of_times(0.1, 0.1), of_times(0.1, 0.1))
    assert worst([first, Checked(0.75, 1.5, of_times(1.0, 1.0), of_times(0.1, 0.1))]) == math.inf


def test_goodput_is_the_share_within_twice_the_median_of_the_first() -> None:
    live = of_times(0.1, 0.1, 0.1, 0.3)
    found = [Checked(0.5, 1.0, live, of_times(0.1, 0.1, 0.1, 0.1))]
    assert good_s(found) == pytest.approx(0.2)
    assert found[0].goodput(good_s(found)) == (0.75, 1.0)


async def test_every_request_is_sent_and_simulated_at_the_time_at_which_it_was_sent() -> None:
    async with Emulator() as engine:
        quick = replace(engine.profile, **dict.fromkeys(("step_base_s", "prefill_s_per_token"), 1e-6))
        found = await check(quick, Target(engine.url, "emulated", "", {}, Length.EXACT), Sizes(), 1)
    assert [len(one.live) for one in found] == [REQUESTS, REQUESTS]
    for one in found:
        assert one.told == served(quick, one.live)
        assert all(seen.first_s > seen.sent_s for seen in (*one.live, *one.told))
