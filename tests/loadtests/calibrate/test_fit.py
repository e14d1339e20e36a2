"""A known engine, probed in virtual time, is found again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.sim.engine.profiles import COSTS, DEFAULT, Profile
from loadtests.calibrate.bursts import Burst, Seen, bursts
from loadtests.calibrate.fit import fit, served


def probed(profile: Profile, noise: float = 0.0) -> list[list[Seen]]:
    draw = Random(1)
    found = []
    for burst in bursts(profile.max_model_len, 96):
        asked = [Seen(a.at, 0.0, 0.0, a.prompt_tokens, a.output_tokens) for a in burst.arrivals()]
        for seen in [served(profile, asked)]:
            found.append(
                [
                    Seen(
                        s.sent_s,
                        s.sent_s + (s.first_s - s.sent_s) * (1 + noise * abs(draw.gauss())),
                        s.last_s + noise * abs(draw.gauss()) * (s.first_s - s.sent_s),
                        s.prompt_tokens,
                        s.output_tokens,
                    )
                    for s in seen
                ]
            )
    return found


@pytest.mark.long
def test_calibration_fit_recovers_every_cost() -> None:
    engine = replace(DEFAULT, path_s=0.002, prefill_s_per_sequence=0.003)
    found = fit(probed(engine), engine.max_model_len)
    for cost in COSTS:
        assert getattr(found.profile, cost) == pytest.approx(getattr(engine, cost), rel=0.03), cost
    assert found.profile.path_s == pytest.approx(0.002, rel=0.2)
    assert found.error < 0.01


@pytest.mark.long
@pytest.mark.long
def test_calibration_fit_finds_no_cost_that_the_engine_lacks() -> None:
    found = fit(probed(DEFAULT), DEFAULT.max_model_len)
    assert found.profile.prefill_s_per_sequence < 0.02 * DEFAULT.step_base_s
    assert found.profile.path_s < 0.02 * DEFAULT.step_base_s


@pytest.mark.long
@pytest.mark.parametrize("times", [0.2, 5.0])
def test_calibration_fit_finds_costs_from_a_distant_start(times: float) -> None:
    """A single search from there ends too early."""
    engine = replace(DEFAULT, path_s=0.002, prefill_s_per_sequence=0.003)
    near = replace(engine, kv_s_per_token=engine.kv_s_per_token * times, step_base_s=engine.step_base_s / times)
    found = fit(probed(engine), engine.max_model_len, near=near)
    for cost in COSTS:
        assert getattr(found.profile, cost) == pytest.approx(getattr(engine, cost), rel=0.03), cost


@pytest.mark.long
@pytest.mark.long
def test_calibration_counts_slots_if_they_are_fewer_than_requests() -> None:
    narrow = replace(DEFAULT, max_num_seqs=24)
    found = fit(probed(narrow), narrow.max_model_len)
    assert (found.profile.max_num_seqs, found.slots_seen) == (24, True)
    assert found.profile.decode_s_per_sequence == pytest.approx(narrow.decode_s_per_sequence, rel=0.05)


def test_calibration_does_not_know_slots_if_a_request_ends_before_all_are_sent() -> None:
    """All requests had begun when the first was over, so there may be more slots."""
    apart = [Seen(0.02 * n, 0.02 * n + 0.001, 0.02 * n + 0.1, 32, 10) for n in range(64)]
    found = fit([apart], 4096)
    assert (found.profile.max_num_seqs, found.slots_seen) == (5, False)


def test_calibration_fit_serves_a_burst_like_the_simulator() -> None:
    (alone,) = served(DEFAULT, [Seen(0.0, 0.0, 0.0, 100, 11)])
    assert alone.first_s == pytest.approx(DEFAULT.step_base_s + 100 * DEFAULT.prefill_s_per_token)
    assert (alone.last_s - alone.first_s) / 10 == pytest.approx(DEFAULT.step_base_s, rel=0.02)


def test_requests_of_a_calibration_burst_are_equal_and_close_together() -> None:
    first, *rest = Burst(3, 50, 5).arrivals()
    assert {(a.prompt_tokens, a.output_tokens) for a in rest} == {(first.prompt_tokens, first.output_tokens)}
    assert [a.at for a in (first, *rest)] == [0.0, 0.002, 0.004]
