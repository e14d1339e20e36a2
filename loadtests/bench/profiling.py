"""A profile of tailgate: its process under cProfile during one load, with functions sorted by own time."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import cast

from rich.console import Console
from rich.table import Table

from loadtests.bench.closedloop import Closed
from loadtests.bench.load import Spec
from loadtests.bench.rig import load, rig
from loadtests.bench.rounds import STREAM_INTERVAL_S
from loadtests.bench.section import errors_of, number
from loadtests.bench.streams import Streams
from loadtests.bench.targets import PROFILED, Running
from loadtests.peers.install import FOLDER
from loadtests.processes import Cores

Function = tuple[str, int, str]
Profile = dict[Function, tuple[int, int, float, float, object]]
"""As cProfile writes it: (file, line, name) to (primitive calls, calls, own seconds, total seconds, callers)."""

LOADS: dict[str, tuple[str, Callable[[Running], Spec]]] = {
    "requests": ("requests", lambda target: Closed(target.port, target.pid, warmup_s=0.0, seconds=5.0)),
    "chunks": ("chunks", lambda target: Streams(target.port, target.pid, STREAM_INTERVAL_S, chunks=250)),
}
"""By measure: the unit it counts, and its load."""


def profile(name: str, console: Console, cores: Cores, rows: int = 40) -> bool:
    """Run one load and print the functions that took most. False if it could not be run."""
    counted, spec = LOADS[name]
    with rig([PROFILED], STREAM_INTERVAL_S, cores, console.print) as built:
        if PROFILED not in built.targets:
            console.print(f"not profiled: {built.skipped[PROFILED]}")
            return False
        raw = load(spec(built.targets[PROFILED]), cores.load)
    if errors_of(raw):
        console.print(f"void: {errors_of(raw)[0]}")
        return False
    # The target has ended here, and written its profile.
    with (FOLDER / "run" / PROFILED / "profile").open("rb") as file:
        found = cast(Profile, marshal.load(file))
    console.print(_table(found, number(raw, counted), rows))
    console.print(
        f"{counted}: {number(raw, counted):.0f}. A profiler makes calls look dear: compare figures, do not add them."
    )
    return True


def _table(profile: Profile, count: float, rows: int) -> Table:
    """The functions with the most own time, in microseconds per `count`."""
    table = Table(title="tailgate: time per function, each divided by what was counted", title_justify="left")
    for column in ("own us", "total us", "calls"):
        table.add_column(column, justify="right")
    table.add_column("function", overflow="fold")
    ranked = sorted(profile.items(), key=lambda item: item[1][2], reverse=True)
    for (file, line, name), (_, calls, own_s, total_s, _) in ranked[:rows]:
        where = f"{file.rpartition('site-packages/')[2].removeprefix(str(FOLDER.parent) + '/')}:{line}" if line else ""
        table.add_row(
            f"{1e6 * own_s / count:.2f}", f"{1e6 * total_s / count:.2f}", f"{calls / count:.2f}", f"{name} {where}"
        )
    return table
