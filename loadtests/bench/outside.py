"""A closed loop with a foreign client: wrk sends the bench's request."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from loadtests.bench import canned
from loadtests.processes import tree_usage

PATIENCE_S = 30.0
"""Seconds beyond its own duration after which wrk counts as hung."""


@dataclass(frozen=True, slots=True)
class Outside:
    """wrk, started by `command`, keeps `connections` busy for a whole number of seconds.

    The CPU of process `watch` and its children is read.
    """

    port: int
    watch: int
    command: Sequence[str]
    connections: int = 32
    warmup_s: int = 1
    seconds: int = 3


@dataclass(frozen=True, slots=True)
class OutsideResult:
    """Outcomes between the end of the warm-up and the end of the run. Any answer but a 2xx or 3xx is an error."""

    requests: int
    seconds: float
    cpu_s: float
    errors: list[str]


def run_outside(spec: Outside) -> OutsideResult:
    """Warm up, then measure. Raises subprocess.TimeoutExpired if wrk hangs."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "bench.lua")
        script.write_text(_script(canned.request(f"127.0.0.1:{spec.port}", stream=False)))
        warm = _wrk(spec, script, spec.warmup_s)
        before = tree_usage(spec.watch).cpu_s
        told = _wrk(spec, script, spec.seconds)
        cpu_s = tree_usage(spec.watch).cpu_s - before
    errors = [f"{count} errors: {kind}" for run in (warm, told) for kind, count in run["errors"].items() if count]
    if not errors and not told["requests"]:
        errors.append("no request was answered")
    return OutsideResult(told["requests"], told["duration"] / 1e6, cpu_s, errors)


class _Told(TypedDict):
    """The sums of a run, as the script below writes them; `duration` in microseconds."""

    requests: int
    duration: int
    errors: dict[str, int]


def _wrk(spec: Outside, script: Path, seconds: int) -> _Told:
    command = [*spec.command, "-t1", f"-c{spec.connections}", f"-d{seconds}s", "-s", str(script)]
    url = f"http://127.0.0.1:{spec.port}{canned.PATH}"
    done = subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=seconds + PATIENCE_S)
    told: _Told = json.loads(done.stdout.splitlines()[-1])
    return told


SUMS = """
request = function() return bytes end
done = function(summary)
  local kinds = {}
  for kind, count in pairs(summary.errors) do kinds[#kinds + 1] = string.format('"%s": %d', kind, count) end
  print(string.format('{"requests": %d, "duration": %d, "errors": {%s}}',
    summary.requests, summary.duration, table.concat(kinds, ", ")))
end
"""


def _script(request: bytes) -> str:
    """A script for wrk that sends these bytes and prints the sums of the run in its last line. Each byte is written as
    a number."""
    return "local bytes = '" + "".join(f"\\{byte:03d}" for byte in request) + "'\n" + SUMS
