"""`python -m loadtests calibrate`: which engine is this, in the simulator's terms?"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Annotated

import httpx
import typer
import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.cli.output import console
from gateway.cli.tables import new_table, show
from gateway.sim.workload import Arrival
from loadtests.calibrate.bursts import Failed, bursts, send, sent
from loadtests.calibrate.check import CONNECTIONS, FIGURES, SHARES, Checked, check, full, good_s, mixed, worst
from loadtests.calibrate.fit import Fitted, fit
from loadtests.replay.probe import NoContact, probe
from loadtests.replay.prompts import Sizes
from loadtests.replay.target import Length, Target

CONTEXT_TOKENS = 8192
"""Where the target does not say how long its context is."""
CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
GOOD_FIT = 0.15
FITTED_SHARE, FITTED_REQUESTS = 0.6, 240
GOOD = 0.25
SIDES = ("engine", "simulated")


def calibrate_command(
    target: Annotated[str, typer.Option(metavar="URL", help="One engine, with an OpenAI API; no gateway before it.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")] = Path("profile.json"),
    key: Annotated[str, typer.Option(help="Its API key.")] = "",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="The model to ask for; else its first one.")
    ] = None,
    most: Annotated[int, typer.Option(min=16, help="Most requests at once; more than its slots finds those.")] = 160,
    seed: Annotated[
        int | None, typer.Option(help="Of prompts; new ones each time unless given: an engine keeps old ones cached.")
    ] = None,
    checked: Annotated[
        bool, typer.Option("--check/--no-check", help="Then see how far off the simulator is on other traffic.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile and how well it fits as JSON.")] = False,
) -> None:
    """Fit a fleet profile to a live engine by a short probe, for `tailgate simulate` and `tailgate plan`.

    Some hundred requests, alone and together, short and long, then mixed ones at half and at three quarters of what
    it carries: half a minute to some minutes, on an engine that has nothing else to do. Then:

    `python -m loadtests calibrate --target http://127.0.0.1:8000 --out h100.json`

    `tailgate plan --policy policy.yaml --workload chat --rate 40 --fleet h100.json`

    Exit status: 0 there is a profile; 1 no contact, or answers that nothing can be fitted to; 2 wrong options.
    """
    errors = console(stderr=True)
    try:
        first = Target(target.rstrip("/"), model, key, {}, Length.EXACT)
    except ValueError as error:
        errors.print(str(error), style="red")
        raise typer.Exit(2) from None
    try:
        found, checks = uvloop.run(_calibrated(first, most, seed, out, checked))
    except (NoContact, Failed, OSError, httpx.HTTPError) as error:
        errors.print(str(error), style="red")
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps({"profile": asdict(found.profile), "error": found.error, "check": _said(checks)}, indent=2))
        return
    _tell(found, out)
    if checks:
        _tell_checks(checks)


async def _calibrated(
    target: Target, most: int, seed: int | None, out: Path, checked: bool
) -> tuple[Fitted, list[Checked]]:
    """The profile, written to `out`, and the checks of it: none if they were not wanted, or if one went wrong."""
    named, context, kept = await _about(target)
    seed = randbits(32) if seed is None else seed
    sizes = await probe(named, Arrival(0.0, "default", "calibrate", "default", 32, 1), seed) or Sizes()
    plan = bursts(context, most)
    terminal = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("probing", total=len(plan))
        seen = await send(plan, named, sizes, seed, lambda done: bar.update(task, completed=done))
        bar.reset(task, description="fitting", total=None)
        found = await asyncio.to_thread(fit, seen, context, kept, out.stem)
        seeds = Random(f"{seed} mixed")
        arrivals = mixed(found.profile, FITTED_SHARE * full(found.profile), seeds.getrandbits(32), FITTED_REQUESTS)
        bar.reset(task, description="probing mixed traffic", total=None)
        together = await sent(arrivals, named, sizes, seeds, CONNECTIONS)
        bar.reset(task, description="fitting", total=None)
        found = await asyncio.to_thread(fit, seen, context, kept, out.stem, together)
        await asyncio.to_thread(out.write_text, json.dumps(asdict(found.profile), indent=2) + "\n")
        if not checked:
            return found, []
        bar.reset(task, description="checking", total=len(SHARES))
        try:
            return found, await check(found.profile, named, sizes, seed, lambda: bar.advance(task))
        except (Failed, OSError) as error:
            terminal.print(f"not checked: {error}", style="yellow")
            return found, []


async def _about(target: Target) -> tuple[Target, int, int | None]:
    """The target with a model, the length of its context, and the tokens of its KV cache where it says so."""
    base = target.url.removesuffix("/v1")
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=10.0) as client:
        answer = await client.get("/v1/models")
        listed = answer.json().get("data", []) if answer.status_code == 200 else []
        wanted = target.model or (listed[0]["id"] if listed else None)
        if wanted is None:
            raise NoContact(f"{target.url} lists no models ({answer.status_code}): say which with --model")
        context = next((row.get("max_model_len") for row in listed if row["id"] == wanted), None)
        page = (await client.get("/metrics")).text
    labels = CACHE.search(page)
    sizes = dict(re.findall(r'(\w+)="(\d+)"', labels.group(1))) if labels else {}
    blocks, block = sizes.get("num_gpu_blocks"), sizes.get("block_size")
    kept = int(blocks) * int(block) if blocks and block else None
    return Target(target.url, wanted, target.key, {}, target.length), int(context or CONTEXT_TOKENS), kept


def _tell(found: Fitted, out: Path) -> None:
    profile, terminal = found.profile, console()
    more = "" if found.slots_seen else ", or more: the probe had no more requests (--most)"
    rows = {
        "step": f"{profile.step_base_s * 1e3:.4g} ms",
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
    if found.error > GOOD_FIT:
        terminal.print("That is a poor fit: was anybody else using the engine, or the processor?", style="yellow")
    terminal.print(f"written to {out}: give it to tailgate simulate or plan as --fleet {out}")


def _said(checks: Sequence[Checked]) -> dict[str, object] | None:
    """The checks as JSON."""
    if not checks:
        return None
    bound_s, most_off = good_s(checks), worst(checks)
    loads = [
        {
            "share": one.share,
            "rate": one.rate,
            **{f"ttft_{name}_s": dict(zip(SIDES, one.ttft_s(name), strict=True)) for name in FIGURES},
            "ttft_p99_overlaps": one.p99_overlaps,
            "tpot_p50_s": dict(zip(SIDES, one.tpot_s(), strict=True)),
            "good": dict(zip(SIDES, one.goodput(bound_s), strict=True)),
        }
        for one in checks
    ]
    return {"most_off": most_off if most_off < math.inf else None, "good_s": bound_s, "loads": loads}


def _tell_checks(checks: Sequence[Checked]) -> None:
    table = new_table("load", "requests/s", *(f"TTFT {name}" for name in FIGURES), "TPOT p50", "good")
    bound_s = good_s(checks)
    for one in checks:
        times = [one.ttft_s(name) for name in FIGURES] + [one.tpot_s()]
        cells = [f"{live * 1e3:.3g} / {told * 1e3:.3g}" for live, told in times]
        good = " / ".join(f"{value:.3f}" for value in one.goodput(bound_s))
        table.add_row(f"{one.share:.0%}", f"{one.rate:.3g}", *cells, good)
    terminal = console()
    show(terminal, table, "The simulator with this profile, on other traffic (ms: engine / simulated)")
    terminal.print(f"good: a first token within {bound_s * 1e3:.3g} ms, twice the median at {checks[0].share:.0%}")
    off = worst(checks)
    said = f"at most {off:.0%} off in the p50, the p95 and goodput"
    terminal.print(
        said if off <= GOOD else said + ": do not trust plans made with it", style="" if off <= GOOD else "yellow"
    )
