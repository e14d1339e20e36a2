"""Commands that installed packages add to `tailgate`, as entry points of one group."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer.main
from typer.core import TyperGroup

GROUP = "tailgate.commands"
"""Each entry point of this group is a typer app. Its name is the name of the command."""


class AddedCommands(TyperGroup):
    """A group that loads an added command only if it is asked for, or for the list of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands; the added ones come last."""
        return [*super().list_commands(ctx), *sorted({point.name for point in entry_points(group=GROUP)})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, None if there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=GROUP, name=cmd_name):
            added = typer.main.get_command(point.load())
            added.name = cmd_name
            return added
        return None
