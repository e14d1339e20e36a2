"""The probe against an emulated engine over sockets, and its errors without one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from gateway.sim.engine.profiles import profile_of
from loadtests.__main__ import app
from loadtests.calibrate import rounds
from loadtests.calibrate.about import about
from loadtests.calibrate.bursts import Failed, bursts, send
from loadtests.commands.asked import keys_of_engine
from loadtests.commands.calibrate import _calibrated
from loadtests.emulator import Emulator
from loadtests.replay.models import WhichModel
from loadtests.replay.probe import NoContact
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target
from tests.loadtests.calibrate.test_rounds import little_effort
from tests.loadtests.replay.test_models import serving


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """As fast as the loop turns: its times are meaningless, the rest is not."""
    async with Emulator() as emulator:
        yield emulator


def target(engine: Emulator, length: Length = Length.EXACT) -> Target:
    return Target(engine.url, None, {}, length)


async def test_calibration_reads_model_context_and_cache_from_the_engine(engine: Emulator) -> None:
    named, context, kept = await about(target(engine))
    assert named.model == "emulated"
    assert (context, kept) == (engine.profile.max_model_len, engine.profile.kv_capacity_tokens)


async def test_calibration_records_each_probe_request_with_its_counted_tokens(engine: Emulator) -> None:
    named, _, _ = await about(target(engine))
    plan = bursts(engine.profile.max_model_len, 24)
    done: list[None] = []
    seen = await send(plan, named, Sizes(), Random(1), lambda: done.append(None))
    assert len(done) == len(plan)
    assert [len(burst) for burst in seen] == [burst.requests for burst in plan]
    for asked, burst in zip(plan, seen, strict=True):
        assert {one.output_tokens for one in burst} == {asked.output_tokens}
        assert all(one.sent_s <= one.first_s <= one.last_s for one in burst)
        assert all(one.prompt_tokens == pytest.approx(asked.prompt_tokens, abs=24) for one in burst)


@pytest.mark.long
async def test_calibrate_command_fits_a_profile_to_the_probe(
    engine: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rounds, "FITTED_REQUESTS", 20)
    little_effort(monkeypatch)
    found = await _calibrated(target(engine), 24, 1, 1, tmp_path / "here.json", checked=False)
    profile = found.fitted.profile
    assert profile.name == "here"
    assert profile.max_model_len == engine.profile.max_model_len
    assert profile.kv_capacity_tokens == engine.profile.kv_capacity_tokens
    assert (found.checks, found.unchecked) == ([], None)
    assert profile_of(str(tmp_path / "here.json")) == profile
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("calibrating: ")]
    assert len(said) > 1, "no terminal is no reason for minutes without a word"
    assert len(set(said[-1].split()[1::2])) == 1, "and the last line says that it is done"


async def test_failed_request_ends_the_calibration_with_its_reason(engine: Emulator) -> None:
    named, _, _ = await about(target(engine))
    with pytest.raises(Failed, match="a request of the probe was invalid, not finished"):
        await send(bursts(100 * engine.profile.max_model_len, 16), named, Sizes(per_word=0.1), Random(1))


def test_unreachable_engine_is_reported(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    done = CliRunner().invoke(app, ["calibrate", "--target", "http://127.0.0.1:9", "--out", str(out)])
    assert done.exit_code == 1
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    assert not out.exists()


def test_engine_is_not_asked_when_the_profile_cannot_be_written(tmp_path: Path) -> None:
    out = tmp_path / "no" / "p.json"
    done = CliRunner().invoke(app, ["calibrate", "--target", "http://127.0.0.1:9", "--out", str(out)])
    assert done.exit_code == 2
    assert f"--out: cannot write {out}: the folder {out.parent} does not exist" in done.stderr


def test_engine_is_not_asked_when_the_profile_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.json"
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))  # root may write anywhere
    done = CliRunner().invoke(app, ["calibrate", "--target", "http://127.0.0.1:9", "--out", str(out)])
    assert (done.exit_code, done.stderr) == (2, f"--out: cannot write {out}: Permission denied\n")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"<html>", 200, "the answer is not a list of models"),
        (b'{"data": [{"name": "m"}]}', 200, "the answer is not a list of models"),
        (b'{"data": []}', 200, "the list of models is empty"),
        (b"", 503, "it answers 503"),
    ],
)
async def test_model_has_to_be_named_when_the_engine_lists_none(body: bytes, status: int, told: str) -> None:
    async with serving(body, status) as (url, _):
        with pytest.raises(NoContact, match=rf"lists no models \({told}\): name one with --model"):
            await about(Target(url))
        named, *_ = await about(Target(url, model="m"))
    assert named.model == "m"


async def test_unknown_model_is_refused_with_the_models_of_the_engine(engine: Emulator, tmp_path: Path) -> None:
    with pytest.raises(WhichModel, match="has no model gtp: give one of its models with --model: emulated"):
        await _calibrated(replace(target(engine), model="gtp"), 24, 1, 1, tmp_path / "p.json", checked=False)


def test_several_keys_for_one_engine_are_refused(tmp_path: Path) -> None:
    (keys := tmp_path / "keys").write_text("one\ntwo\n")
    done = CliRunner().invoke(app, ["calibrate", "--target", "http://127.0.0.1:9", "--keys", str(keys)])
    assert (done.exit_code, "an engine has a single key" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("key", ["sk-abc=def", "free=one", "sk-abc=="])
def test_calibration_uses_the_key_of_an_engine_unchanged(key: str, tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text(f"# of the engine\n{key}\n")
    for keys in (keys_of_engine(key, None), keys_of_engine(None, file), keys_of_engine("", file)):
        assert Target("http://127.0.0.1:9", keys=keys).key_of("default", "t-1") == key
    assert keys_of_engine("", None) == {}


def test_malformed_engine_address_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["calibrate", "--target", "here", "--out", str(tmp_path / "p.json")])
    assert done.exit_code == 2
    assert "is not the address of a server" in done.stderr
