"""Runs `tailgate load run` for experiments, as a process on cores of its own, and reads its report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from loadtests import ROOT
from loadtests.processes import on_cores


class Failed(Exception):
    """The tester or its target did not start, or failed. The text has its output."""


@contextmanager
def server(module: str, options: Sequence[str] = (), cores: frozenset[int] | None = None) -> Iterator[str]:
    """Start a server that prints one line when it listens, and ends with its standard input. Yields the line."""
    command = [sys.executable, "-m", module, *options]
    with on_cores(cores):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            raise Failed(f"{module} did not start")
        yield line
    finally:
        process.stdin.close()
        process.wait(15)
        process.stdout.close()


def tested(options: Sequence[str], cores: frozenset[int] | None) -> dict[str, Any]:
    """The report of a load test with these options. Raises Failed."""
    with TemporaryDirectory(prefix="tailgate-test-") as folder:
        command = [sys.executable, "-m", "loadtests", "run", *options, "--out", folder, "--json"]
        with on_cores(cores):
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Failed(f"the tester exited with {done.returncode}: {done.stderr.strip()}")
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found
