"""Merges the shards of a test: raw rows, so that every figure is that of one test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from loadtests.replay.again import Newcomers, Told
from loadtests.replay.columns import FILE, percentiles, read_records
from loadtests.replay.play import Played
from loadtests.report.run_file import About, RunFile, read_run, save_run
from loadtests.report.trust import behind
from loadtests.waits import above

OWN = ("started_at", "shard", "shards", "probed", "left_out", "condemned")
"""Facts in which shards of one test may differ."""
SUMMED = ("sent", "ended", "chunks", "most_connections", "most_under_way", "cpu_s", "most_memory_bytes")
SUMMED_TOO = ("turns", "turns_lost")
NAMED = (("tier", "tiers"), ("served_tier", "tiers"), ("reason", "reasons"), ("replica", "replicas"))


def merge(folders: Sequence[Path], out: Path) -> None:
    """Write the files of one test into `out`. Raises ValueError that says why these are not its shards, or OSError."""
    runs = [read_run(folder) for folder in folders]
    _check(folders, runs)
    tables: dict[str, dict[str, int]] = {of: {"": 0} for of in ("tiers", "reasons", "replicas")}
    parts, condemned = [], _missing(runs)
    for folder, run in zip(folders, runs, strict=True):
        rows = np.array(read_records(folder))
        late_s = percentiles(rows["late_s"], (0.99,))[0] or 0.0
        waited_s = above(run.played.lag, 0.99)
        why = "it gave up" if run.played.gave_up else behind(late_s, waited_s, run.about.max_late_s)
        if why is not None:
            condemned.append(f"shard {run.about.shard}/{run.about.shards}: {why}")
        for column, of in NAMED:
            names = getattr(run, of)
            table = tables[of]
            rows[column] = np.array([table.setdefault(name, len(table)) for name in names], rows[column].dtype)[
                rows[column]
            ]
        parts.append(rows)
    whole = np.concatenate(parts)
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / FILE, whole[np.lexsort((whole["number"], whole["due_s"] + whole["e2e_s"]))])
    about = replace(runs[0].about, shard=0, condemned=condemned, started_at=min(run.about.started_at for run in runs))
    gaps: dict[str, dict[int, int]] = {}
    messages: dict[str, str] = {}
    for run in runs:
        messages = run.messages | messages
        for tier, counts in run.gaps.items():
            mine = gaps.setdefault(tier, {})
            for bucket, count in counts.items():
                mine[bucket] = mine.get(bucket, 0) + count
    tiers, reasons, replicas = (list(tables[of]) for of in ("tiers", "reasons", "replicas"))
    played = _played([run.played for run in runs])
    save_run(out, RunFile(about, played, tiers, reasons, replicas, gaps, messages=messages))


def _check(folders: Sequence[Path], runs: Sequence[RunFile]) -> None:
    first = runs[0].about
    for folder, run in zip(folders, runs, strict=True):
        for of in fields(About):
            mine, other = getattr(run.about, of.name), getattr(first, of.name)
            if of.name not in OWN and mine != other:
                raise ValueError(f"{folder}: {of.name} is {mine}, in {folders[0]} {other}: not shards of one test")
        if run.about.shards != first.shards or first.shards < 2:
            raise ValueError(f"{folder}: was not sent with --shard I/{max(2, first.shards)}")
    seen = [run.about.shard for run in runs]
    if twice := next((shard for shard in seen if seen.count(shard) > 1), None):
        raise ValueError(f"shard {twice}/{first.shards} is there twice")


def _missing(runs: Sequence[RunFile]) -> list[str]:
    there, count = {run.about.shard for run in runs}, runs[0].about.shards
    return [f"shard {shard}/{count} is missing" for shard in range(1, count + 1) if shard not in there]


def _played(all_of: Sequence[Played]) -> Played:
    """One result: sums, the longest times, and any trouble."""
    told: dict[str, dict[str, Told]] = {}
    newcomers: dict[str, Newcomers] = {}
    for one in all_of:
        for tier, new in one.newcomers.items():
            newcomers[tier] = Newcomers(**_sums(asdict(newcomers.get(tier, Newcomers())), asdict(new)))
        for tier, reasons in one.told.items():
            for reason, tries in reasons.items():
                mine = told.setdefault(tier, {})
                mine[reason] = Told(**_sums(asdict(mine.get(reason, Told())), asdict(tries)))
    return Played(
        **{name: sum(getattr(one, name) for one in all_of) for name in (*SUMMED, *SUMMED_TOO)},
        sending_s=max(one.sending_s for one in all_of),
        seconds=max(one.seconds for one in all_of),
        empty_rows=max(one.empty_rows for one in all_of),  # each shard reads the whole traffic
        interrupted=any(one.interrupted for one in all_of),
        gave_up=any(one.gave_up for one in all_of),
        wrong_row=next((one.wrong_row for one in all_of if one.wrong_row), None),
        told=told,
        newcomers=newcomers,
        lag=[sum(of) for of in zip(*(one.lag for one in all_of), strict=True)],
    )


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one[name] + other[name] for name in one}
