"""Reads a finished load test for a comparison, judged by the objectives of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from gateway.core.policy import Policy, Tier, Value
from gateway.core.slo import Objective, Slo
from gateway.policy import load
from loadtests.replay.columns import read_rows
from loadtests.report.figures import report
from loadtests.report.judged import Held, Judged, judge, slo_of
from loadtests.report.run_file import RunFile, read_run

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """The objectives of a report, by tier: the ones at the time of the report, even if the policy file has changed."""

    tiers: Mapping[str, Tier]


@dataclass(frozen=True, slots=True)
class Tested:
    """A load test that has been read."""

    name: str
    run: RunFile
    judged: Judged
    report: Report
    held: Held | None

    def slos(self) -> dict[str, Slo]:
        """The objectives of each of its tiers."""
        return {tier: slo_of(self.held, tier) for tier in self.report["tiers"]}


def read_both(a: Path, b: Path, policy: Policy | None) -> tuple[Tested, Tested]:
    """Two tests. Each is named by the end of its path, as long as needed to differ. Raises ValueError or OSError."""
    ours, theirs = a.resolve().parts, b.resolve().parts
    if ours == theirs:
        raise ValueError(f"{a} and {b} are the same test: give two")
    parts = next(n for n in range(1, max(len(ours), len(theirs)) + 1) if ours[-n:] != theirs[-n:])
    first, second = (
        replace(read_test(folder, policy), name=str(Path(*path[-parts:]))) for folder, path in ((a, ours), (b, theirs))
    )
    return first, second


def read_test(folder: Path, policy: Policy | None) -> Tested:
    """Read a test. Without a policy, it is judged by the objectives of its report. Raises ValueError or OSError."""
    run, rows = read_run(folder), read_rows(folder)
    held = policy or _held(folder, run)
    found = report(run, rows, held)
    return Tested(folder.name, run, judge(rows[rows["due_s"] >= run.about.warmup_s], run.tiers, held), found, held)


def _held(folder: Path, run: RunFile) -> Held | None:
    file = folder / "report.json"
    if file.exists():
        try:
            made = orjson.loads(file.read_bytes())
            return None if made["about"]["policy"] is None else Kept(_kept(file, made, run))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{file}: is not the report of a load test: make it again, or give --policy") from None
    own = own_policy(folder, run)
    return None if own is None else load(own)


def own_policy(folder: Path, run: RunFile) -> Path | None:
    """The policy with which a test was sent. Raises ValueError if it is gone."""
    policy = run.about.policy
    if policy is not None and not Path(policy).exists():
        raise ValueError(f"{folder}: was judged by {policy}, which is not there: give --policy FILE")
    return None if policy is None else Path(policy)


def _kept(file: Path, made: Report, run: RunFile) -> dict[str, Tier]:
    """A tier that occurs only in the warm-up has no objectives in the report, and needs none."""
    found = {name: Tier(name) for name in run.tiers}
    for name, of in made["tiers"].items():
        objectives: dict[str, list[Objective]] = {"ttft": [], "tpot": [], "e2e": []}
        up_to = None
        for row in of["objectives"]:
            if "up_to_tokens" not in row:
                raise ValueError(f"{file}: was made by an older load tester: make it again, or give --policy")
            objectives[row["metric"]].append(Objective(row["quantile"], row["threshold_s"]))
            up_to = up_to or row["up_to_tokens"]
        ttft, tpot, e2e = (tuple(group) for group in objectives.values())
        found[name] = Tier(
            name, weight=of["weight"], value=Value(of.get("value", Value.REQUEST)), slo=Slo(ttft, tpot, e2e, up_to)
        )
    return found
