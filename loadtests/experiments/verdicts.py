"""Compares findings with targets, for programs and for exit codes."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import TypedDict

from loadtests.experiments.findings import Findings
from loadtests.experiments.runner import Effort
from loadtests.experiments.targets import START, TARGETS

Judged = TypedDict(
    "Judged",
    {"value": float | None, "interval": list[float] | None, "target": str | None, "pass": bool | None, "n": int},
)


def judged(name: str, findings: Findings, effort: Effort) -> dict[str, Judged]:
    """Every figure, with its target and whether it is met; both are None if the figure has no target.

    A target without a figure is not met, and its value is None; a quick run, and one of what was set aside, may leave
    some out. Cells that were set aside are not compared with the start, which had other cells.
    """
    targets = TARGETS.get(name, {})
    if effort.set_aside:
        targets = {key: target for key, target in targets.items() if key not in START.get(name, {})}
    rows: dict[str, Judged] = {}
    for key, found in findings.figures.items():
        target = targets.get(key)
        rows[key] = {
            "value": found.value,
            "interval": None if found.low is None or found.high is None else [found.low, found.high],
            "target": None if target is None else str(target),
            "pass": None if target is None else target.met(found),
            "n": found.n,
        }
    for key, target in () if effort.quick or effort.set_aside else targets.items():
        if key not in rows:
            rows[key] = {"value": None, "interval": None, "target": str(target), "pass": False, "n": 0}
    return rows


def measured(value: float | None) -> str:
    """A figure for people; "not measured" if it is None."""
    return "not measured" if value is None else f"{value:.4g}"


def as_json(name: str, findings: Findings, effort: Effort) -> dict[str, object]:
    """The findings of one experiment as one document."""
    return {
        "name": name,
        "figures": plain(judged(name, findings, effort)),
        "seeds": list(findings.seeds),
        "n": len(findings.seeds),
        "effort": asdict(effort),
        "tables": [asdict(grid) for grid in findings.grids],
        "notes": findings.notes,
        "raw": plain(findings.raw),
    }


def plain(value: object) -> object:
    """A value as JSON: dataclasses become objects, infinity becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
