"""Several experiments in one run: the place of each, the time that is left, and how each ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from loadtests.experiments.verdicts import Judged


@dataclass(frozen=True, slots=True)
class Ended:
    """One experiment that was run. `missed` are the figures whose targets were missed, or that were not measured."""

    took_s: float
    targets: int = 0
    missed: tuple[str, ...] = ()
    error: str = ""
    """The exception that ended it; empty if it ran to its end."""


def ended(took_s: float, figures: Mapping[str, Judged]) -> Ended:
    """An experiment with these figures."""
    verdicts = {name: row["pass"] for name, row in figures.items() if row["pass"] is not None}
    return Ended(took_s, len(verdicts), tuple(name for name, met in verdicts.items() if not met))


def place(name: str, names: Sequence[str]) -> str:
    """Name of the experiment, and its number among all of this run. Only the name if there are no others."""
    return name if len(names) == 1 else f"{name} ({names.index(name) + 1} of {len(names)})"


def left(name: str, names: Sequence[str], before_s: Mapping[str, float | None]) -> str:
    """Approximate time of this experiment and the later ones, from the seconds of earlier runs.

    Empty if the seconds of one of them are not known.
    """
    due_s = [before_s.get(one) for one in names[names.index(name) :]]
    known_s = [took_s for took_s in due_s if took_s is not None]
    return f"about {sum(known_s) / 60:.0f} min left" if len(known_s) == len(due_s) else ""


def summary(runs: Mapping[str, Ended]) -> Table:
    """A table of all experiments with their times and missed targets."""
    minutes = sum(run.took_s for run in runs.values()) / 60
    table = Table(title=f"{len(runs)} experiments in {minutes:.1f} minutes", title_justify="left")
    table.add_column("experiment")
    table.add_column("took", justify="right")
    table.add_column("targets met", justify="right")
    table.add_column("missed", overflow="fold")
    for name, run in runs.items():
        met = f"{run.targets - len(run.missed)} of {run.targets}" if run.targets else ""
        what = Text(run.error.partition("\n")[0], "red") if run.error else Text(", ".join(run.missed))
        table.add_row(name, f"{run.took_s:.0f} s", met, what)
    return table
