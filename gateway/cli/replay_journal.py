"""`tailgate replay-journal`: checks that a new controller gives the recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.cli.output import console, print_json
from gateway.observe.journal.replay import Divergence, Header, NotReplayable, Replayed, in_order, replay


def replay_journal(
    files: Annotated[
        list[Path], typer.Argument(help="The files of one run, in any order.", metavar="FILE...", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Replay a journal: pass every recorded call to a fresh controller, and compare its answers bit for bit.

    `tailgate serve --policy policy.yaml --journal calls.jsonl`, and later

    `tailgate replay-journal calls.jsonl.1 calls.jsonl`

    Nothing is sent anywhere. The exit status is 1 if an answer differs; the first such call is shown. It is 2 if the
    journal cannot be replayed to its end.
    """
    try:
        for at, file in enumerate(files):
            if file.resolve() in (earlier.resolve() for earlier in files[:at]):
                raise NotReplayable(f"{file} is given twice")
        parts = in_order(files)
        done = _replayed(parts)
    except NotReplayable as error:
        raise _refused(str(error)) from None
    except OSError as error:
        raise _refused(f"{error.filename}: {error.strerror}") from None
    if as_json:
        print_json(_as_data(parts, done))
    else:
        _print(parts, done, console())
    if done.divergence is not None:
        raise typer.Exit(1)
    if done.stopped:
        raise typer.Exit(2)


def _refused(why: str) -> typer.Exit:
    console(stderr=True).print(why, style="red")
    return typer.Exit(2)


def _replayed(parts: Sequence[Header]) -> Replayed:
    columns = (TextColumn("replaying"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(part.path.stat().st_size for part in parts))
        return replay(parts, lambda size: progress.advance(task, size))


def _as_data(parts: Sequence[Header], done: Replayed) -> dict[str, object]:
    return {
        "files": [str(part.path) for part in parts],
        "run": parts[0].run,
        "version": parts[0].version,
        "same": done.divergence is None,
        "complete": done.divergence is None and not done.stopped,
        **asdict(done),
    }


def _print(parts: Sequence[Header], done: Replayed, out: Console) -> None:
    written, here = parts[0].version, version("tailgate")
    if written != here:
        out.print(f"note: written by tailgate {written}, replayed by {here}", style="yellow")
    if done.cut:
        out.print("note: the last line is cut off, as after a kill of the process", style="yellow")
    span_s = 0.0 if done.began_at is None or done.ended_at is None else done.ended_at - done.began_at
    what = f"{done.calls} calls of {done.requests} requests in {span_s:.1f} s"
    if done.divergence is not None:
        out.print(f"{what} were answered alike, then one was answered differently:", style="red")
        _show(done.divergence, parts[0].about.get("fields"), out)
    elif done.stopped:
        out.print(f"{what} were answered alike. {done.stopped}", style="yellow")
    else:
        out.print(f"{what}: every answer is the same", style="green")


def _show(found: Divergence, fields: object, out: Console) -> None:
    names = fields if isinstance(fields, Mapping) else {}
    out.print(f"{found.file}:{found.line}: {found.call} at {found.now!r}: {_written(found.arguments)}")
    for label, answer in (("recorded", found.recorded), ("replayed", found.replayed)):
        commands = answer if isinstance(answer, list) else [answer]
        for command in commands or ["nothing"]:
            out.print(f"  {label}  {_named(command, names)}")


def _named(command: object, names: Mapping[str, Sequence[str]]) -> str:
    """A command as text, with the names of its fields."""
    match command:
        case {"Ended": [{"Record": [*record]}]}:
            return f"Ended {_fields(names.get('Record', ()), record)}"
        case {**one} if len(one) == 1:
            ((kind, values),) = one.items()
            if isinstance(values, list):
                return f"{kind} {_fields(names.get(str(kind), ()), values)}"
    return command if isinstance(command, str) else _written(command)


def _fields(names: Sequence[str], values: Sequence[object]) -> str:
    return " ".join(f"{name}={_written(value)}" for name, value in zip(names, values, strict=False))


def _written(value: object) -> str:
    return orjson.dumps(value).decode()
