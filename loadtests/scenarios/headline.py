"""The picture of README.md: `python -m loadtests.scenarios.headline docs/results/scenarios/overload.md docs/results`.

Drawn from the table of a scenario's page, so it shows what was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadtests.charts.chart import Chart, Line
from loadtests.charts.svg import draw

CONTENDERS = {"nginx": "nginx", "tailgate": "tailgate"}
BOUND_S = 2.0
"""The TTFT objective of the premium tier (loadtests/scenarios/policies/tiers.yaml)."""


def rows_of(page: str) -> dict[str, list[dict[str, str]]]:
    """The rows of the page's table by contender, in order of the load."""
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines() if line[:2] == "| "]
    head, *rows = [cells for cells in lines if len(cells) > 4]
    columns = head if head[0] == "" else ["", *head]
    found: dict[str, list[dict[str, str]]] = {}
    for cells in rows:
        name = cells[0].split(" ")[0]
        found.setdefault(name, []).append(dict(zip(columns, cells, strict=True)))
    return found


def pictures(page: str) -> list[Chart]:
    """Goodput, and the paying tier's time to the first token, over the offered load."""
    rows = rows_of(page)
    good, first = [], []
    for name, called in CONTENDERS.items():
        offered = [float(row["offered/s"]) for row in rows[name]]
        bold = name == "tailgate"
        good.append(Line(called, offered, [float(row["good/s"]) for row in rows[name]], bold=bold))
        first.append(Line(called, offered, [float(row["p99, s"]) for row in rows[name]], bold=bold))
    ends = [good[0].x[0], good[0].x[-1]]
    good.append(Line("all that is offered", ends, ends, dashed=True))
    x = "requests/s offered"
    return [
        Chart("overload-goodput", "Goodput: requests within their promises, per second", x, "requests/s", good),
        Chart(
            "overload-ttft",
            "Time to the first token of the paying tier, p99",
            x,
            "seconds",
            first,
            log_y=True,
            levels={f"promised: {BOUND_S:g} s": BOUND_S},
        ),
    ]


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    for picture in pictures(source.read_text()):
        draw(picture, target)
