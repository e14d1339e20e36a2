"""`python -m loadtests COMMAND`: load tests of a live gateway, or of any server with an OpenAI API."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from loadtests.children import end_by_sigterm

COMMANDS = ("run", "report", "compare", "convert", "scenario", "calibrate")


def made_of(commands: Iterable[str]) -> typer.Typer:
    """The program with these commands: `NAME_command` of `loadtests.commands.NAME`."""
    program = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Load tests that cannot lie: open loop, latency from the time a request is due, goodput and throughput.",
    )
    program.callback()(lambda: None)  # with a single command typer would drop its name
    for name in commands:
        program.command(name)(getattr(import_module(f"loadtests.commands.{name}"), f"{name}_command"))
    return program


if __name__ == "__main__":
    end_by_sigterm()
    # Imported modules are never freed. So the garbage collector would find nothing, but take a fifth of the import's
    # time.
    gc.disable()
    try:
        # Only the wanted command is imported: so `report` starts in three quarters of the time.
        app = made_of([sys.argv[1]] if sys.argv[1:] and sys.argv[1] in COMMANDS else COMMANDS)
    except KeyboardInterrupt:
        sys.exit(130)  # nothing has begun
    gc.freeze()
    gc.enable()
    app(prog_name="python -m loadtests")
else:
    app = made_of(COMMANDS)
