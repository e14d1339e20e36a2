"""What a calibration found, told: the profile, and how far off the simulator is with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.output import console, counted
from gateway.cli.tables import new_table, show
from loadtests.calibrate.check import Checked, Compared, good_s, judged
from loadtests.calibrate.fit import Fitted
from loadtests.quantiles import PERCENTILES

GOOD_FIT = 0.15
"""Root mean square of what a fit may be off without a word, where no check judges the profile."""
GOOD = 0.25
"""The most that a check may be off for plans made with the profile to be trusted."""


def tell_profile(found: Fitted, out: Path, *, checked: bool) -> None:
    """The profile in words.

    A check judges it better than its fit to single bursts, which an engine's every hiccup is in.
    """
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


def checks_as_json(checks: Sequence[Checked]) -> dict[str, object] | None:
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


def tell_checks(checks: Sequence[Checked]) -> None:
    """How far off the simulator is on the traffic of the check, and whether to trust it."""
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
