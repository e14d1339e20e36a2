"""`tailgate policy`: policies to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import gateway
from gateway.cli.output import console
from gateway.policy.errors import among

_PACKAGE = Path(gateway.__file__).parent
_PLACES = _PACKAGE / "policies", _PACKAGE.parent / "policies"
"""Where a wheel has the policies, and where a checkout has them."""


def policy_command(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="The policy; without it, all are listed.")
    ] = None,
) -> None:
    """Print a policy to start from: `tailgate policy chat-with-tiers > my-policy.yaml`."""
    known = {path.stem: path for place in _PLACES for path in sorted(place.glob("*.yaml"))}
    if name is None:
        for stem, path in known.items():
            comments = (line[2:] for line in path.read_text("utf-8").splitlines() if line.startswith("# "))
            print(f"{stem:24} {next((text for text in comments if '$schema' not in text), '')}")
        return
    if name not in known:
        console(stderr=True).print(f"there is no policy {name}: {among(name, known)}", style="red")
        raise typer.Exit(2)
    print(known[name].read_text("utf-8"), end="")
