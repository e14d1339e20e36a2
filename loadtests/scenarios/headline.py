"""The picture of README.md: `python -m loadtests.scenarios.headline docs/results` plays it, in about six minutes.

It is the scenario `overload`, shorter, and with two contenders. Its table goes into the page, and pictures are drawn
from the page: so they show what was measured.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadtests.charts.chart import Chart, Line
from loadtests.charts.svg import draw
from loadtests.scenarios.file import OURS, ScenarioFile
from loadtests.scenarios.load import load_scenario
from loadtests.scenarios.run import STARTING, Played, play_scenario
from loadtests.scenarios.told import how, notes

PAGE = "overload.md"
CONTENDERS = ("nginx", OURS)
SWEEP = [0.5, 1.0, 1.5, 2.5]
LASTS_S, WARMUP_S, GRACE_S = 35.0, 15.0, 10.0
BOUND_S = 2.0
"""The TTFT objective of the premium tier (loadtests/scenarios/policies/tiers.yaml)."""
TRIES = 3
"""A test whose generator was late is played again: whatever its figures are, they count for nothing."""
TIER = "premium"
COLUMNS = ("behind", "offered/s", "answered/s", "good/s", f"{TIER} TTFT p99, s")
TABLE = re.compile(r"^\| behind .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
HOW = re.compile(r"^\d+ emulated replicas .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def scenario() -> ScenarioFile:
    """The scenario `overload`, as short as the picture allows."""
    overload = load_scenario("overload")
    contenders = [of for name in CONTENDERS for of in overload.contenders if of.called == name]
    times = {"lasts": LASTS_S, "warmup": WARMUP_S, "grace": GRACE_S}
    return overload.model_copy(update={"contenders": contenders, "sweep": SWEEP, **times})


def table(played: Played) -> str:
    """A row for each test, as Markdown."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for (contender, _), of in played.reports.items():
        totals, ttft = of["totals"], of["tiers"][TIER]["latencies"]["ttft"]["p99"]
        figures = (totals["offered_per_s"], totals["answered_per_s"], totals["good_per_s"], ttft)
        rows.append((contender, *("–" if figure is None else f"{figure:.3g}" for figure in figures)))
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(COLUMNS), *body])


def rows_of(page: str) -> Iterator[tuple[str, dict[str, float | None]]]:
    """(contender, its figures by column) for each row of the page's table. A dash is None."""
    found = TABLE.search(page)
    assert found is not None, f"{PAGE} has no table that begins with {COLUMNS[0]!r}"
    for line in found[0].splitlines()[2:]:
        contender, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        figures = (None if cell == "–" else float(cell) for cell in cells)
        yield contender, dict(zip(COLUMNS[1:], figures, strict=True))


def pictures(page: str) -> list[Chart]:
    """Goodput, and the paying tier's time to the first token, over the offered load."""
    rows = list(rows_of(page))

    def lines(column: str) -> list[Line]:
        found = []
        for name in CONTENDERS:
            points = [(figures[COLUMNS[1]] or 0.0, figures[column]) for of, figures in rows if of == name]
            found.append(Line(name, [x for x, _ in points], [y for _, y in points], bold=name == OURS))
        return found

    good, first = lines(COLUMNS[3]), lines(COLUMNS[4])
    ends = [good[0].x[0], good[0].x[-1]]
    good.append(Line("all that is offered", ends, ends, dashed=True))
    x = "requests/s offered"
    title = "Time to the first token of the paying tier, p99 in s"
    levels = {f"promised: {BOUND_S:g} s": BOUND_S}
    return [
        Chart("overload-goodput", "Goodput: requests within their promises, per second", x, "requests/s", good),
        Chart("overload-ttft", title, x, "seconds", first, log_y=True, levels=levels),
    ]


def play(folder: Path) -> Played:
    """Play it; every late test again, at most `TRIES` times in all."""

    def tell(test: str, text: str) -> None:
        if text == STARTING:
            print(test, flush=True)

    wanted = scenario()
    played = play_scenario(wanted, folder, quick=False, tell=tell)
    for _ in range(TRIES - 1):
        late = [test for test, of in played.reports.items() if not of["trusted"]]
        for name, times in late:
            (contender,) = (of for of in wanted.contenders if of.called == name)
            one = wanted.model_copy(update={"contenders": [contender], "sweep": [times]})
            played.reports |= play_scenario(one, folder, quick=False, tell=tell).reports
    return played


def main(folder: Path) -> None:
    """Play it, and write page and pictures. Exits with 1 if a contender is missing or broke, with 3 if the generator
    was late in every try of a test: then nothing is written.
    """
    with tempfile.TemporaryDirectory() as made:
        played = play(Path(made))
    print(how(played), *notes(played), table(played), sep="\n")
    if len(played.reports) < len(CONTENDERS) * len(SWEEP):
        sys.exit(1)
    if not played.trusted:
        print(f"Nothing is written: the generator was late in all {TRIES} tries. Play it on a quiet machine.")
        sys.exit(3)
    path = folder / PAGE
    page = TABLE.sub(table(played), path.read_text())
    page = HOW.sub(how(played), page)
    path.write_text(page)
    for picture in pictures(page):
        draw(picture, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
