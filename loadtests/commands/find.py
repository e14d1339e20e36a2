"""`tailgate load find`: the highest rate at which a target keeps its promises."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import orjson
import typer
import uvloop

from gateway.cli.output import console, exits
from gateway.cli.quantities import finite, seconds
from loadtests.charts.chart import Chart, Line
from loadtests.charts.svg import draw
from loadtests.commands.options import (
    AdminOption,
    ExtraOption,
    GoodputOption,
    KeyOption,
    MaxLateOption,
    MixOption,
    ModelOption,
    PolicyOption,
    PromptsOption,
    SeedOption,
    TargetOption,
    WorkloadOption,
)
from loadtests.commands.verdicts import WRONG, Judged, Options, print_counted
from loadtests.terminal.written import make_folder, writing
from loadtests.verdict.promises import Verdict
from loadtests.verdict.search import Found, search
from loadtests.verdict.step import FIND_WRONG, Step

FORMAT, VERSION = "tailgate-highest-rate", 2
FILE = "find.json"


def find_command(
    targets: TargetOption,
    policy: PolicyOption,
    workload: WorkloadOption = None,
    prompts: PromptsOption = None,
    mix: MixOption = None,
    key: KeyOption = None,
    model: ModelOption = None,
    extra: ExtraOption = None,
    goodput: GoodputOption = 0.99,
    from_: Annotated[
        float,
        typer.Option("--from", min=1e-3, callback=finite, metavar="RATE", help="Rate to begin at."),
    ] = 1.0,
    up_to: Annotated[
        float, typer.Option("--up-to", min=1e-3, callback=finite, metavar="RATE", help="Highest rate to try.")
    ] = 1000.0,
    each: Annotated[float, typer.Option(parser=seconds(10.0), metavar="S", help="Longest time at one rate.")] = 120.0,
    budget: Annotated[float, typer.Option(parser=seconds(10.0), metavar="S", help="Longest time in all.")] = 1800.0,
    cool: Annotated[float, typer.Option(parser=seconds(0.0), metavar="S", help="Pause after a broken promise.")] = 5.0,
    seed: SeedOption = 1,
    max_late: MaxLateOption = 10.0,
    admin: AdminOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", show_default=False, help="Folder for find.json and a picture.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print find.json.")] = False,
) -> None:
    """Find the highest rate at which every percentile of the policy, and the goodput, are kept.

    The rate is doubled until a promise breaks; then rates in between are asked, and others near the knee that all of
    them tell, until its interval is within 4%.

    `tailgate load find --target http://127.0.0.1:8080 --policy policy.yaml --workload chat`

    Exit status 0: found. 1: not even the lowest rate keeps them. 2: wrong options, or no contact. 3: the generator fell
    behind, so the target may do more. 4: the budget or --up-to ended the search first. 130: stopped.
    """
    errors = console(stderr=True)
    if out is not None:
        make_folder(out, "--out")
    with exits(2, *WRONG):
        options = Options(
            targets, policy, workload, prompts, mix, key or [], model, extra, goodput, seed, max_late / 1e3, admin
        )
        judged = Judged(options)
        found = uvloop.run(_found(judged, (from_, up_to), each, budget, cool))
    document = as_document(found)
    if out is not None:
        with writing(out, "--out"):
            (out / FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            draw(picture(found), out)
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        console().print(headline(found), style="bold")
    if not all(one.on_time for one in found.steps):
        errors.print(
            "The search ended because the generator was late: the target may do more. Give the generator a core, or "
            "accept more by --max-late",
            style="red",
        )
    raise typer.Exit(status(found))


async def _found(judged: Judged, ends: tuple[float, float], each_s: float, budget_s: float, cool_s: float) -> Found:
    errors = console(stderr=True)
    await judged.prepare(errors)
    until_s = monotonic() + budget_s

    async def ask(rate_per_s: float, number: int) -> Step:
        one = await judged.at(rate_per_s, FIND_WRONG, each_s, errors, number)
        for promised in one.judgements:
            print_counted(promised, judged.shares, errors)
        if not one.seems_kept:
            await asyncio.sleep(cool_s)  # what was left open is still in the engine
        return one

    return await search(ask, *ends, lambda: monotonic() < until_s)


def headline(found: Found) -> str:
    """The result in one sentence."""
    if not found.kept_per_s:
        return f"Broken even at {found.broken_per_s:.3g} requests/s: {found.broke}."
    if not found.broke:
        is_sure = any(one.verdict is Verdict.PASS for one in found.steps if one.rate_per_s == found.kept_per_s)
        up_to = f"up to {found.kept_per_s:.4g} requests/s{'' if is_sure else ', from too few requests to be sure'}"
        return f"{'Kept' if is_sure else 'Not broken'} {up_to}; nothing higher was asked."
    low, high = found.knee.low_per_s, found.knee.high_per_s
    return f"{found.rate_per_s:.4g} requests/s ({low:.4g} to {high:.4g}). First to break: {found.broke}."


def status(found: Found) -> int:
    """The exit status."""
    if any(one.interrupted for one in found.steps):
        return 130
    if not all(one.on_time for one in found.steps):
        return 3
    if not found.kept_per_s:
        return 1
    return 0 if found.is_narrow else 4


def as_document(found: Found) -> dict[str, Any]:
    """The search, as JSON has it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rate_per_s": found.rate_per_s,
        "low_per_s": found.knee.low_per_s,
        "high_per_s": None if math.isinf(found.knee.high_per_s) else found.knee.high_per_s,
        "first_to_break": found.broke or None,
        "complete": found.is_narrow,
        "steps": [
            {
                "rate_per_s": one.rate_per_s,
                "seconds": one.seconds,
                "requests": one.sent,
                "verdict": one.verdict.value,
                "kept": one.seems_kept,
                "worst": one.worst.promise.name,
                "worst_share": None if one.worst.kept is None else one.worst.kept.share,
            }
            for one in found.steps
        ],
    }


def picture(found: Found) -> Chart:
    """The share that kept the worst promise, over the rate."""
    steps = sorted((one for one in found.steps if one.worst.kept is not None), key=lambda one: one.rate_per_s)
    kept = [one.worst.kept for one in steps]
    line = Line(
        "worst promise, with its interval",
        [one.rate_per_s for one in steps],
        [of.share for of in kept if of is not None],
        [of.low for of in kept if of is not None],
        [of.high for of in kept if of is not None],
    )
    marks = {f"{found.rate_per_s:.3g}/s": found.rate_per_s} if found.rate_per_s else {}
    title = "Share of requests that keep the promise that is broken most"
    return Chart("find", title, "requests/s offered", "share", [line], marks=marks, most_y=1.0)
