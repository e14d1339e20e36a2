"""The traffic of a load test: a trace, a workload by name or file, or one in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from gateway.policy.errors import PolicyErrors, among
from gateway.sim.workload.arrival_process import Steps
from gateway.sim.workload.arrivals import Arrival, Workload
from gateway.sim.workload.load import load_text, load_workload
from gateway.sim.workload.synthetic import Synthetic
from gateway.sim.workload.traces import EmptyRows, Mix, Trace, TraceError, open_trace

FIELDS = ("prompt_tokens", "output_tokens", "cv", "streamed")
"""Keys of a workload in a line."""
DEFAULT_RATE = 10.0
DEFAULT_DURATION_S = 60.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrivals, and their name in reports."""

    workload: Workload
    name: str
    pace: str
    """The rate, as a part of the name. A closed loop has no fixed rate."""
    planned_s: float | None
    """Planned seconds; None: until the end of a trace."""
    left_out: EmptyRows = field(default_factory=EmptyRows)

    @property
    def tiers(self) -> set[str] | None:
        """Tiers of the requests; None: the rows of a trace name them."""
        if isinstance(self.workload, Synthetic):
            return {share.tier for share in self.workload.shares}
        if isinstance(self.workload, Trace) and not self.workload.format.names_tiers:
            return {tier for tier, _ in self.workload.mix.tiers}
        return None

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """The arrivals of one run."""
        return self.workload.arrivals(seed)

    def endless(self, seed: int) -> Iterator[Arrival]:
        """Arrivals for a closed loop, which ends by time: those of this seed, of the next seed, and so on.

        An empty trace gives none.
        """
        again, arrivals = self.workload, self.workload.arrivals(seed)
        first = next(arrivals, None)
        if first is not None:
            yield first
            yield from arrivals
        if isinstance(again, Trace):
            if first is None:
                return
            again = replace(again, on_empty=lambda line: None)  # counted once
        for run in count(seed + 1):
            yield from again.arrivals(run)


def trace_traffic(path: Path, mix: Mix, rate: float | None, speed: float | None, duration_s: float | None) -> Traffic:
    """A recorded trace, faster or slower, or at a mean rate. Raises TraceError."""
    if not path.exists():
        raise TraceError(f"{path}: the file does not exist")
    trace = open_trace(path, mix, speed or 1.0)
    trace, pace = trace if duration_s is None else replace(trace, duration_s=duration_s), ""
    if rate is not None:
        trace, pace = trace.at_rate(rate), f" at {rate:g}/s"
    elif speed is not None:
        pace = f" at {speed:g} times the recorded speed"
    left_out = EmptyRows()
    return Traffic(replace(trace, on_empty=left_out.add), path.name, pace, duration_s, left_out)


def workload_traffic(
    spec: str, mix: Mix, rate: float | None, duration_s: float | None, *, mixed: bool = False
) -> Traffic:
    """A workload by name, by file, or in a line such as `prompt_tokens=500,output_tokens=100`.

    `mixed`: the user gave a mix, which is only valid for a line. Raises PolicyErrors, or ValueError.
    """
    if "=" in spec:
        workload = _of_line(spec, mix)
        workload = replace(
            workload, rate_per_s=rate or workload.rate_per_s, duration_s=duration_s or workload.duration_s
        )
    else:
        if mixed:
            raise ValueError(f"--mix is for traces: {spec} says itself which tiers its requests are of")
        found = load_workload(spec, rate_per_s=rate, duration_s=duration_s)
        if isinstance(found, Trace):
            raise ValueError(f"{spec} is a trace: give it with --trace")
        workload = found
    at = "in multiples of" if isinstance(workload.shape, Steps) else "at"
    return Traffic(workload, spec, f" {at} {workload.rate_per_s:g}/s", workload.duration_s)


def _of_line(spec: str, mix: Mix) -> Synthetic:
    """Raises PolicyErrors with the names in the line, not those of the workload file that stands for it."""
    try:
        return load_text(_written(spec, mix), "--workload")
    except PolicyErrors as found:
        errors = (replace(error, line=0, path=error.path.rpartition(".")[2]) for error in found.errors)
        raise PolicyErrors(list(dict.fromkeys(errors))) from None


def _written(spec: str, mix: Mix) -> str:
    """The text of an equivalent workload file."""
    said = {"prompt_tokens": "500", "output_tokens": "100"}
    for part in spec.split(","):
        name, _, value = part.strip().partition("=")
        if not (name and value):
            raise ValueError(f"--workload {spec}: {part.strip()!r}: each part is NAME=VALUE, of {', '.join(FIELDS)}")
        if name not in FIELDS:
            raise ValueError(f"--workload {spec}: {name} is unknown: {among(name, FIELDS)}")
        said[name] = value
    total = sum(part for _, part in mix.tiers)
    streamed = f", streamed: {said['streamed']}" if "streamed" in said else ""
    lines = [
        f"  {tier}: {{share: {100 * part / total:.6g}%, tenants: {mix.tenants}{streamed}}}" for tier, part in mix.tiers
    ]
    return (
        "apiVersion: tailgate/v1\nkind: Workload\n"
        f"rate: {DEFAULT_RATE:g}/s\nduration: {DEFAULT_DURATION_S:g}s\nmodel: {mix.model}\n"
        f"arrivals: {{cv: {said.get('cv', '1')}}}\n"
        f"prompt_tokens: {said['prompt_tokens']}\noutput_tokens: {said['output_tokens']}\n"
        + "\n".join(["tiers:", *lines, ""])
    )
