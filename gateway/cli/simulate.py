"""`tailgate simulate`: what would these policies make of this traffic?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.output import console, print_errors, print_json
from gateway.cli.tables import print_tables
from gateway.core.rules import Policy
from gateway.policy import PolicyErrors, load
from gateway.sim.baselines import BASELINES
from gateway.sim.compare import Candidate, Comparison, OfModel
from gateway.sim.engine import Options
from gateway.sim.fleet import FleetSpec, fault_of, fleet_of
from gateway.sim.load import load_workload
from gateway.sim.report import differences, summary
from gateway.sim.results import Result
from gateway.sim.traces import Mix, Trace, mix_of
from gateway.sim.workload import Workload


def simulate_command(
    policies: Annotated[
        list[Path],
        typer.Option("--policy", metavar="FILE", show_default=False, help="A policy file; give several to compare."),
    ],
    workload: Annotated[
        str,
        typer.Option(
            metavar="SPEC|TRACE", show_default=False, help="What arrives: a workload by name or file, or a trace."
        ),
    ],
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            show_default=False,
            help=f"Compare with this one, made of the first policy: {', '.join(BASELINES)}.",
        ),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            metavar="PROFILE",
            help="What engine the replicas are: one profile for all, or NAME=PROFILE,... by pool or replica.",
        ),
    ] = "default",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REPLICA@SECONDS=HARM",
            show_default=False,
            help="What befalls a replica: slow:FACTOR, down, dead, hung, busy or recover.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy, each with its own arrivals.")] = 5,
    first_seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 1,
    duration: Annotated[
        float | None, typer.Option(min=1.0, show_default=False, help="Seconds in which requests arrive.")
    ] = None,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds at the start that are not counted.")] = 10.0,
    mix: Annotated[
        str | None,
        typer.Option(
            metavar="TIER=SHARE,...",
            show_default=False,
            help="Tiers of a trace whose rows name none; else all are of the first policy's default tier.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="The model that every request asks for."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-6, show_default=False, help="Requests per second, in the mean.")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(min=1e-3, show_default=False, help="Seconds after which clients leave that have seen nothing."),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="How often clients try again that were refused, failed or lost patience.")
    ] = 0,
    estimate_prompts: Annotated[
        bool, typer.Option("--estimate-prompts", help="Do not tell the gateway how long prompts are in tokens.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate at the same time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Try policies on traffic, in virtual time.

    The decisions are those of the gateway itself; the replicas are models of engines. Every policy gets the same
    arrivals, and intervals are 95%, over seeds:

    `tailgate simulate --policy a.yaml --policy b.yaml --workload chat --baseline static-cap`
    """
    loaded = [_loaded(file) for file in policies]
    try:
        comparison = Comparison(
            candidates=_candidates(policies, loaded, baseline or [], fleet, fault or []),
            workload=_workload(workload, loaded[0], mix, model, rate, duration),
            seeds=tuple(range(first_seed, first_seed + seeds)),
            options=Options(
                duration_s=math.inf if duration is None else duration,
                warmup_s=warmup,
                patience_s=math.inf if patience is None else patience,
                retries=retries,
                prompts_known=not estimate_prompts,
            ),
        )
        results = _run(comparison, jobs)
    except PolicyErrors as errors:
        print_errors(errors.errors, console(stderr=True))
        raise typer.Exit(2) from None
    except ValueError as error:
        console(stderr=True).print(str(error), style="red")
        raise typer.Exit(2) from None
    summaries = [summary(runs) for runs in results]
    against = [difference for runs in results[1:] for difference in differences(results[0], runs)]
    if as_json:
        print_json(
            {
                "workload": workload,
                "fleet": fleet,
                "seeds": comparison.seeds,
                "options": _finite(asdict(comparison.options)),
                "policies": [asdict(row) for row in summaries],
                "differences": [asdict(row) for row in against],
                "runs": [asdict(run) for runs in results for run in runs],
            }
        )
    else:
        print_tables(summaries, against, console())


def _loaded(file: Path) -> Policy:
    try:
        return load(file)
    except PolicyErrors as errors:
        print_errors(errors.errors, console(stderr=True))
        raise typer.Exit(2) from None


def _workload(
    source: str, policy: Policy, mix: str | None, model: str | None, rate: float | None, duration: float | None
) -> Workload:
    """What arrives. Raises PolicyErrors or ValueError where it cannot be read."""
    asked = model or next(iter(policy.models))
    whose = Mix(((policy.default_tier, 1.0),), model=asked) if mix is None else mix_of(mix, asked)
    found = load_workload(source, rate_per_s=rate, duration_s=duration, mix=whose)
    if mix is not None and not isinstance(found, Trace):
        raise ValueError(f"--mix is for traces: {source} says itself which tiers its requests are of")
    return found if model is None else OfModel(found, model)


def _candidates(
    files: Sequence[Path], policies: Sequence[Policy], baselines: Sequence[str], fleet: str, faults: Sequence[str]
) -> tuple[Candidate, ...]:
    """Every row of the comparison. Raises ValueError where names, fleet or faults do not fit."""
    stems = [file.stem for file in files]
    names = [file.stem if stems.count(file.stem) == 1 else str(file) for file in files]
    planned = tuple(fault_of(text) for text in faults)
    specs = [FleetSpec(fleet_of(fleet, policy), planned) for policy in policies]
    rows = [Candidate(*row) for row in zip(names, policies, specs, strict=True)]
    rows += [Candidate(text, policies[0], specs[0], text) for text in baselines]
    for row in rows:
        row.fleet.hosts(row.setup().policy)
    return tuple(rows)


def _run(comparison: Comparison, jobs: int) -> list[list[Result]]:
    total = len(comparison.candidates) * len(comparison.seeds)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    terminal = console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=terminal, transient=True, disable=not terminal.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)

        def done(result: Result) -> None:
            speed = f"{result.requests_per_cpu_s:,.0f} requests/s"
            bar.update(task, advance=1, description=f"{result.policy}, seed {result.seed}, {speed}")

        return comparison.run_all(jobs, done)


def _finite(value: dict[str, object]) -> dict[str, object]:
    """The same with null for infinity, which JSON does not have."""
    return {name: None if item == math.inf else item for name, item in value.items()}
