"""Rounds of a calibration against an emulated engine over sockets."""

from __future__ import annotations

import pytest

from loadtests.calibrate import rounds
from loadtests.calibrate.bursts import Burst, Failed, sent
from loadtests.calibrate.check import SHARES
from loadtests.calibrate.rounds import FITTED_SHARES, TURNS, Engine, calibrated, steps
from loadtests.emulator import Emulator
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target

FEW = 20
PLAN = [Burst(1, 32, 8), Burst(1, 256, 4), Burst(20, 32, 16)]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of mixed traffic: what is found does not matter here, and many take their time."""
    monkeypatch.setattr(rounds, "FITTED_REQUESTS", FEW)
    monkeypatch.setattr(rounds, "REQUESTS", FEW)


def engine_of(emulator: Emulator) -> Engine:
    target = Target(emulator.url, "emulated", {}, Length.EXACT)
    return Engine(target, Sizes(), emulator.profile.max_model_len, emulator.profile.kv_capacity_tokens)


async def test_each_round_probes_and_checks_with_the_same_lengths() -> None:
    told: list[None] = []
    async with Emulator() as emulator:
        found = await calibrated(engine_of(emulator), PLAN, 1, rounds=2, tell=lambda: told.append(None))
    assert len(told) == steps(PLAN, 2)
    assert [one.share for one in found.checks] == list(SHARES)
    for one in found.checks:
        first, second = one.live
        assert len(first) == TURNS * FEW
        assert [seen.output_tokens for seen in first] == [seen.output_tokens for seen in second]
        assert all(seen.first_s > seen.sent_s for seen in (*first, *second))
    assert found.unchecked is None


async def test_a_check_that_fails_leaves_the_profile_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def failing(*given: object) -> object:
        calls.append(given)
        # The first check comes after the first mixed traffic that is fitted.
        if len(calls) == 2:
            raise Failed("a request of the probe was failed, not finished")
        return await sent(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "sent", failing)
    async with Emulator() as emulator:
        found = await calibrated(engine_of(emulator), PLAN, 1, rounds=2)
    assert found.checks == []
    assert found.unchecked == "a request of the probe was failed, not finished"
    assert len(calls) == 2 * TURNS * len(FITTED_SHARES) + 1  # all mixed traffic that is fitted, and no more checks
    assert found.fitted.profile.max_num_seqs > 0
