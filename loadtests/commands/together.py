"""Several generators on one machine, as shards of one test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from gateway.cli.output import console, exits
from gateway.policy import load
from loadtests.commands.report import conclude, merged
from loadtests.report.run_file import FILE
from loadtests.terminal.written import writing

READY_S = 6.0
"""Seconds until all generators have started, and made contact."""
ALONE = ("--processes", "--out")
"""Options with a value that the generators do not get."""


def sent_together(count: int, folder: Path, policy: Path | None, *, allow_late: bool, as_json: bool) -> int:
    """Run this command line as `count` shards, and report on them together. Returns the exit status."""
    errors = console(stderr=True)
    options, begin_at = shared(sys.argv), f"{time.time() + READY_S:.3f}"
    folders = [folder / f"shard-{number}" for number in range(1, count + 1)]
    started = []
    for number, own in enumerate(folders, 1):
        with writing(own, "--out"):
            (own / FILE).unlink(missing_ok=True)  # of an earlier test
        command = [sys.executable, "-m", "loadtests", "run", *options]
        parts = ("--shard", f"{number}/{count}", "--begin-at", begin_at, "--out", str(own))
        quiet = subprocess.PIPE if number > 1 else None
        # A group of its own: else Ctrl-C in a terminal would reach it twice, and end it without its rows.
        started.append(subprocess.Popen([*command, *parts], stdout=subprocess.DEVNULL, stderr=quiet, process_group=0))

    def pass_on(number: int, _: object) -> None:
        for one in started:
            one.send_signal(number)

    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, pass_on)
    said = [one.communicate()[1] for one in started]
    ended = [one.returncode for one in started]
    failed = [number for number, own in enumerate(folders) if not (own / FILE).exists()]
    if failed:
        errors.print((said[failed[0]] or b"").decode(errors="replace"), end="")
        errors.print(f"{len(failed)} of {count} generators left no rows: the reason is above", style="red")
        return ended[failed[0]]
    with exits(2):
        held = None if policy is None else load(policy)
    try:
        conclude(merged(folders, folder), held, allow_late=allow_late, as_json=as_json)
    except typer.Exit as left:
        if left.exit_code == 3 or 130 not in ended:
            raise
    # One without a request of its own has status 2, but the first has one.
    return 130 if 130 in ended else ended[0] if ended[0] in (1, 2) else 0


def shared(arguments: Sequence[str]) -> list[str]:
    """The options of `run` on this command line, without those of the test as a whole."""
    rest, kept = list(arguments[arguments.index("run") + 1 :]), []
    while rest:
        word = rest.pop(0)
        if word in ALONE:
            del rest[:1]
        elif word != "--json" and not word.startswith(tuple(f"{name}=" for name in ALONE)):
            kept.append(word)
    return kept
