"""Every client passes, through the gateway, the checks of the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import rig
from .programs import ALL, PROGRAMS, Program


@pytest.mark.timeout(rig.PROGRAM_S + 30)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_client_passes_each_of_its_checks(program: Program, gateway: tuple[str, str], tmp_path: Path) -> None:
    if not program.installed:
        pytest.skip("it is not installed here: make test-clients, or make node-clients for the light ones of node")
    seen = rig.run(program.command, tmp_path, *gateway)
    assert set(seen.checks) == set(program.checks), seen.written
    failed = [f"{check}: {error}" for check, error in seen.checks.items() if error]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)
    if os.environ.get(ALL) or program.node:
        assert seen.version == program.pin
