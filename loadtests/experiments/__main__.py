"""`python -m loadtests.experiments list | run NAME... [--quick | --full]`: the one runner of every experiment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from time import monotonic, perf_counter
from traceback import print_exception
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gateway.sim.run.processes import kept
from loadtests import ROOT
from loadtests.children import end_by_sigterm
from loadtests.compiled import as_users_have_it
from loadtests.experiments.findings import Findings
from loadtests.experiments.pages import took_before_s, write_page
from loadtests.experiments.registry import EXPERIMENTS, WITH_SET_ASIDE, about
from loadtests.experiments.runner import FULL, QUICK, Effort, Runner
from loadtests.experiments.runs import Ended, ended, left, place, summary
from loadtests.experiments.verdicts import as_json, judged, measured
from loadtests.terminal.screen import screen
from loadtests.terminal.written import make_folder

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
EVERY_S = 60.0
"""Seconds between two lines of progress if there is no terminal."""
PAGES = ROOT / "docs" / "results" / "experiments"
VERDICTS = {True: Text("met", "green"), False: Text("missed", "red"), None: Text()}


@app.command("list")
def list_command() -> None:
    """List every experiment with its subject."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in EXPERIMENTS:
        table.add_row(f"[bold]{name}[/]", about(name).partition("\n")[0])
    Console().print(table)


@app.command("run")
def run_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names from the list, or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and shorter runs: only shows that it works.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Twice the seeds, runs twice as long: narrower intervals.")
    ] = False,
    as_documents: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per line and experiment.")
    ] = False,
    docs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a page with pictures for each to this folder.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=2, help="Number of seeds, which are runs of each candidate.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = min(2, os.cpu_count() or 1),
    fail: Annotated[bool, typer.Option(help="Exit with 1 if a target is missed, or was not measured.")] = True,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Run what was set aside instead: one engine and one workload.")
    ] = False,
    pure: Annotated[bool, typer.Option("--pure", help="Run interpreted: slower, with the same results.")] = False,
) -> None:
    """Run experiments, each anew, and compare their findings with the targets."""
    if quick and full:
        raise typer.BadParameter("--quick and --full contradict each other: give one of them")
    effort = QUICK if quick else FULL if full else Effort()
    effort = effort if seeds is None else replace(effort, seeds=seeds)
    effort = replace(effort, set_aside=set_aside)
    chosen = _known(names)
    if set_aside and (others := [name for name in chosen if name not in WITH_SET_ASIDE]):
        known = ", ".join(WITH_SET_ASIDE)
        raise typer.BadParameter(f"nothing of {', '.join(others)} was set aside; --set-aside goes with {known}")
    if docs is not None:
        make_folder(docs, "--docs")
    out, console = screen(), Console(stderr=True)
    if not quick or pure:
        as_users_have_it("loadtests.experiments", sys.argv[1:], console.print, pure=pure)
    before_s = {name: took_before_s(name, docs or PAGES) for name in chosen} if effort == Effort() else {}
    runner, runs = Runner(effort, jobs), dict[str, Ended]()

    def report(name: str, findings: Findings, took_s: float) -> None:
        if as_documents:
            print(json.dumps(as_json(name, findings, effort)), flush=True)
        else:
            _show(name, findings, effort, out)
            out.print(f"{name} took {took_s:.0f} s", highlight=False)
        if docs is not None:
            write_page(name, about(name), findings, effort, docs, took_s)

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        for name in chosen:
            where = place(name, chosen)
            if len(chosen) > 1:
                begins = ", ".join(filter(None, (where, left(name, chosen, before_s))))
                console.print(begins, highlight=False, soft_wrap=True)
            runner.tell = _teller(where, console, lambda text: progress.update(task, description=text))
            runs[name] = _run(name, runner, report)
    if len(runs) > 1:
        (console if as_documents else out).print(summary(runs), highlight=False)
    if any(run.error or (run.missed and fail) for run in runs.values()):
        raise typer.Exit(1)


def _run(name: str, runner: Runner, report: Callable[[str, Findings, float], None]) -> Ended:
    began_s = perf_counter()
    try:
        with kept():
            findings = EXPERIMENTS[name](runner)
        took_s = perf_counter() - began_s
        report(name, findings, took_s)
        return ended(took_s, judged(name, findings, runner.effort))
    except Exception as error:  # noqa: BLE001 - the other experiments still run
        print_exception(error)
        return Ended(perf_counter() - began_s, error=f"{type(error).__name__}: {error}")


def _teller(where: str, console: Console, show: Callable[[str], None]) -> Callable[[str], None]:
    """Shows progress: a bar on a terminal, else a line now and then."""
    told_s = monotonic()

    def tell(what: str) -> None:
        nonlocal told_s
        text = f"{where}: {what}"
        if console.is_terminal:
            show(text)
        elif (now_s := monotonic()) >= told_s + EVERY_S:
            told_s = now_s
            console.print(text, highlight=False, soft_wrap=True)

    return tell


def _known(names: Sequence[str]) -> list[str]:
    if list(names) == ["all"]:
        return list(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            near = get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(EXPERIMENTS)}, or all"
            raise typer.BadParameter(f"{name!r} is not an experiment: {hint}")
    return list(dict.fromkeys(names))


def _show(name: str, findings: Findings, effort: Effort, out: Console) -> None:
    table = Table(title=f"{name}: {len(findings.seeds)} seeds", title_justify="left")
    for column in ("figure", "value", "95% interval", "target", ""):
        table.add_column(column, justify="right" if column in ("value", "95% interval") else "left")
    for key, row in judged(name, findings, effort).items():
        interval = "" if row["interval"] is None else "{:.4g} to {:.4g}".format(*row["interval"])
        table.add_row(key, measured(row["value"]), interval, row["target"] or "reported", VERDICTS[row["pass"]])
    out.print(table)
    for grid in findings.grids:
        shown = Table(*grid.columns, title=grid.title, title_justify="left")
        for cells in grid.rows:
            shown.add_row(*cells)
        out.print(shown)
    for note in findings.notes:
        out.print(note, markup=False, highlight=False)


if __name__ == "__main__":
    end_by_sigterm()
    app()
