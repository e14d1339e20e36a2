"""Options, policy and arrivals of the commands that simulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gateway.cli.output import console, exits
from gateway.cli.quantities import seconds
from gateway.core.policy import Policy
from gateway.policy import PolicyError, PolicyErrors, load
from gateway.sim.analysis.compare import OfModel
from gateway.sim.run.results import Result
from gateway.sim.workload.arrivals import Traffic
from gateway.sim.workload.line import is_line
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.synthetic import Synthetic
from gateway.sim.workload.traces import EmptyRows, Trace, mix_for

WorkloadOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC|TRACE",
        show_default=False,
        help="The traffic: a workload by name or file, a trace, or a line: prompt_tokens=1000,output_tokens=200.",
    ),
]
TraceOption = Annotated[
    str | None, typer.Option(metavar="FILE", show_default=False, help="A trace; the same as --workload.")
]
FleetOption = Annotated[
    str,
    typer.Option(
        metavar="PROFILE",
        help="The engine of replicas: a profile (name or .json file) for all, or NAME=PROFILE,... by pool or replica.",
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Runs of each policy, each with its own arrivals.")]
FirstSeedOption = Annotated[int, typer.Option(help="The first seed; the others follow it.")]
DurationOption = Annotated[
    float | None,
    typer.Option(parser=seconds(1.0), metavar="S", show_default=False, help="Seconds in which requests arrive."),
]
MixOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIER=SHARE,...",
        show_default=False,
        help="Tiers for a trace or a line; by default, the first policy's default tier.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default=False, help="The model that every request asks for."),
]
MANY_REQUESTS = 2e6
MAX_REQUESTS = 1e8
"""A simulated run of more requests is refused, because it would take hours."""
JobsOption = Annotated[int, typer.Option(min=1, help="Processes that simulate at the same time.")]


def loaded_policy(file: Path) -> Policy:
    """The policy in a file, for a simulation. If it has errors, they are printed and the command ends."""
    with exits(2):
        policy = load(file)
        bare = [name for name, spec in policy.pools.items() if not spec.replicas]
        if bare:
            said = "its replicas are found while the gateway runs: for a simulation, list as many in `replicas`"
            raise PolicyErrors([PolicyError(str(file), 0, f"pools.{name}", said) for name in bare])
        return policy


def source_of(workload: str | None, trace: str | None) -> str:
    """The argument of --workload or --trace. Raises ValueError unless exactly one is given."""
    if workload is not None and trace is not None:
        raise ValueError("--workload and --trace both name the traffic: keep one")
    if (source := workload or trace) is None:
        raise ValueError("name the traffic with --workload: a workload by name, file or line, or a trace")
    return source


def workload_of(
    source: str, policy: Policy, mix: str | None, model: str | None, rate: float | None, duration: float | None
) -> Traffic:
    """The arrivals of a workload or trace. Rows that are left out are reported on stderr. Raises PolicyErrors or
    ValueError.
    """
    found = load_workload(source, rate_per_s=rate, duration_s=duration, mix=mix_for(mix, policy, model))
    if mix is not None and not isinstance(found, Trace) and not is_line(source):
        raise ValueError(f"--mix is for traces and lines: the requests of {source} have tiers already")
    if isinstance(found, Trace):
        _say_left_out(found)
    else:
        found = found.for_policy(policy)
        _say_size(found.rate_per_s * found.duration_s, found)
    return found if model is None else OfModel(found, model)


def _say_size(requests: float, workload: Synthetic) -> None:
    """Report how many requests a run simulates if it takes long. Raises ValueError if it would take hours."""
    what = f"{requests:.2g} requests ({workload.rate_per_s:g} per second for {workload.duration_s:g} s)"
    if requests > MAX_REQUESTS:
        raise ValueError(f"a run would simulate {what}, and the most is {MAX_REQUESTS:.0e}: lower --rate or --duration")
    if requests > MANY_REQUESTS:
        console(stderr=True).print(f"each run simulates {what}, which takes long", style="yellow")


def _say_left_out(trace: Trace) -> None:
    """Report the rows of a trace that are left out. The trace is read once for this report, not in each run or
    process.
    """
    left_out = EmptyRows()
    for _ in replace(trace, on_empty=left_out.add).arrivals(seed=0):
        pass
    if left_out.rows:
        console(stderr=True).print(f"{trace.path}: {left_out}", style="yellow")


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[Result], None]]:
    """A progress bar on the terminal while simulations run; yields a function to call after each run.

    `total`: number of runs; None if unknown.
    """
    terminal = console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    with Progress(*columns, clock, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def done(result: Result) -> None:
            speed = f"{result.requests_per_cpu_s:,.0f} requests/s"
            bar.update(task, advance=1, description=f"{result.policy}, seed {result.seed}, {speed}")

        yield done
