"""`python -m loadtests.emulator`: one line per replica, and a clean end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gateway.observe.metrics.lag import EDGES
from gateway.sim.engine.profiles import DEFAULT
from loadtests.emulator.__main__ import main, parser
from loadtests.processes import free_port

from .wire import connected, http


def free_ports() -> int:
    """A port with a free one after it."""
    for _ in range(100):
        port = free_port()
        try:
            free_port(port + 1)
        except (OSError, OverflowError):
            continue
        return port
    raise AssertionError("no two free ports in a row")


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.emulator", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_emulator_serves_on_consecutive_ports_until_sigterm() -> None:
    port = free_ports()
    process = await start("--port", str(port), "--replicas", "2", "--profile", "short", "--model", "m")
    assert process.stdout is not None
    for offset in (0, 1):
        line = (await process.stdout.readline()).decode()
        assert line.startswith(f"http://127.0.0.1:{port + offset}  model m, profile short: context 16384")
        wire = await connected(f"http://127.0.0.1:{port + offset}")
        wire.send(http("/health"))
        assert (await wire.answer()).status == 200
        wire.send(http("/emulator/state"))
        assert len((await wire.answer()).json()["loop_waits"]) == len(EDGES) + 1
        await wire.close()
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def test_emulator_explains_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await start("--port", str(port))
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode() == f"cannot listen: port {port} is taken: --port, 0 takes free ones\n"


@pytest.mark.parametrize("options", [["--port", "99999"], ["--port", "-1"], ["--port", "65535", "--replicas", "2"]])
def test_emulator_refuses_an_impossible_port(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["emulator", *options])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "argument --port: " in capsys.readouterr().err


@pytest.mark.parametrize("scale", ["0", "-1", "fast"])
def test_emulator_refuses_a_bad_time_scale(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--port", "1", "--time-scale", scale])
    assert "--time-scale" in capsys.readouterr().err


def test_emulator_help_shows_profiles_and_faults() -> None:
    text = parser().format_help()
    assert "default, short, long, slow, test" in text
    assert '{"fault": "slow", "factor": 8}' in text


async def test_emulator_accepts_a_calibrated_profile(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(asdict(replace(DEFAULT, name="mine", max_num_seqs=7))))
    process = await start("--port", "0", "--profile", str(file))
    assert process.stdout is not None
    said = await process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert b"profile mine: context 32768, 7 slots" in said


async def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    process = await start("--port", "0", "--profile", "huge")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"huge is not an engine profile; known: default, short" in errors


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--replicas", "0", "0: give a whole number, at least 1"),
        ("--time-scale", "0", "0: give a number above 0, such as 0.5, or max"),
        ("--output-median", "nan", "nan: give a number from 1 to 1e+09"),
        ("--output-sigma", "-1", "-1: give a number from 0 to 10"),
        ("--max-num-queued-reqs", "-1", "-1: give a whole number, at least 0"),
        ("--keep-alive", "soon", "soon: give a number from 0 to 1e+09"),
        ("--keep-requests", "1.5", "1.5: give a whole number, at least 0"),
    ],
)
def test_bad_emulator_option_exits_with_2_and_names_the_rule(
    option: str, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parser().parse_args(["--port", "0", f"{option}={value}"])
    assert left.value.code == 2
    assert f"argument {option}: {told}" in capsys.readouterr().err
