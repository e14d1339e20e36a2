"""`python -m loadtests calibrate`: which engine is this, in the simulator's terms?"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from secrets import randbits
from typing import Annotated

import httpx
import typer
import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.output import console, counted
from gateway.cli.tables import new_table, show
from gateway.sim.workload import Arrival
from loadtests.calibrate.bursts import Failed, bursts
from loadtests.calibrate.check import Checked, Compared, good_s, judged
from loadtests.calibrate.fit import Fitted
from loadtests.calibrate.rounds import Calibrated, Engine, calibrated, steps
from loadtests.commands.asked import keys_of_engine, one_target
from loadtests.commands.written import check_writable
from loadtests.quantiles import PERCENTILES
from loadtests.replay.models import WhichModel, asking, contact, listed
from loadtests.replay.probe import NoContact, reach
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target

CONTEXT_TOKENS = 8192
"""Where the target does not say how long its context is."""
CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LINE_EVERY = 10
"""Steps for which there is a line where there is no terminal for a bar."""
GOOD_FIT = 0.15
GOOD = 0.25


def calibrate_command(
    targets: Annotated[
        list[str],
        typer.Option("--target", metavar="URL", help="One engine, with an OpenAI API; no gateway before it."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")] = Path("profile.json"),
    key: Annotated[str | None, typer.Option(show_default=False, help="Its API key.")] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="A file with its API key on a line.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="The model to ask for; else its first one.")
    ] = None,
    most: Annotated[int, typer.Option(min=16, help="Most requests at once; more than its slots finds those.")] = 160,
    seed: Annotated[
        int | None, typer.Option(help="Of prompts; new ones each time unless given: an engine keeps old ones cached.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often all of it is done: more tell how far the engine is from itself.")
    ] = 5,
    checked: Annotated[
        bool, typer.Option("--check/--no-check", help="See, too, how far off the simulator is on other traffic.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile and how well it fits as JSON.")] = False,
) -> None:
    """Fit a fleet profile to a live engine by a short probe, for `tailgate simulate` and `tailgate plan`.

    Bursts, alone and together, short and long, then mixed requests at various parts of what it carries, five times in
    turn: some 11,500 requests, on an engine that has nothing else to do. Six minutes with one that carries sixty a
    second, a quarter of an hour with one that carries twenty; fewer --rounds make it shorter. Then:

    `python -m loadtests calibrate --target http://127.0.0.1:8000 --out h100.json`

    `tailgate plan --policy policy.yaml --workload chat --rate 40 --fleet h100.json`

    Exit status: 0 there is a profile; 1 no contact, or answers that nothing can be fitted to; 2 wrong options.
    """
    errors = console(stderr=True)
    try:
        first = Target(one_target(targets), model, keys_of_engine(key, keys), Length.EXACT)
    except ValueError as error:
        errors.print(str(error), style="red")
        raise typer.Exit(2) from None
    check_writable(out, "--out")
    try:
        found = uvloop.run(_calibrated(first, most, randbits(32) if seed is None else seed, rounds, out, checked))
    except WhichModel as error:
        errors.print(str(error), style="red")
        raise typer.Exit(2) from None
    except (NoContact, Failed, OSError) as error:
        errors.print(str(error), style="red")
        raise typer.Exit(1) from None
    if found.unchecked is not None:
        errors.print(f"not checked: {found.unchecked}", style="yellow")
    fitted = found.fitted
    if as_json:
        said = {"profile": asdict(fitted.profile), "error": fitted.error, "check": _said(found.checks)}
        print(json.dumps(said, indent=2))
        return
    _tell(fitted, out, checked=bool(found.checks))
    if found.checks:
        _tell_checks(found.checks)


async def _calibrated(target: Target, most: int, seed: int, rounds: int, out: Path, checked: bool) -> Calibrated:
    """What was found, with a bar meanwhile; the profile is written to `out`."""
    named, context, kept = await _about(target)
    terminal = console(stderr=True)
    first = Arrival(0.0, "default", "calibrate", "default", 32, 1)
    named, sizes = await contact(named, first, seed, terminal.print)
    plan = bursts(context, most)
    columns = (TextColumn("calibrating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        total = steps(plan, rounds)
        task = bar.add_task("", total=total)

        def tell() -> None:
            bar.advance(task)
            done = round(bar.tasks[0].completed)
            if not terminal.is_terminal and (done == total or done % LINE_EVERY == 0):
                terminal.print(f"calibrating: {done} of {total}")

        engine = Engine(named, sizes or Sizes(), context, kept)
        found = await calibrated(engine, plan, seed, rounds=rounds, checked=checked, name=out.stem, tell=tell)
    await asyncio.to_thread(out.write_text, json.dumps(asdict(found.fitted.profile), indent=2) + "\n")
    return found


async def _about(target: Target) -> tuple[Target, int, int | None]:
    """The target with a model, the length of its context, and the tokens of its KV cache where it says so."""
    await reach(target)
    try:
        async with asking(target, "default", "calibrate") as client:
            found, page = await listed(client), (await client.get("/metrics")).text
    except httpx.HTTPError as error:
        raise NoContact(f"{target.url} cannot be reached: {error}") from None
    if target.model is None and not isinstance(found, tuple):
        raise NoContact(f"{target.url} lists no models ({found.detail}): say which with --model")
    cards = found if isinstance(found, tuple) else ()
    wanted = target.model or cards[0].id
    context = next((card.max_model_len for card in cards if card.id == wanted), None)
    labels = CACHE.search(page)
    sizes = dict(re.findall(r'(\w+)="(\d+)"', labels.group(1))) if labels else {}
    blocks, block = sizes.get("num_gpu_blocks"), sizes.get("block_size")
    kept = int(blocks) * int(block) if blocks and block else None
    return replace(target, model=wanted), int(context or CONTEXT_TOKENS), kept


def _tell(found: Fitted, out: Path, *, checked: bool) -> None:
    """A check judges the profile better than its fit to single bursts, which an engine's every hiccup is in."""
    profile, terminal = found.profile, console()
    more = "" if found.slots_seen else ", or more: the probe had no more requests (--most)"
    rows = {
        "step": f"{profile.step_base_s * 1e3:.4g} ms",
        "prompt": f"{profile.prefill_s_per_sequence * 1e3:.3g} ms",
        "prompt token": f"{profile.prefill_s_per_token * 1e6:.4g} us",
        "sequence": f"{profile.decode_s_per_sequence * 1e6:.4g} us a step",
        "context": f"{profile.kv_s_per_token * 1e9:.4g} ns a token and step",
        "slots": f"{profile.max_num_seqs}{more}",
        "step holds": f"{profile.max_batched_tokens} tokens",
        "context length": f"{profile.max_model_len} tokens; KV cache {profile.kv_capacity_tokens}",
        "on the way": f"{profile.path_s * 1e3:.3g} ms",
        "fit": f"{found.error:.1%} off in the root mean square",
    }
    for name, value in rows.items():
        terminal.print(f"{name:<16}{value}")
    if found.error > GOOD_FIT and not checked:
        terminal.print("That is a poor fit: was anybody else using the engine, or the processor?", style="yellow")
    terminal.print(f"written to {out}: give it to tailgate simulate or plan as --fleet {out}")


