"""`tailgate load scenario NAME`: a fault in a fleet, and several contenders in front of it."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gateway.cli.output import console, counted, exits
from loadtests import CHECKOUT
from loadtests.scenarios.file import ScenarioFile, shipped
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.picture import grid
from loadtests.scenarios.run import QUICK, STARTING, Played, play_scenario
from loadtests.scenarios.told import as_page, how, notes, write, write_docs
from loadtests.terminal.screen import screen
from loadtests.terminal.written import FOLDER, make_folder


def scenario_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", show_default=False, help="The scenario; without it, all are listed."),
    ] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default=False, help="Only this contender; may be given several times."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the time: only shows that it works.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Folder for the results (loadtest-results/NAME-TIME)."),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default=False, help="Write a page of Markdown to this folder, too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print scenario.json instead of a table.")] = False,
) -> None:
    """Play a scenario: emulated replicas, each contender in front of them in turn, and the same requests for all.

    It starts and ends all processes. It writes a page with a table and a picture, and a report of each test. Contenders
    that this machine lacks (nginx, vllm-router, litellm) are left out, with a note.

    Exit status: 0 if it was played; 1 if something broke; 2 for wrong options; 130 after Ctrl-C. It is 3 if the figures
    of a test are invalid because the generator fell behind.
    """
    errors = console(stderr=True)
    if name is None:
        _list()
        return
    with exits(2):
        scenario = load_scenario(name)
    if scenario.experiment is not None:
        for given, option in ((contender, "--contender"), (out, "--out")):
            if given:
                told = (
                    f"{name} is an experiment, loadtests.experiments run {scenario.experiment}, and has no such option"
                )
                raise typer.BadParameter(told, param_hint=option)
        _experiment(scenario.experiment, quick, docs, as_json)
        raise typer.Exit
    scenario = _only(scenario, contender or [])
    stem = Path(name).stem
    folder = out or FOLDER / f"{stem}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    for path, option in ((folder, "--out"), (docs, "--docs")):
        if path is not None:
            make_folder(path, option)
    errors.print(f"{counted(scenario.tests, 'test')}, about {_minutes(scenario.about_s(QUICK if quick else 1.0))}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
            task = progress.add_task("")

            def tell(test: str, text: str) -> None:
                progress.update(task, description=f"{test}: {text}")
                if text == STARTING and not errors.is_terminal:
                    errors.print(test)

            played = play_scenario(scenario, folder, quick, tell)
    except OSError as broken:
        errors.print(Text(str(broken), style="red"))
        raise typer.Exit(1) from None
    for why in played.broken.values():
        errors.print(Text(why, style="red"))
    if not played.reports and (played.broken or played.interrupted):
        raise typer.Exit(130 if played.interrupted else 1)
    write(played, stem, folder)
    (folder / "scenario.html").write_text(as_page(played, stem))
    if docs is not None and played.reports:
        write_docs(played, stem, docs)
    if as_json:
        print((folder / "scenario.json").read_text())
    else:
        _print(played, folder)
    if played.interrupted or played.broken:
        raise typer.Exit(130 if played.interrupted else 1)
    if not played.trusted:
        raise typer.Exit(3)


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds / 60)} min"


def _list() -> None:
    shown = Table(box=None, show_header=False, pad_edge=False)
    for name in shipped():
        of = load_scenario(name)
        shown.add_row(Text(name, style="bold"), _minutes(of.about_s()), of.title)
    screen().print(shown)


def _experiment(name: str, quick: bool, docs: Path | None, as_json: bool) -> None:
    """A scenario that is an experiment is run as one."""
    if not CHECKOUT:
        console(stderr=True).print(f"{name} is an experiment: it needs a checkout of tailgate", style="red")
        raise typer.Exit(2)
    from loadtests.experiments.__main__ import app

    flags = [flag for flag, given in (("--quick", quick), ("--json", as_json)) if given]
    app(["run", name, "--pure", "--no-fail", *flags, *(["--docs", str(docs)] if docs else [])])


def _only(scenario: ScenarioFile, names: list[str]) -> ScenarioFile:
    known = [of.called for of in scenario.contenders]
    for name in names:
        if name not in known:
            told = f"{name} is not in this scenario; known: {', '.join(known)}"
            raise typer.BadParameter(told, param_hint="--contender")
    chosen = [of for of in scenario.contenders if not names or of.called in names]
    return scenario.model_copy(update={"contenders": chosen})


def _print(played: Played, folder: Path) -> None:
    out = screen()
    out.print(Text(played.scenario.title, style="bold"))
    found = grid(played.scenario, played.reports)
    shown = Table(box=None, pad_edge=False)
    for n, column in enumerate(found.columns):
        shown.add_column(column, justify="right" if n else "left")
    for row in found.rows:
        shown.add_row(*row)
    out.print(shown)
    if said := how(played):
        out.print(f"\n{said}")
    for note in notes(played):
        out.print(Text(note, style="yellow"))
    out.print(f"\n{folder / 'scenario.html'}")
