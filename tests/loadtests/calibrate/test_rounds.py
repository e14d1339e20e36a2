"""Rounds of a calibration against an emulated engine over sockets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.sim.engine.profiles import PROFILES
from loadtests.__main__ import app
from loadtests.calibrate import fit, rounds, told
from loadtests.calibrate.bursts import Burst, Failed, Seen, sent
from loadtests.calibrate.check import SHARES, Checked
from loadtests.calibrate.fit import Fitted
from loadtests.calibrate.rounds import FITTED_SHARES, TURNS, Calibrated, Engine, calibrated, steps
from loadtests.commands import calibrate as command
from loadtests.emulator import Emulator
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target

FEW = 20


def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a fit end early, for tests in which its result does not matter."""
    monkeypatch.setattr(fit, "TRIED", 8)
    monkeypatch.setattr(fit, "REFINED", 8)
    monkeypatch.setattr(fit, "ANEW", 1)


PLAN = [Burst(1, 32, 8), Burst(1, 256, 4), Burst(20, 32, 16)]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests of mixed traffic, to save time: the result does not matter here."""
    monkeypatch.setattr(rounds, "FITTED_REQUESTS", FEW)
    monkeypatch.setattr(rounds, "REQUESTS", FEW)
    little_effort(monkeypatch)


def engine_of(emulator: Emulator) -> Engine:
    target = Target(emulator.url, "emulated", {}, Length.EXACT)
    return Engine(target, Sizes(), emulator.profile.max_model_len, emulator.profile.kv_capacity_tokens)


@pytest.mark.long
async def test_each_calibration_round_probes_and_checks_with_the_same_lengths() -> None:
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


@pytest.mark.long
async def test_failed_calibration_check_keeps_the_profile_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def failing(*given: Any) -> object:
        calls.append(given)
        # The first check follows the first fitted mixed traffic.
        if len(calls) == 2:
            raise Failed("a request of the probe was failed, not finished")
        return await sent(*given)

    monkeypatch.setattr(rounds, "sent", failing)
    async with Emulator() as emulator:
        found = await calibrated(engine_of(emulator), PLAN, 1, rounds=2)
    assert found.checks == []
    assert found.unchecked == "a request of the probe was failed, not finished"
    assert len(calls) == 2 * TURNS * len(FITTED_SHARES) + 1  # all mixed traffic of the fit, but no more checks
    assert found.fitted.profile.max_num_seqs > 0


def found(off: float | None, *, unchecked: str | None = None, error: float = 0.5, **said: int | None) -> Calibrated:
    """A calibration whose checks have this error (None: no checks)."""
    engine = Engine(
        Target("http://127.0.0.1:1", "m", {}, Length.EXACT), Sizes(), said.get("context"), said.get("cache")
    )
    live = [Seen(float(n), n + 0.1, n + 0.2, 10, 10) for n in range(40)]
    told = [] if off is None else [replace(one, first_s=one.sent_s + 0.1 * (1 + off)) for one in live]
    checks = [] if off is None else [Checked(0.5, 1.0, [live], [told])]
    return Calibrated(engine, Fitted(PROFILES["test"], error, slots_seen=True), checks, unchecked)


@pytest.mark.parametrize(
    ("calibration", "trusted"),
    [
        (found(0.2), True),
        (found(0.4), False),
        (found(None, unchecked="a request failed", error=0.01), False),
        (found(None, error=0.1), True),
        (found(None, error=0.2), False),
    ],
    ids=["close", "far off", "not checked", "a good fit, no check wanted", "a poor one"],
)
def test_calibration_says_whether_to_trust_plans_made_with_it(
    calibration: Calibrated, trusted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def calibrates(*_: object) -> Calibrated:
        return calibration

    monkeypatch.setattr(command, "_calibrated", calibrates)
    given = ["calibrate", "--target", "http://127.0.0.1:1", "--out", str(tmp_path / "p.json")]
    assert CliRunner().invoke(app, given).exit_code == (0 if trusted else 3)
    printed = CliRunner().invoke(app, [*given, "--json"])
    assert (printed.exit_code, json.loads(printed.stdout)["trusted"]) == (0 if trusted else 3, trusted)


def test_assumed_profile_field_is_marked_as_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert told.as_json(found(0.1, context=4096))["assumed"] == ["kv_capacity_tokens"]
    told.tell(found(0.1, context=4096), Path("p.json"))
    context, cache = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("context length", "KV cache"))
    )
    assert not context.endswith("(assumed: the engine does not say)")
    assert cache.endswith("(assumed: the engine does not say)")