def _said(checks: Sequence[Checked]) -> dict[str, object] | None:
    """The checks as JSON."""
    if not checks:
        return None
    bound_s = good_s(checks)
    loads = [
        {
            "share": one.share,
            "rate": one.rate,
            **{f"ttft_{name}_s": _both(one.ttft_s(name)) for name in PERCENTILES},
            "ttft_p99_overlaps": one.p99_overlaps,
            "tpot_p50_s": _both(one.tpot_s()),
            "good": _both(one.goodput(bound_s)),
        }
        for one in checks
    ]
    most_off, apart = (value if value < math.inf else None for value in _worst(checks))
    return {"most_off": most_off, "engine_apart": apart, "good_s": bound_s, "loads": loads}


def _both(figure: Compared) -> dict[str, float]:
    return {
        "engine": figure.live,
        "simulated": figure.told,
        "engine_least": figure.least,
        "engine_most": figure.most,
    }


def _worst(checks: Sequence[Checked]) -> tuple[float, float]:
    """The most that a figure is off, and the most that the engine is off itself, as shares."""
    figures = list(judged(checks))
    return max(one.off for one in figures), max(one.apart for one in figures)


def _tell_checks(checks: Sequence[Checked]) -> None:
    table = new_table("load", "requests/s", *(f"TTFT {name}" for name in PERCENTILES), "TPOT p50", "good")
    bound_s, rounds = good_s(checks), len(checks[0].live)
    for one in checks:
        times, good = [*map(one.ttft_s, PERCENTILES), one.tpot_s()], one.goodput(bound_s)
        cells = [f"{figure.live * 1e3:.3g} / {figure.told * 1e3:.3g}" for figure in times]
        table.add_row(f"{one.share:.0%}", f"{one.rate:.3g}", *cells, f"{good.live:.3f} / {good.told:.3f}")
        if rounds > 1:
            spread = [f"{figure.least * 1e3:.3g} to {figure.most * 1e3:.3g}" for figure in times]
            table.add_row("", "engine", *spread, f"{good.least:.3f} to {good.most:.3f}")
    terminal = console()
    show(
        terminal,
        table,
        f"The simulator with this profile, on other traffic (ms: engine / simulated; {counted(rounds, 'round')})",
    )
    terminal.print(f"good: a first token within {bound_s * 1e3:.3g} ms, twice the median at {checks[0].share:.0%}")
    most_off, apart = _worst(checks)
    said = f"at most {most_off:.0%} off in the p50, the p95 and goodput"
    if rounds > 1:
        said += f"; the engine was up to {apart:.0%} from itself, from one round to another"
    trusted = most_off <= GOOD
    terminal.print(said if trusted else said + ": do not trust plans made with it", style="" if trusted else "yellow")
