"""The result of a calibration: the profile, and how far off the simulator is with it."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from gateway.cli.output import console, counted
from gateway.cli.tables import new_table, show
from loadtests.calibrate.check import Compared, good_s
from loadtests.calibrate.rounds import GOOD_FIT, Calibrated, Engine
from loadtests.quantiles import PERCENTILES

ASSUMED = " (assumed: the engine does not say)"


def tell(found: Calibrated, out: Path) -> None:
    """The profile in words, and how far off the simulator is with it."""
    _tell_profile(found, out)
    if found.checks:
        _tell_checks(found)


def as_json(found: Calibrated) -> dict[str, object]:
    """The calibration for a program."""
    return {
        "profile": asdict(found.fitted.profile),
        "error": found.fitted.error,
        "check": _checks(found),
        "unchecked": found.unchecked,
        "trusted": found.trusted,
        "assumed": [name for name, said in _said(found.engine).items() if not said],
    }


def _said(engine: Engine) -> dict[str, bool]:
    """The facts that an engine may report, and whether this one reports them."""
    return {
        "max_model_len": engine.said_context_tokens is not None,
        "kv_capacity_tokens": engine.kv_capacity_tokens is not None,
    }


def _tell_profile(found: Calibrated, out: Path) -> None:
    profile, terminal = found.fitted.profile, console()
    context, cache = ("" if said else ASSUMED for said in _said(found.engine).values())
    more = "" if found.fitted.slots_seen else ", or more: the probe had too few requests to find out (--most)"
    rows = {
        "step": f"{profile.step_base_s * 1e3:.4g} ms",
        "prompt": f"{profile.prefill_s_per_sequence * 1e3:.3g} ms",
        "prompt token": f"{profile.prefill_s_per_token * 1e6:.4g} us",
        "sequence": f"{profile.decode_s_per_sequence * 1e6:.4g} us a step",
        "context": f"{profile.kv_s_per_token * 1e9:.4g} ns a token and step",
        "slots": f"{profile.max_num_seqs}{more}",
        "step holds": f"{profile.max_batched_tokens} tokens",
        "context length": f"{profile.max_model_len} tokens{context}",
        "KV cache": f"{profile.kv_capacity_tokens} tokens{cache}",
        "on the way": f"{profile.path_s * 1e3:.3g} ms",
        "fit": f"{found.fitted.error:.1%} off in the root mean square",
    }
    for name, value in rows.items():
        terminal.print(f"{name:<16}{value}")
    if not found.checks and found.fitted.error > GOOD_FIT:
        terminal.print("That is a poor fit: did something else use the engine or the processor?", style="yellow")
    terminal.print(f"written to {out}: give it to tailgate simulate or plan as --fleet {out}")


def _checks(found: Calibrated) -> dict[str, object] | None:
    if not (checks := found.checks):
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
    most_off, apart = (value if value < math.inf else None for value in (found.most_off, found.engine_apart))
    return {"most_off": most_off, "engine_apart": apart, "good_s": bound_s, "loads": loads}


def _both(figure: Compared) -> dict[str, float]:
    return {
        "engine": figure.live,
        "simulated": figure.told,
        "engine_least": figure.least,
        "engine_most": figure.most,
    }


def _tell_checks(found: Calibrated) -> None:
    checks = found.checks
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
    said = f"at most {found.most_off:.0%} off in the p50, the p95 and goodput"
    if rounds > 1:
        said += f"; the engine itself varied by up to {found.engine_apart:.0%} from round to round"
    if not found.trusted:
        said += ": do not trust plans that use it"
    terminal.print(said, style="" if found.trusted else "yellow")
