"""Output of commands: lines for operators, JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from gateway.policy import PolicyError, PolicyErrors
from gateway.policy.errors import MAX_LINES


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that never wraps lines or interprets markup. `width`: for tables; that of the terminal unless given."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False, width=width)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2))


def error_line(error: PolicyError) -> Text:
    """A policy error as `file:line: field: message`, with coloured parts if the terminal has colours."""
    place = f"{error.file}:{error.line}" if error.line else error.file
    line = Text(f"{place}: ", style="bold")
    if error.path:
        line.append(f"{error.path}: ", style="cyan")
    return line.append(error.message, style="not bold")


def print_errors(errors: Iterable[PolicyError], out: Console) -> None:
    """One line for each of the first errors, and one with the number of the others."""
    found = list(errors)
    for error in found[:MAX_LINES]:
        out.print(error_line(error))
    if len(found) > MAX_LINES:
        out.print(f"and {len(found) - MAX_LINES} more errors")


@contextmanager
def exits(status: int, *kinds: type[Exception]) -> Iterator[None]:
    """Print errors of these kinds, and of a policy, on standard error, and exit with this status."""
    try:
        yield
    except PolicyErrors as found:
        print_errors(found.errors, console(stderr=True))
        raise typer.Exit(status) from None
    except kinds as error:
        console(stderr=True).print(str(error), style="red")
        raise typer.Exit(status) from None


def finite(value: object) -> object:
    """`value` with null in place of infinity, which JSON does not have."""
    match value:
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case float() if math.isinf(value):
            return None
        case _:
            return value


def refuse_unused(context: typer.Context, names: Iterable[str], problem: str) -> None:
    """Raise an error if an option was given that has no effect here. Environment variables without effect are
    allowed.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(problem, param_hint=f"--{name.replace('_', '-')}")


def counted(count: int, noun: str) -> str:
    """`1 pool`, `2 pools`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
