"""Writes the result of a scenario: as JSON, as a page of HTML or Markdown, and as text."""

from __future__ import annotations

from html import escape
from pathlib import Path

import orjson

from loadtests.charts.grid import grid_as_markdown
from loadtests.charts.svg import draw
from loadtests.report.page import document, figures, table, unit
from loadtests.report.trust import fell_behind
from loadtests.scenarios.picture import grid, pictures
from loadtests.scenarios.run import MAX_LATE_S, QUICK, Played


def write(played: Played, name: str, out: Path) -> None:
    """Write scenario.json and the pictures."""
    for picture in pictures(played.scenario, played.reports, name):
        draw(picture, out, unit(picture))
    said = {
        "scenario": name,
        "title": played.scenario.title,
        "skipped": played.skipped,
        "broken": [
            {"contender": contender, "times": times, "why": why} for (contender, times), why in played.broken.items()
        ],
        "interrupted": played.interrupted,
        "tests": [
            {"contender": contender, "times": times, "report": found}
            for (contender, times), found in played.reports.items()
        ],
    }
    (out / "scenario.json").write_bytes(orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


COUNTED = "Answered: ended in that time. Good: due in it, and within the objectives."
"""For a page that stands alone; docs/guides/loadtesting.md says so for those in docs/results."""


def as_page(played: Played, name: str) -> str:
    """The text of scenario.html: the table, the pictures, and notes on them."""
    scenario = played.scenario
    found = grid(scenario, played.reports)
    parts = [
        f"<h1>{escape(scenario.title)}</h1>",
        f'<p class="about">{escape(" ".join(scenario.about.split()))}</p>',
        f"<p>{escape(how(played))} {COUNTED}</p>",
        *(f'<p class="warning">{escape(note)}</p>' for note in notes(played)),
        figures(pictures(scenario, played.reports, name)),
        "<h2>Everybody</h2>",
        table(found.columns, found.rows),
    ]
    return document(scenario.title, parts)


def write_docs(played: Played, name: str, folder: Path) -> Path:
    """A page of Markdown, with the picture of goodput beside it."""
    of, reports = played.scenario, played.reports
    drawn = [draw(picture, folder, unit(picture)) for picture in pictures(of, reports, name)[:1]]
    parts = [
        f"# {name}",
        of.title + ".",
        " ".join(of.about.split()),
        how(played),
        *(f"![{path.stem}]({path.name})" for path in drawn),
        grid_as_markdown(grid(of, reports)),
        *(f"**{note}.**" for note in notes(played)),
    ]
    path = folder / f"{name}.md"
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
    return path


def how(played: Played) -> str:
    """An explanation of the rows; empty if no test was played."""
    tests = list(played.reports.values())
    if not tests:
        return ""
    late = max(of["generator"]["late_p99_s"] for of in tests)
    return (
        f"{played.scenario.replicas} emulated replicas at {played.scenario.time_scale:g} times their speed; "
        f"{tests[0]['seconds']:.0f} s count: answered are those that ended then, good those that were due then. The "
        f"generator's p99 lateness: {1e3 * late:.1f} ms ({1e3 * MAX_LATE_S:.0f} allowed)."
    )


def notes(played: Played) -> list[str]:
    """Warnings that a reader needs before the figures."""
    found = [f"{name} was left out: {why}" for name, why in played.skipped.items()]
    for (contender, times), why in played.broken.items():
        found.append(f"{contender} {times:g}x broke off: {why.splitlines()[0]}")
    if played.interrupted:
        found.append("Interrupted: tests that were not over are missing")
    if played.quick:
        found.append(f"A quick run, {QUICK:g} of the time: it only shows that all of it works")
    for (contender, times), of in played.reports.items():
        if (behind := fell_behind(of["generator"])) is not None:
            found.append(f"{contender} {times:g}x: {behind}: not to be trusted")
    return found
