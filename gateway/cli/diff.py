"""`tailgate diff`: the differences between two policy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import console, exits, print_json
from gateway.core.policy import Policy
from gateway.policy import load
from gateway.policy.outline import changes


def diff_command(
    old: Annotated[Path, typer.Argument(help="The policy file to compare with.", metavar="OLD")],
    new: Annotated[Path, typer.Argument(help="The policy file that would replace it.", metavar="NEW")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Show which values differ between two policy files, by their meaning: spelling, order and comments do not count.

    `tiers.gold.slo.ttft.p99: 1s -> 800ms`

    A value that is not written counts with its default. Secrets are never shown. The exit status is 0 if the policies
    are the same, 1 if they differ, 2 if one of them has errors.
    """
    lines = changes(_loaded(old).outline, _loaded(new).outline)
    if as_json:
        print_json({"changes": lines})
    else:
        for line in lines:
            console().print(line)
    if lines:
        raise typer.Exit(1)


def _loaded(file: Path) -> Policy:
    with exits(2):
        return load(file)
