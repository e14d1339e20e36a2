"""Shards of a test, merged: the report is that of one test, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.replay.columns import read_rows
from loadtests.replay.request import Outcome, Request
from loadtests.report.figures import report
from loadtests.report.merge import merge
from loadtests.report.run_file import read_run, save_run
from tests.loadtests.report.made import answered, policy, refused, written

OF_THE_GENERATOR = ("generator", "about")


def requests() -> list[Request]:
    """Three tiers' worth of outcomes, with names that occur first in another order in each shard."""
    found = []
    for number in range(600):
        at, tier = number / 6, "gold" if number % 7 else "free"
        if number % 11 == 0:
            found.append(refused(at, tier, reason=("queue-full", "slo-miss")[number % 2]))
        elif number % 53 == 0:
            found.append(refused(at, tier, Outcome.INVALID, "too-long", 400))
        else:
            found.append(answered(at, tier, ttft_s=0.05 + (number % 13) / 10, tokens=5 + number % 40))
            found[-1].replica = f"r{number % 5}"
            found[-1].cached_tokens = number % 17
    return found


def read(folder: Path) -> dict[str, Any]:
    return report(read_run(folder), read_rows(folder), policy())


def sharded(folder: Path, count: int, late: Callable[[int], float] = lambda shard: 0.001) -> list[Path]:
    folders = []
    whole = requests()
    for number, request in enumerate(whole):
        request.number = number
    for shard in range(count):
        own = whole[shard::count]
        for request in own:
            request.sent_s = request.arrival.at + late(shard + 1)
        folders.append(folder / f"shard-{shard + 1}")
        numbers = [request.number for request in own]
        written(folders[-1], own, shard=shard + 1, shards=count)
        # `written` numbers requests itself; here they keep the numbers that they have among all.
        rows = np.lib.format.open_memmap(folders[-1] / "requests.npy", mode="r+")
        rows["number"] = numbers
        rows.flush()
    return folders


@pytest.mark.parametrize("count", [2, 3, 7])
def test_merged_report_is_that_of_one_generator_bit_by_bit(tmp_path: Path, count: int) -> None:
    written(tmp_path / "one", requests())
    merge(sharded(tmp_path, count), tmp_path / "all")
    one, merged = read(tmp_path / "one"), read(tmp_path / "all")
    for name in OF_THE_GENERATOR:
        del one[name], merged[name]
    assert json.dumps(merged, default=float) == json.dumps(one, default=float)


def test_order_of_the_folders_makes_no_difference(tmp_path: Path) -> None:
    folders = sharded(tmp_path, 3)
    merge(folders, tmp_path / "a")
    merge(folders[::-1], tmp_path / "b")
    assert (tmp_path / "a" / "run.json").exists()
    one, other = read(tmp_path / "a"), read(tmp_path / "b")
    assert one["tiers"] == other["tiers"]
    assert one["totals"] == other["totals"]


def test_rows_that_each_shard_left_out_are_counted_once(tmp_path: Path) -> None:
    folders = sharded(tmp_path, 3)
    for folder in folders:
        run = read_run(folder)
        run.played.empty_rows = 4  # each reads the whole traffic
        save_run(folder, run)
    merge(folders, tmp_path / "all")
    assert read_run(tmp_path / "all").played.empty_rows == 4


def test_late_shard_condemns_the_report(tmp_path: Path) -> None:
    merge(sharded(tmp_path, 4, lambda shard: 0.5 if shard == 3 else 0.001), tmp_path / "all")
    found = read(tmp_path / "all")
    assert not found["trusted"]
    assert found["about"]["condemned"] == ["shard 3/4: the generator was late by 500 ms (p99)"]


def test_missing_shard_condemns_the_report(tmp_path: Path) -> None:
    merge(sharded(tmp_path, 3)[:2], tmp_path / "all")
    found = read(tmp_path / "all")
    assert not found["trusted"]
    assert found["about"]["condemned"] == ["shard 3/3 is missing"]


def test_folders_that_are_no_shards_of_one_test_are_refused(tmp_path: Path) -> None:
    one, two = sharded(tmp_path, 2)
    other = written(tmp_path / "other", requests(), shard=2, shards=2, seed=9)
    alone = written(tmp_path / "alone", requests())
    for folders, told in (
        ([one, other], "other: seed is 9, in .*shard-1 1: not shards of one test"),
        ([one, one], "shard 1/2 is there twice"),
        ([alone, alone], "was not sent with --shard"),
        ([one, tmp_path], "there is no run.json"),
    ):
        with pytest.raises(ValueError, match=told):
            merge(folders, tmp_path / "all")
    merge([one, two], tmp_path / "all")
