"""A page of Markdown for each experiment: its question, figures with targets, one picture, reasons of misses.

The terminal has the other figures and tables.
"""

from __future__ import annotations

import re
from pathlib import Path

from loadtests.charts.grid import Grid, grid_as_markdown
from loadtests.charts.svg import draw
from loadtests.experiments.cells import MEAN, SHORT, WORST
from loadtests.experiments.findings import Findings
from loadtests.experiments.missed import WHY
from loadtests.experiments.runner import Effort
from loadtests.experiments.verdicts import Judged, judged, measured

TOOK = re.compile(r"Takes ([\d.]+) minutes\.")


def took_before_s(name: str, folder: Path) -> float | None:
    """Seconds that the experiment of a page took; None if there is no page, or it does not say."""
    page = folder / f"{name}.md"
    found = TOOK.search(page.read_text()) if page.is_file() else None
    return None if found is None else float(found[1]) * 60.0


def write_page(name: str, about: str, findings: Findings, effort: Effort, folder: Path, took_s: float) -> Path:
    """Write `folder/NAME.md` with the first picture beside it. `took_s`: seconds that the experiment took."""
    title, _, rest = about.partition("\n")
    rows = judged(name, findings, effort)
    parts = [
        f"# {name}",
        title,
        rest.strip(),
        _how(findings, effort, took_s),
        _figures(rows),
    ]
    picture = findings.charts[0] if findings.charts else findings.bars
    parts += [f"![{picture.title}]({picture.name}.svg)"] if picture is not None else []
    if any(row["pass"] is False for row in rows.values()) and name in WHY:
        parts += ["## Missed", WHY[name]]
    parts += findings.notes
    page = folder / f"{name}.md"
    page.write_text("\n\n".join(part for part in parts if part) + "\n")
    if picture is not None:
        draw(picture, folder)
    return page


def _how(findings: Findings, effort: Effort, took_s: float) -> str:
    again = f"Takes {took_s / 60:.1f} minutes."
    if findings.how:
        return f"{findings.how} {again}"
    quick = " (quick: too few seeds and too short for a judgement)" if effort.quick else ""
    return (
        f"{len(findings.seeds)} seeds, {effort.seconds:g} s of arrivals each after a warm-up of {effort.warmup_s:g} s"
        f"{quick}. {again}"
    )


def _figures(rows: dict[str, Judged]) -> str:
    """A table of the figures with a target, and of the worst cell where the mean or the count has one; of all if none
    has a target."""
    cells = []
    targeted = {key for key, row in rows.items() if row["target"] is not None}
    worst = {f"{WORST}{key.removeprefix(part)}" for key in targeted for part in (MEAN, SHORT) if key.startswith(part)}
    for key, row in rows.items():
        if targeted and key not in targeted | worst:
            continue
        value = measured(row["value"])
        value += "" if row["interval"] is None else f" [{row['interval'][0]:.4g}, {row['interval'][1]:.4g}]"
        verdict = {True: "met", False: "**missed**", None: ""}[row["pass"]]
        cells.append([f"`{key}`", value, row["target"] or "reported", verdict])
    return grid_as_markdown(Grid("", ["figure", "value", "target", ""], cells))
