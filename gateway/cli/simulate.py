"""`tailgate simulate`: simulates how policies handle traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import console, exits, finite, print_json
from gateway.cli.quantities import RateOption, WarmupOption, seconds
from gateway.cli.tables import print_tables
from gateway.cli.traffic import (
    DurationOption,
    FirstSeedOption,
    FleetOption,
    JobsOption,
    MixOption,
    ModelOption,
    SeedsOption,
    TraceOption,
    WorkloadOption,
    loaded_policy,
    progress,
    source_of,
    workload_of,
)
from gateway.core.policy import Policy
from gateway.sim.analysis.compare import Comparison, Contender
from gateway.sim.analysis.report import differences, summary
from gateway.sim.baselines.baselines import BASELINES
from gateway.sim.engine.fleet import FleetSpec, fault_of, fleet_of
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result


def simulate_command(
    policies: Annotated[
        list[Path],
        typer.Option("--policy", metavar="FILE", show_default=False, help="A policy file; give several to compare."),
    ],
    workload: WorkloadOption = None,
    trace: TraceOption = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            show_default=False,
            help=f"Baseline to compare with, made of the first policy: {', '.join(BASELINES)}.",
        ),
    ] = None,
    fleet: FleetOption = "default",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REPLICA@SECONDS=HARM",
            show_default=False,
            help="Fault of a replica: slow:FACTOR, down, dead, hung, busy, balloon or recover.",
        ),
    ] = None,
    seeds: SeedsOption = 5,
    first_seed: FirstSeedOption = 1,
    duration: DurationOption = None,
    warmup: WarmupOption = 10.0,
    mix: MixOption = None,
    model: ModelOption = None,
    rate: RateOption = None,
    patience: Annotated[
        float | None,
        typer.Option(
            parser=seconds(1e-3),
            metavar="S",
            show_default=False,
            help="Seconds after which clients without any answer leave.",
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Most retries of clients that were refused, failed or lost patience.")
    ] = 0,
    estimate_prompts: Annotated[
        bool, typer.Option("--estimate-prompts", help="Do not tell the gateway the tokens of prompts.")
    ] = False,
    noise: Annotated[
        float,
        typer.Option(
            min=0.0, max=3.0, help="Log-normal noise on each request's cost and estimated prompt length: 0.6 is 60%."
        ),
    ] = 0.0,
    jobs: JobsOption = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Try policies on traffic, in virtual time.

    The gateway's own code decides; the replicas are models of engines. Every policy gets the same arrivals, and
    intervals are 95%, over seeds:

    `tailgate simulate --policy a.yaml --policy b.yaml --workload chat --baseline static-cap`
    """
    loaded = [loaded_policy(file) for file in policies]
    with exits(2, ValueError):
        source = source_of(workload, trace)
        comparison = Comparison(
            candidates=_candidates(policies, loaded, baseline or [], fleet, fault or []),
            workload=workload_of(source, loaded[0], mix, model, rate, duration),
            seeds=tuple(range(first_seed, first_seed + seeds)),
            options=Options(
                duration_s=math.inf if duration is None else duration,
                warmup_s=warmup,
                patience_s=math.inf if patience is None else patience,
                retries=retries,
                prompts_known=not estimate_prompts,
                noise=noise,
            ),
        )
        results = _run(comparison, jobs)
    summaries = [summary(runs) for runs in results]
    against = [difference for runs in results[1:] for difference in differences(results[0], runs)]
    if as_json:
        print_json(
            {
                "workload": source,
                "fleet": fleet,
                "seeds": comparison.seeds,
                "options": finite(asdict(comparison.options)),
                "policies": [asdict(row) for row in summaries],
                "differences": [asdict(row) for row in against],
                "runs": [asdict(run) for runs in results for run in runs],
            }
        )
    else:
        print_tables(summaries, against, console())


def _candidates(
    files: Sequence[Path], policies: Sequence[Policy], baselines: Sequence[str], fleet: str, faults: Sequence[str]
) -> tuple[Contender, ...]:
    """All contenders of the comparison. Raises ValueError if names, fleet or faults do not fit together."""
    stems = [file.stem for file in files]
    names = [file.stem if stems.count(file.stem) == 1 else str(file) for file in files]
    planned = tuple(fault_of(text) for text in faults)
    specs = [FleetSpec(fleet_of(fleet, policy), planned) for policy in policies]
    rows = [Contender(*row) for row in zip(names, policies, specs, strict=True)]
    rows += [Contender(text, policies[0], specs[0], text) for text in baselines]
    for row in rows:
        row.fleet.hosts(row.setup().policy)
    return tuple(rows)


def _run(comparison: Comparison, jobs: int) -> list[list[Result]]:
    with progress(len(comparison.candidates) * len(comparison.seeds)) as done:
        return comparison.run_all(jobs, done)
