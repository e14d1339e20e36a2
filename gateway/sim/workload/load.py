"""Loads a workload that the command line names: a shipped workload, a workload file, a line, or a trace."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from gateway.policy.document import read_text
from gateway.policy.errors import PolicyError, PolicyErrors, among
from gateway.policy.load import text_of
from gateway.policy.shape import checked
from gateway.sim.workload.line import is_line, written
from gateway.sim.workload.synthetic import Synthetic
from gateway.sim.workload.traces import Mix, Trace, open_trace
from gateway.sim.workload.workload_file import WorkloadFile

SPECS = (".yaml", ".yml")


def shipped() -> dict[str, str]:
    """The text of each workload that comes with tailgate, by name."""
    folder = files("gateway.sim") / "workloads"
    found = {Path(file.name).stem: file.read_text() for file in folder.iterdir() if file.name.endswith(SPECS)}
    return dict(sorted(found.items()))


def load_workload(
    source: str | Path,
    *,
    rate_per_s: float | None = None,
    duration_s: float | None = None,
    mix: Mix | None = None,
) -> Synthetic | Trace:
    """The workload named by `source`, with another mean rate or duration if given.

    `mix`: assigns the requests of a trace or a line to tiers, because these name none. Raises PolicyErrors for a
    workload file, ValueError for a line, and TraceError (a ValueError) for a trace. They say what is wrong and where.
    """
    name, known = str(source), shipped()
    if name in known:
        return _changed(load_text(known[name], f"{name}.yaml"), rate_per_s, duration_s)
    path = Path(source)
    if path.suffix in SPECS:
        return _changed(load_text(text_of(path), name), rate_per_s, duration_s)
    if is_line(name):
        return _changed(_of_line(name, mix or Mix()), rate_per_s, duration_s)
    if not path.exists():
        message = f"is neither a file nor a shipped workload: {among(name, known)}"
        raise PolicyErrors([PolicyError(name, 0, "", message)])
    trace = _cut(open_trace(path, mix or Mix()), duration_s)
    return trace if rate_per_s is None else trace.at_rate(rate_per_s)


def load_text(text: str, file: str) -> Synthetic:
    """The traffic of a workload file's text. Raises PolicyErrors with all errors."""
    return checked(read_text(text, file, os.environ), WorkloadFile).workload()


def _of_line(line: str, mix: Mix) -> Synthetic:
    """Raises PolicyErrors with the names in the line, not those of the workload file that stands for it."""
    try:
        return load_text(written(line, mix), "--workload")
    except PolicyErrors as found:
        errors = (replace(error, line=0, path=error.path.rpartition(".")[2]) for error in found.errors)
        raise PolicyErrors(list(dict.fromkeys(errors))) from None


def _changed(workload: Synthetic, rate_per_s: float | None, duration_s: float | None) -> Synthetic:
    return replace(
        workload,
        rate_per_s=workload.rate_per_s if rate_per_s is None else rate_per_s,
        duration_s=workload.duration_s if duration_s is None else duration_s,
    )


def _cut(trace: Trace, duration_s: float | None) -> Trace:
    return trace if duration_s is None else replace(trace, duration_s=duration_s)
