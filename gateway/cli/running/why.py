"""`tailgate why`: the story of one request, as a running gateway keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.output import console, print_json
from gateway.cli.running.live import ADMIN, Admin, Unanswered, ask_admin
from gateway.observe.metrics.stages import PREFILL, STAGES
from gateway.observe.requests.story import NAMES, spoken, story

SHORT = dict(
    zip(
        STAGES,
        ("received", "waited here", "engine's queue", "prompt", "at the replica before the first token", "rest"),
        strict=True,
    )
)
"""Heads of columns."""


def why_command(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="[REQUEST_ID]",
            help="The id in the `x-request-id` of the answer or error, or in a replica's log. Without one: where the "
            "slow requests of each tier spend their time.",
            show_default=False,
        ),
    ] = "",
    admin: Admin = ADMIN,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Tell why a request was refused, late or slow: decision, forecast, waits, attempts, tokens.

    `tailgate why tg-5f0c1a9e22-17`; `tailgate why` alone tells in which stage the slow requests spend their time.

    The gateway keeps the records of its latest requests (`serve --records`), those that were refused, late, hedged or
    failed longer than ordinary ones. The exit status is 1 if it has no record of this id, 2 if it cannot be asked.
    """
    try:
        found = ask_admin(admin, f"requests/{quote(request_id, safe='')}" if request_id else "stages", None)
    except Unanswered as error:
        console(stderr=True).print(str(error))
        raise typer.Exit(1 if error.status == 404 else 2) from None
    if as_json:
        print_json(found)
        return
    out = console()
    if not request_id:
        _print_stages(found, out)
        return
    for number, one in enumerate(found["requests"]):
        if number:
            out.print()
        for label, text in story(one):
            _line(out, label, text)


def _print_stages(found: Mapping[str, Any], out: Console) -> None:
    """The share of each stage, by tier, latency and percentile."""
    if not found["stages"]:
        out.print("no streamed request with a first token has ended")
        return
    table = Table(box=None, pad_edge=False)
    for head in ("tier", "slowest"):
        table.add_column(head)
    told = [stage for stage in STAGES if any(row["stages"].get(stage) for row in found["stages"])]
    for head in ("requests", *(SHORT[stage] for stage in told)):
        table.add_column(head, justify="right")
    for row in found["stages"]:
        shares = [f"{row['stages'][stage]:.0%}" if stage in row["stages"] else "" for stage in told]
        slowest = f"{dict(NAMES)[row['latency']]} {row['percentile']}, from {spoken(row['from_s'])}"
        table.add_row(row["tier"], slowest, f"{row['requests']:,}", *shares)
    out.print(table)
    out.print(f"of the streamed requests since {found['since']}")
    if STAGES[PREFILL] in told:
        out.print("engine's queue and prompt: divided by the mean of each replica, as its engine tells it")


def _line(out: Console, label: str, text: str) -> None:
    out.print(f"{label:<9} {text}")
