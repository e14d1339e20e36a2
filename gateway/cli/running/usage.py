"""`tailgate usage`: who used what, and what a good answer cost."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.table import Table

from gateway.cli.output import console, exits, print_json, refuse_unused
from gateway.cli.running.live import ADMIN, Admin, Unanswered, ask_admin
from gateway.observe.usage.database import UsageError
from gateway.observe.usage.report import focus_rows, question, report
from gateway.policy import load

FOCUS_BY = "tenant,model,day"
WIDTH = 200
"""Columns of the table at most, so that no cell is wrapped in a pipe."""
SHOWN = ("requests", "good", "refused", "prompt_tokens", "cached_tokens", "output_tokens", "slot_s")


def usage_command(
    context: typer.Context,
    by: Annotated[
        str, typer.Option(metavar="NAMES", help="Groups: tenant, key, tier, model, hour, day, month, with commas.")
    ] = "tenant",
    since: Annotated[str, typer.Option(metavar="TIME", help="24h, 7d or 2w before now, or a day: 2026-11-01.")] = "7d",
    until: Annotated[str, typer.Option(metavar="TIME", help="The end; now unless given.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    focus: Annotated[
        bool, typer.Option("--focus", help="Print CSV in the FinOps format (FOCUS 1.0), by tenant, model and day.")
    ] = False,
    admin: Admin = ADMIN,
    db: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read the file of `serve --usage` instead of asking a gateway. Several --db are summed: one for each "
            "gateway in front of the same replicas.",
        ),
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="With --db: the policy with the prices.")] = None,
) -> None:
    """Tell who used how many requests and tokens, and what they cost.

    `tailgate usage --by tenant,day --since 7d`

    The gateway keeps usage with `serve --usage FILE`. Prices come from `prices` of the policy. With the price of a
    replica's hour, the last lines tell the cost of a good request and of a million good tokens. The exit status is 2 if
    an option is wrong or nothing can be read.
    """
    if as_csv + as_json + focus > 1:
        raise typer.BadParameter("give one of them", param_hint=["--csv", "--json", "--focus"])
    if focus:
        refuse_unused(context, ("by",), f"is {FOCUS_BY} with --focus")
        by = FOCUS_BY
    if db:
        refuse_unused(context, ("admin",), "is of no use with --db")
    else:
        refuse_unused(context, ("policy",), "goes with --db")
    with exits(2, Unanswered, UsageError, ValueError):
        found = _read(db, policy, by, since, until) if db else _asked(admin, by, since, until)
        rows = focus_rows(found) if focus else found["rows"]
    if focus or as_csv:
        _csv(rows)
    elif as_json:
        print_json(found)
    else:
        _print(found)


def _asked(admin: str, by: str, since: str, until: str) -> dict[str, Any]:
    return ask_admin(admin, f"usage?{urlencode({'by': by, 'since': since, 'until': until})}", None)


def _read(db: Sequence[Path], policy: Path | None, by: str, since: str, until: str) -> dict[str, Any]:
    return report(db, question(by, since, until, time.time()), None if policy is None else load(policy))


def _csv(rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _print(found: Mapping[str, Any]) -> None:
    out = console(width=WIDTH)
    has_cost = found["total"]["cost"] is not None
    heads = (*found["by"], *SHOWN, *(("cost",) if has_cost else ()))
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head.replace("_", " "), justify="left" if head in found["by"] else "right")
    for row in found["rows"]:
        table.add_row(*_cells(row, heads))
    if found["by"]:
        table.add_row(*_cells({**dict.fromkeys(found["by"], ""), found["by"][0]: "total", **found["total"]}, heads))
    out.print(table)
    if found["gateways"] > 1:
        out.print(f"of {found['gateways']} gateways")
    if found["unpriced"] and has_cost:
        out.print(f"without a price, and missing in the costs: {', '.join(found['unpriced'])}")
    if found.get("error"):
        out.print(found["error"])
    fleet = found["fleet"]
    if fleet["requests_per_replica"] is not None:
        out.print(
            f"fleet: {fleet['replica_hours']:.1f} replica hours, "
            f"{fleet['requests_per_replica']:.2f} requests at a time on each"
        )
    if fleet["cost"] is not None:
        out.print(f"fleet: {_money(fleet['cost'], found)}{_each(fleet, found)}")


def _each(fleet: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    parts = (
        ("cost_per_good_request", "a good request"),
        ("cost_per_million_good_tokens", "a million tokens of good requests"),
    )
    told = [f"{_money(fleet[name], found)} for {what}" for name, what in parts if fleet[name] is not None]
    return f": {', '.join(told)}" if told else "; nothing was good"


def _money(amount: float, found: Mapping[str, Any]) -> str:
    return f"{amount:.4g} {found['currency']}"


def _cells(row: Mapping[str, Any], heads: Iterable[str]) -> list[str]:
    return [_cell(row[head]) for head in heads]


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.2f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
