"""`tailgate load COMMAND`, or `python -m loadtests COMMAND`: load tests of any server with an OpenAI API."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

import typer.main
from typer.core import TyperGroup

from gateway.cli.output import console
from loadtests.children import end_by_sigterm

COMMANDS = ("run", "report", "compare", "convert", "scenario", "calibrate", "emulate", "find", "certify")
OPTIONAL = ("numpy", "scipy")
"""Packages of the extra `load`."""
INSTALL = "pip install 'tailgate[load]'"
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class LazyCommands(TyperGroup):
    """A group that imports only the wanted command: so `report` starts in three quarters of the time."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """`NAME_command` of `loadtests.commands.NAME`; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        # Imported modules are never freed. So the garbage collector would find nothing, but take a fifth of the
        # import's time.
        gc.disable()
        try:
            module = import_module(f"loadtests.commands.{cmd_name}")
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            return _lacking(cmd_name, error.name)
        finally:
            gc.freeze()
            gc.enable()
        alone = typer.Typer(
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode="markdown",
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        alone.command(cmd_name, context_settings=getattr(module, "CONTEXT", None))(
            getattr(module, f"{cmd_name}_command")
        )
        return typer.main.get_command(alone)


def _lacking(name: str, package: str) -> Any:
    """A command that only says how to install its package, so that the help still lists it."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @alone.command(name, help=f"Needs {package}: {INSTALL}", context_settings=ANYTHING)
    def lacking() -> None:
        console(stderr=True).print(f"{package} is not installed, and {name} needs it: {INSTALL}", style="red")
        raise typer.Exit(1)

    return typer.main.get_command(alone)


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def load() -> None:
    """Load tests that cannot lie: open loop, latency from the time a request is due, goodput and throughput."""
    end_by_sigterm()


if __name__ == "__main__":
    try:
        app(prog_name="python -m loadtests")
    except KeyboardInterrupt:
        sys.exit(130)  # nothing has begun
