"""The program `python -m loadtests`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadtests.__main__ import COMMANDS

LOADED = """
import runpy, sys
sys.argv = ["loadtests", {name!r}, "--help"]
try:
    runpy.run_module("loadtests", run_name="__main__", alter_sys=True)
finally:
    print(*sorted(name for name in sys.modules if name.startswith("loadtests.commands.")))
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_loadtests_command_has_help_and_loads_only_its_own_modules(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED.format(name=name)], capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert f"python -m loadtests {name} [OPTIONS]" in "\n".join(shown)
    assert "loadtests.commands.calibrate" not in loaded.split() or name == "calibrate"


def test_unknown_command_is_named_and_help_lists_the_known_ones() -> None:
    done = subprocess.run([sys.executable, "-m", "loadtests", "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such command 'nope'" in done.stderr
    for_help = subprocess.run([sys.executable, "-m", "loadtests", "-h"], capture_output=True, text=True, check=True)
    assert all(f" {name} " in for_help.stdout for name in COMMANDS)
