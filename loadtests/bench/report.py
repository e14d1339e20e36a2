"""The results of the bench: tables for people, JSON for programs."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from loadtests.bench.arithmetic import median_ratio
from loadtests.bench.claims import State, Verdict
from loadtests.bench.rounds import Effort
from loadtests.bench.section import Section
from loadtests.peers.install import VLLM_ROUTER
from loadtests.processes import Cores

COLOURS = {State.MET: "green", State.MISSED: "red", State.VOID: "red", State.SKIPPED: "yellow"}
PEERS = ("vllm-router", "nginx")


def section_table(section: Section) -> Table:
    """One row per target: median, spread, and the ratio to each peer."""
    table = Table(title=f"{section.name}: {section.unit}", title_justify="left")
    table.add_column("target")
    for column in ("median", "least", "most", *(f"/ {peer}" for peer in PEERS)):
        table.add_column(column, justify="right")
    for name, values in section.values.items():
        typical = section.typical(name)
        ratios = [_ratio(section, name, peer) for peer in PEERS]
        table.add_row(name, f"{typical:.2f}", f"{min(values):.2f}", f"{max(values):.2f}", *ratios)
    return table


def _ratio(section: Section, name: str, peer: str) -> str:
    # A latency is the time that a target adds, which is often nearly 0. So a ratio of two such times would mean
    # nothing.
    if peer not in section.values or peer == name or section.name == "latency":
        return ""
    return f"{median_ratio(section.values[name], section.values[peer]):.2f}"


def verdict_table(verdicts: list[Verdict]) -> Table:
    """One row per claim."""
    table = Table(title="targets", title_justify="left")
    for column, side in (("claim", "left"), ("measured", "right"), ("at most", "right"), ("", "left")):
        table.add_column(column, justify="right" if side == "right" else "left")
    for verdict in verdicts:
        measured = "" if verdict.measured is None else f"{verdict.measured:.2f}"
        state = f"[{COLOURS[verdict.state]}]{verdict.state}[/]"
        table.add_row(str(verdict.claim), measured, f"{verdict.claim.limit:.2f}", state)
    return table


QUIET = 0.1
"""If other processes use more than this share (0-1) of the machine, figures are called noisy."""


def show(
    console: Console, sections: Mapping[str, Section], verdicts: list[Verdict], cores: Cores, others: float | None
) -> None:
    """Print everything."""
    for section in sections.values():
        console.print(section_table(section))
        for name, reason in section.skipped.items():
            console.print(f"{name} skipped: {reason}", style="yellow", highlight=False)
        for name, errors in section.errors.items():
            console.print(f"{name} void: {errors[0]}", style="red", highlight=False)
        console.print()
    console.print(verdict_table(verdicts))
    console.print(f"{machine()['cpu']}, {cores}, unless a table says otherwise.", style="dim", highlight=False)
    if others is not None and others > QUIET:
        noise = f"Other processes used {others:.0%} of the machine: ratios are noisy, latencies worthless."
        console.print(noise, style="yellow", highlight=False)


def machine() -> dict[str, str]:
    """The machine and the software of the measurement."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "vllm_router": VLLM_ROUTER,
        **{name: version(name) for name in ("uvicorn", "uvloop", "httptools", "orjson")},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def as_json(
    sections: Mapping[str, Section], verdicts: list[Verdict], effort: Effort, cores: Cores, others: float | None
) -> dict[str, object]:
    """All raw rounds, and the verdicts on them."""
    return {
        "machine": machine() | {"cores": str(cores)},
        "share_of_others": others,
        "effort": asdict(effort),
        "sections": {name: asdict(section) for name, section in sections.items()},
        "claims": [asdict(verdict) for verdict in verdicts],
    }
