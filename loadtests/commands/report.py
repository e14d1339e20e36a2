"""`tailgate load report DIR`: makes the report of a finished test again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from gateway.cli.output import console, exits, refuse_unused
from gateway.core.policy import Policy
from gateway.policy import load
from loadtests.charts.svg import draw
from loadtests.replay.columns import read_rows
from loadtests.report.figures import report
from loadtests.report.merge import merge
from loadtests.report.page import page, unit
from loadtests.report.pictures import NAMES, Report, pictures
from loadtests.report.run_file import read_run
from loadtests.report.terminal import print_report
from loadtests.report.tested import own_policy
from loadtests.terminal.screen import screen
from loadtests.terminal.written import check_writable

LATE = "Do not trust this report: the generator was late. Lower the rate, or give the generator a core of its own"


def report_command(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folder of the test, or of each shard.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Folder for the report of several shards.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The policy that judges the test; by default its own.",
        ),
    ] = None,
    no_policy: Annotated[bool, typer.Option("--no-policy", help="Without objectives: every answer is good.")] = False,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Exit with 0 even if the generator fell behind.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of a summary.")] = False,
) -> None:
    """Make the report of a load test again. Nothing is sent.

    Several folders are shards of one test (`run --shard`): their rows are merged, so the report is that of one test.
    """
    if no_policy:
        refuse_unused(context, ("policy",), "says the opposite of --no-policy")
    if len(folders) == 1:
        refuse_unused(context, ("out",), "goes with several shards: one folder keeps its report")
    folder = folders[0] if len(folders) == 1 else merged(folders, out)
    with exits(2, ValueError, OSError):
        judge = policy or (None if no_policy else own_policy(folder, read_run(folder)))
        held = None if judge is None else load(judge)
    conclude(folder, held, allow_late=allow_late, as_json=as_json, policy_file=judge)


def merged(folders: list[Path], out: Path | None) -> Path:
    """The folder of the test that these shards are. Exits with 2 if they are none."""
    with exits(2, ValueError, OSError):
        if out is None or out in folders:
            raise ValueError("--out DIR: name a folder of its own for the report of several shards")
        check_writable(out, "--out", folder=True)
        merge(folders, out)
    return out


def conclude(
    folder: Path,
    policy: Policy | None,
    *,
    allow_late: bool,
    as_json: bool,
    policy_file: Path | None = None,
) -> Report:
    """Write report.json, report.html and the pictures, print a summary, and return the report.

    Exits with 1 if a file could not be written, with 2 if there is nothing to report. If the generator fell behind, the
    report says so, and unless `allow_late` the status is 3.
    """
    found = _concluded(folder, policy, policy_file)
    with exits(1, OSError):
        for name in NAMES:
            (folder / f"{name}.svg").unlink(missing_ok=True)  # left by an earlier report
        for picture in pictures(found):
            draw(picture, folder, unit(picture))
        _write(found, folder, as_json=as_json)
    if not found["trusted"] and not allow_late:
        console(stderr=True).print(f"{LATE} (exit status 3; 0 with --allow-late)", style="red")
        raise typer.Exit(3)
    return found


def _concluded(folder: Path, policy: Policy | None, policy_file: Path | None) -> Report:
    """The report of a test. Exits if there is nothing to report."""
    with exits(2, ValueError, OSError):
        found = report(read_run(folder), read_rows(folder), policy)
    if policy_file is not None:
        found["about"]["policy"] = str(policy_file)
    elif policy is None:
        found["about"]["policy"] = None
    return found


def _write(found: Report, folder: Path, *, as_json: bool) -> None:
    """Write and print the report."""
    (folder / "report.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
    (folder / "report.html").write_text(page(found))
    if as_json:
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        out = screen()
        print_report(found, out)
        out.print(f"\n{folder / 'report.html'}  {folder / 'report.json'}")
