"""`tailgate load convert IN OUT`: from one format of traces to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.progress import BarColumn, Progress, TextColumn

from gateway.cli.output import console
from gateway.observe.journal.replay import NotReplayable
from gateway.sim.workload.traces import TraceError
from loadtests.terminal.written import check_writable, writing
from loadtests.traces.convert import Converted, convert
from loadtests.traces.writers import WRITERS


def convert_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN... OUT",
            help="Traces of any known format, conversations of ShareGPT, or journals. The last is the file to write; - "
            "is standard output.",
        ),
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"One of {', '.join(WRITERS)}.")] = "tailgate",
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as a JSON document.")] = False,
) -> None:
    """Convert a trace, conversations in ShareGPT's form, or the gateway's journal, whatever its size.

    The format of IN is found from its first line. A row that is wrong ends the conversion and is named by its line.
    Rows that are not requests, and values that the other format cannot hold, are left out, counted and reported.
    Without any request no file is left, and the exit status is 2, as for every other error.

    `tailgate load convert calls.jsonl.1 calls.jsonl day.jsonl`
    """
    errors = console(stderr=True)
    *sources, out = paths
    if not sources:
        raise typer.BadParameter("missing: name the file to write, or - for standard output", param_hint="OUT")
    if to not in WRITERS:
        errors.print(f"--to {to} is not a format; known: {', '.join(WRITERS)}", style="red")
        raise typer.Exit(2)
    try:
        done = _converted(sources, sys.stdout, to) if out == Path("-") else _written(sources, out, to)
    except (TraceError, NotReplayable) as error:
        errors.print(str(error), style="red")
        raise typer.Exit(2) from None
    except OSError as error:
        errors.print(f"cannot read {error.filename}: {error.strerror}" if error.filename else str(error), style="red")
        raise typer.Exit(2) from None
    if as_json:
        errors.print(orjson.dumps(done.as_json()).decode())
        return
    for line in done.told():
        errors.print(line)


def _written(sources: list[Path], out: Path, to: str) -> Converted:
    """A file with the name `out` is always complete. A failed conversion leaves no other file."""
    check_writable(out, "OUT")
    part = out.with_name(f"{out.name}.part")
    for path in (out, part):
        if path.resolve() in [source.resolve() for source in sources]:
            raise TraceError(f"{path}: is the input: write to another file")
    with writing(out, "OUT"):
        file = part.open("w", newline="")
    try:
        with file:
            done = _converted(sources, file, to)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return done


def _converted(sources: list[Path], file: object, to: str) -> Converted:
    terminal = console(stderr=True)
    columns = (TextColumn("converting"), BarColumn(), TextColumn("{task.completed:,} requests"))
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=None)
        return convert(sources, file, to, lambda count: bar.update(task, completed=count))  # type: ignore[arg-type]
