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
    assert ("tailgate load emulate" if name == "emulate" else f"python -m loadtests {name} [OPTIONS]") in "\n".join(
        shown
    )
    assert "loadtests.commands.calibrate" not in loaded.split() or name == "calibrate"


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from gateway.__main__ import main
sys.argv = ["tailgate", "load", *{arguments!r}]
main()
"""


def test_load_without_its_packages_says_in_one_line_how_to_install_them() -> None:
    program = WITHOUT_NUMPY.format(arguments=["report", "nowhere"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = "numpy is not installed, and report needs it: pip install 'tailgate[load]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


def test_help_of_load_without_its_packages_lists_every_command_and_what_it_lacks() -> None:
    program = WITHOUT_NUMPY.format(arguments=["--help"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(f" {name} " in done.stdout for name in COMMANDS)
    assert "Needs numpy: pip install 'tailgate[load]'" in done.stdout


def test_emulated_replicas_need_no_further_packages() -> None:
    program = WITHOUT_NUMPY.format(arguments=["emulate", "--port", "0", "--profile", "nosuch"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tailgate load emulate: error: argument --profile: " in done.stderr


def test_unknown_command_is_named_and_help_lists_the_known_ones() -> None:
    done = subprocess.run([sys.executable, "-m", "loadtests", "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such command 'nope'" in done.stderr
    for_help = subprocess.run([sys.executable, "-m", "loadtests", "-h"], capture_output=True, text=True, check=True)
    assert all(f" {name} " in for_help.stdout for name in COMMANDS)
