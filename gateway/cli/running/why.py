"""`tailgate why`: the story of one request, as a running gateway keeps it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from gateway.cli.output import console, print_json
from gateway.cli.running.drain import ADMIN, Admin
from gateway.cli.running.live import Unanswered, ask_admin
from gateway.observe.requests.story import story


def why_command(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID", help="The id in the `x-request-id` of the answer or error, or in a replica's log."
        ),
    ],
    admin: Admin = ADMIN,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Tell why a request was refused, late or slow: decision, forecast, waits, attempts, tokens.

    `tailgate why tg-5f0c1a9e22-17`

    The gateway keeps the records of its latest requests (`serve --records`), those that were refused, late, hedged or
    failed longer than ordinary ones. The exit status is 1 if it has no record of this id, 2 if it cannot be asked.
    """
    try:
        found = ask_admin(admin, f"requests/{quote(request_id, safe='')}", None)
    except Unanswered as error:
        console(stderr=True).print(str(error))
        raise typer.Exit(1 if error.status == 404 else 2) from None
    if as_json:
        print_json(found)
        return
    out = console()
    for number, one in enumerate(found["requests"]):
        if number:
            out.print()
        for label, text in story(one):
            _line(out, label, text)


def _line(out: Console, label: str, text: str) -> None:
    out.print(f"{label:<9} {text}")
