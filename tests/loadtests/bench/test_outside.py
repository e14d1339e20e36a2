"""A run of wrk: its output is counted, and it sends the bench's bytes. A small program stands in for wrk."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from loadtests.bench import canned
from loadtests.bench.outside import Outside, OutsideResult, run_outside

NO_ERRORS = {"connect": 0, "read": 0, "write": 0, "status": 0, "timeout": 0}


def run(folder: Path, *, requests: int = 90, errors: dict[str, int] = NO_ERRORS) -> OutsideResult:
    """A stand-in that keeps its script as `folder`/sent.lua."""
    told = json.dumps({"requests": requests, "duration": 3_000_000, "errors": errors})
    program = folder / "wrk.py"
    program.write_text(
        "import shutil, sys\n"
        f"shutil.copy(sys.argv[sys.argv.index('-s') + 1], {str(folder / 'sent.lua')!r})\n"
        f"print('Running 3s test')\nprint({told!r})\n"
    )
    return run_outside(Outside(8080, os.getpid(), [sys.executable, str(program)]))


def test_wrk_results_are_the_totals_that_it_prints(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.requests, result.seconds, result.errors) == (90, 3.0, [])
    assert result.cpu_s >= 0


@pytest.mark.parametrize("kind", list(NO_ERRORS))
def test_wrk_run_is_void_after_any_error(tmp_path: Path, kind: str) -> None:
    result = run(tmp_path, errors=NO_ERRORS | {kind: 2})
    assert f"2 errors: {kind}" in result.errors


def test_wrk_run_without_an_answer_is_void(tmp_path: Path) -> None:
    assert run(tmp_path, requests=0).errors == ["no request was answered"]


def test_wrk_sends_the_same_bytes_as_the_other_loads(tmp_path: Path) -> None:
    run(tmp_path)
    numbers = re.findall(r"\\(\d{3})", (tmp_path / "sent.lua").read_text().partition("\n")[0])
    assert bytes(map(int, numbers)) == canned.request("127.0.0.1:8080", stream=False)
