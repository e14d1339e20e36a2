"""`tailgate load calibrate`: fits a profile of a live engine for the simulator."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from secrets import randbits
from typing import Annotated

import typer
import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.output import console, exits
from gateway.sim.workload.arrivals import Arrival
from loadtests.calibrate import told
from loadtests.calibrate.about import about
from loadtests.calibrate.bursts import Failed, bursts
from loadtests.calibrate.rounds import Calibrated, Engine, calibrated, steps
from loadtests.commands.asked import keys_of_engine, one_target
from loadtests.replay.models import WhichModel, contact
from loadtests.replay.probe import NoContact
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target
from loadtests.terminal.written import check_writable

LINE_EVERY = 10
"""Steps between two lines of progress if there is no terminal."""


def calibrate_command(
    targets: Annotated[
        list[str],
        typer.Option("--target", metavar="URL", help="One engine with an OpenAI API, without a gateway."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")] = Path("profile.json"),
    key: Annotated[str | None, typer.Option(show_default=False, help="Its API key.")] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="A file whose only line is the API key.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="The model to ask for; by default the first that it lists."
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(min=16, help="Most requests at once; if above its slots, the slots are found.")
    ] = 160,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the prompts; by default a new one, since an engine may still cache old prompts."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; more show how much the engine itself varies.")] = 5,
    checked: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the simulator on other traffic, too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile and how well it fits as JSON.")] = False,
) -> None:
    """Fit a fleet profile to a live engine by a short probe, for `tailgate simulate` and `tailgate plan`.

    It sends bursts of short and of long requests, alone and together. Mixed requests at various parts of the engine's
    capacity follow. Five rounds send some 11,500 requests to an engine that has nothing else to do. If the engine
    serves 60 requests/s, they take six minutes; at 20, a quarter of an hour. Fewer --rounds take less:

    `tailgate load calibrate --target http://127.0.0.1:8000 --out h100.json`

    `tailgate plan --policy policy.yaml --workload chat --rate 40 --fleet h100.json`

    Exit status: 0 for a trusted profile; 1 without contact, or if no profile fits the answers; 2 for wrong options; 3
    for an untrusted profile. An untrusted profile is more than 25% off (without a check, in the fit more than 15%), or
    could not be checked.
    """
    errors = console(stderr=True)
    with exits(2, ValueError):
        first = Target(one_target(targets), model, keys_of_engine(key, keys), Length.EXACT)
    check_writable(out, "--out")
    with exits(1, NoContact, Failed, OSError), exits(2, WhichModel):
        found = uvloop.run(_calibrated(first, most, randbits(32) if seed is None else seed, rounds, out, checked))
    if found.unchecked is not None:
        errors.print(f"not checked: {found.unchecked}", style="yellow")
    if as_json:
        print(json.dumps(told.as_json(found), indent=2))
    else:
        told.tell(found, out)
    if not found.trusted:
        raise typer.Exit(3)


async def _calibrated(target: Target, most: int, seed: int, rounds: int, out: Path, checked: bool) -> Calibrated:
    """Run the calibration under a progress bar. The profile is written to `out`."""
    named, context, kept = await about(target)
    terminal = console(stderr=True)
    first = Arrival(0.0, "default", "calibrate", "default", 32, 1)
    named, sizes = await contact(named, first, seed, terminal.print)
    engine = Engine(named, sizes or Sizes(), context, kept)
    plan = bursts(engine.context_tokens, most)
    columns = (TextColumn("calibrating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        total = steps(plan, rounds)
        task = bar.add_task("", total=total)

        def tell() -> None:
            bar.advance(task)
            done = round(bar.tasks[0].completed)
            if not terminal.is_terminal and (done == total or done % LINE_EVERY == 0):
                terminal.print(f"calibrating: {done} of {total}")

        found = await calibrated(engine, plan, seed, rounds=rounds, checked=checked, name=out.stem, tell=tell)
    await asyncio.to_thread(out.write_text, json.dumps(asdict(found.fitted.profile), indent=2) + "\n")
    return found
