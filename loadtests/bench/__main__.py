"""`python -m loadtests.bench`: measures, prints the tables, and exits with 1 if a target is missed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtests.bench import profiling, relays
from loadtests.bench.claims import CLAIMED, all_hold, judge_all
from loadtests.bench.measures import MEASURES
from loadtests.bench.report import as_json, show
from loadtests.bench.rounds import QUICK, Bench, Effort
from loadtests.bench.section import Section
from loadtests.children import end_by_sigterm
from loadtests.compiled import as_users_have_it
from loadtests.peers.install import alone
from loadtests.processes import Cores, Neighbours, split_cores

KNOWN = list(dict.fromkeys(target for one in MEASURES.values() for target in one.targets))


def measure(plan: dict[str, list[str]], effort: Effort, cores: Cores, console: Console) -> dict[str, Section]:
    """Run the measures of a plan (measure to targets) under a progress bar."""
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = sum(MEASURES[name].steps(effort, targets) for name, targets in plan.items())
        task = progress.add_task("starting", total=total)
        bench = Bench(
            effort,
            cores,
            tell=lambda what: progress.update(task, description=what),
            step=lambda count: progress.advance(task, count),
        )
        return {name: MEASURES[name].measured(bench, targets) for name, targets in plan.items()}


def plan_of(only: Sequence[str], targets: Sequence[str], *, quick: bool) -> dict[str, list[str]]:
    """The measures to run, each with its targets: all if none are named. Quick runs leave out targets that no claim
    needs."""
    plan = {}
    for name, one in MEASURES.items():
        chosen = [target for target in one.targets if not targets or target in targets]
        if quick and not targets:
            chosen = [target for target in chosen if (name, target) in CLAIMED]
        if quick and not only and name in relays.MEASURES:
            continue
        if chosen and (not only or name in only):
            plan[name] = chosen
    return plan


def _known(names: list[str], known: Sequence[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is unknown; known: {', '.join(known)}")
    return names


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"A measure: {', '.join(MEASURES)}. May be given several times.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help=f"A target: {', '.join(KNOWN)}. May be given several times.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute: fewer and shorter rounds, noisier figures.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each measure.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every raw round to this file.")] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Measure nothing: run tailgate under cProfile, with --only requests or chunks."),
    ] = False,
    pure: Annotated[
        bool, typer.Option("--pure", help="Measure the interpreted code, not the compiled code that is installed.")
    ] = False,
    fail: Annotated[bool, typer.Option(help="Exit with 1 if a target is missed.")] = True,
) -> None:
    """Measure the cost of tailgate, as ratios to other proxies on the same upstream in the same run."""
    plan = plan_of(_known(only or [], list(MEASURES)), _known(target or [], KNOWN), quick=quick)
    effort = QUICK if quick else Effort()
    if rounds is not None:
        effort = replace(effort, rounds=rounds)
    console, cores = Console(), split_cores()
    with alone(console.print):
        as_users_have_it("loadtests.bench", sys.argv[1:], console.print, pure=pure or profile)
        if profile:
            chosen = [name for name in profiling.LOADS if name in plan]
            raise typer.Exit(0 if all(profiling.profile(name, console, cores) for name in chosen) else 1)
        neighbours = Neighbours()
        sections = measure(plan, effort, cores, console)
        others = neighbours.share()
    verdicts = judge_all(sections)
    show(console, sections, verdicts, cores, others)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(sections, verdicts, effort, cores, others), indent=2) + "\n")
    if fail and not all_hold(verdicts):
        raise typer.Exit(1)


if __name__ == "__main__":
    end_by_sigterm()
    typer.run(main)
