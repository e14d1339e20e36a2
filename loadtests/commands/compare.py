"""`tailgate load compare A B`: two load tests side by side, with a verdict."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from math import isnan
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.output import exits
from gateway.policy import load
from loadtests.report.bootstrap import Range
from loadtests.report.comparison import Comparison, Row, compare, headline
from loadtests.report.page import document, figures, table
from loadtests.report.side import over_each_other
from loadtests.report.tested import read_both
from loadtests.report.words import share, time
from loadtests.terminal.screen import screen
from loadtests.terminal.written import check_writable, writing

COLOURS = {"better": "green", "worse": "red"}


def compare_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of the first test, the baseline.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of the second test.")],
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Policy with the objectives of both tests, instead of those of their reports.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write a page with pictures to this .html file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Exit with 0 even if the generator of a test fell behind.")
    ] = False,
) -> None:
    """Is B better than A? Every figure of both, the change, and its 95% interval.

    A change counts if its interval does not hold "no change". Latencies are compared as B / A. Each test is judged by
    the objectives of its own report. If these differ, there is no verdict without --policy.

    Exit status: 0 if they were compared; 2 for wrong options, or nothing to compare; 3 if the figures of a test are
    invalid because the generator fell behind.
    """
    if out is not None:
        check_writable(out, "--out")
    with exits(2, ValueError, OSError):
        held = None if policy is None else load(policy)
        found = compare(*read_both(a, b, held))
    if out is not None:
        with writing(out, "--out"):
            out.write_text(_page(found))
    if as_json:
        print(orjson.dumps(_as_json(found), option=orjson.OPT_INDENT_2).decode())
    else:
        _print(found)
    if not (found.trusted or allow_late):
        raise typer.Exit(3)


def _print(found: Comparison) -> None:
    out_to = screen()
    out_to.print(Text(headline(found), style="bold"))
    for note in found.notes:
        out_to.print(Text(note, style="yellow"))
    shown = Table(box=None, pad_edge=False)
    for column in ("", found.a.name, found.b.name, "change", ""):
        shown.add_column(Text(column), justify="right" if column else "left")
    for row in found.rows:
        shown.add_row(*_cells(row), Text(row.verdict, style=COLOURS.get(row.verdict, "dim")))
    out_to.print(shown)


def _cells(row: Row) -> list[str]:
    write = time if row.is_ratio else share
    a, b = (("–" if found is None else write(found.value)) for found in (row.a, row.b))
    return [row.name, a, b, _change(row.change, row.is_ratio)]


def _change(of: Range | None, is_ratio: bool) -> str:
    if of is None:
        return "–"
    if is_ratio:
        value, ends = f"x {of.value:.2f}", f"({of.low:.2f} to {of.high:.2f})"
    else:
        value, ends = f"{100 * of.value:+.1f} pp", f"({100 * of.low:+.1f} to {100 * of.high:+.1f})"
    return value if isnan(of.low) else f"{value} {ends}"


def _page(found: Comparison) -> str:
    rows = [[*_cells(row), row.verdict] for row in found.rows]
    parts = [
        f"<h1>{escape(headline(found))}</h1>",
        *(f'<p class="warning">{escape(note)}</p>' for note in found.notes),
        figures(over_each_other({one.name: one.report for one in (found.a, found.b)})),
        table(["", found.a.name, found.b.name, "change (95%)", ""], rows),
    ]
    return document(f"{found.a.name} and {found.b.name}", parts)


def _as_json(found: Comparison) -> dict[str, object]:
    return {
        "a": found.a.name,
        "b": found.b.name,
        "paired": found.paired,
        "verdict": headline(found),
        "notes": found.notes,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in found.rows],
    }
