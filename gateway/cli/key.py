"""`tailgate key`: keys for clients."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from gateway.cli.output import console, print_json
from gateway.policy.keys import hash_of, new_key
from gateway.policy.sections.values import NAME

PLACEHOLDER = "my-tenant"


def _name(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(NAME, text, re.ASCII):
        raise typer.BadParameter("use letters, digits, dot, dash and underscore, at most 63")
    return text


app = typer.Typer(no_args_is_help=True, help="Make keys for clients.")


@app.callback()
def _keys() -> None:
    """Make keys for clients."""


@app.command()
def new(
    tenant: Annotated[
        str, typer.Option(callback=_name, help="Who will hold the key; limits are counted per tenant.")
    ] = PLACEHOLDER,
    tier: Annotated[
        str | None,
        typer.Option(callback=_name, help="The tier of the key; by default the default tier.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Make a key of 256 random bits, and the policy line that admits it.

    The key is printed once, on standard output, and kept nowhere: hand it to the client. All other lines go to standard
    error, so `tailgate key new > key.txt` keeps the key alone, and shows the line for the policy. The policy file holds
    the key's SHA-256 only, so nobody who reads the policy can use it.
    """
    key = new_key()
    digest = hash_of(key).hex()
    line = f"- {{sha256: {digest}, tenant: {tenant}{f', tier: {tier}' if tier else ''}}}"
    if as_json:
        print_json({"key": key, "sha256": digest, "policy_line": line})
        return
    notes = console(stderr=True)
    place = "shown this once" if sys.stdout.isatty() else "written to standard output"
    notes.print(f"The key, {place} (send it as `Authorization: Bearer` or `x-api-key`):")
    print(key, flush=True)
    notes.print("For the policy file, under keys:")
    notes.print(f"  {line}")
    if tenant == PLACEHOLDER:
        notes.print(f"{PLACEHOLDER} is a placeholder: give the holder of the key with --tenant.")
