"""The traffic of a load test: a trace, a workload by name or file, or one in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from gateway.core.policy import Policy
from gateway.sim.workload.arrival_process import Steps
from gateway.sim.workload.arrivals import Arrival, Workload
from gateway.sim.workload.line import is_line
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.synthetic import Synthetic
from gateway.sim.workload.traces import EmptyRows, Mix, Trace, TraceError, open_trace


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
    spec: str,
    mix: Mix,
    rate: float | None,
    duration_s: float | None,
    *,
    mixed: bool = False,
    policy: Policy | None = None,
) -> Traffic:
    """A workload by name, by file, or in a line such as `prompt_tokens=500,output_tokens=100`.

    `mixed`: the user gave a mix, which is only valid for a line. `policy`: judges the requests. Raises
    PolicyErrors, or ValueError.
    """
    if mixed and not is_line(spec):
        raise ValueError(f"--mix is for traces: {spec} says itself which tiers its requests are of")
    found = load_workload(spec, rate_per_s=rate, duration_s=duration_s, mix=mix)
    if isinstance(found, Trace):
        raise ValueError(f"{spec} is a trace: give it with --trace")
    found = found if policy is None else found.for_policy(policy)
    at = "in multiples of" if isinstance(found.shape, Steps) else "at"
    return Traffic(found, spec, f" {at} {found.rate_per_s:g}/s", found.duration_s)
