"""Replicas needed with a pool for short prompts and one for long ones, against one pool for all.

Papers report that 17 to 42% fewer GPUs suffice. Here `tailgate plan` looks for the fewest `llama3-70b-a100-tp4`
replicas with .99 good (TTFT 5 s, TPOT 150 ms) on the Azure traces of 2023, at 40 (conversations) and 5 requests/s
(code). Engines share their KV cache among 256 seats. *Reserved*: each seat has room for the longest context: 6 seats of
65,536 tokens, or 109 of 4,096 in the short pool.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.plan.knee import Search
from gateway.policy.document import Document
from gateway.policy.load import load_document
from gateway.sim.engine.profiles import ENGINES
from gateway.sim.run.options import Options
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.traces import Mix
from loadtests.charts.chart import Bars
from loadtests.experiments.findings import Findings, Grid, bare
from loadtests.experiments.real_traces import FOLDER, TRACES
from loadtests.experiments.runner import Runner

RATES_PER_S = {"conversations": 40.0, "code": 5.0}
ENGINE = replace(ENGINES["llama3-70b-a100-tp4"], max_model_len=65_536)
SHORT_CONTEXT = 4_096
SPLITS = (2_048, 4_096)
"""Longest prompts of the short pool, in tokens."""
SHARED, RESERVED = "shared KV cache", "reserved seats"
ARMS: dict[tuple[str, str], tuple[int | None, ...]] = {
    ("conversations", SHARED): (None, *SPLITS),
    ("conversations", RESERVED): (None, SPLITS[0]),
    ("code", SHARED): (None, *SPLITS),
}
"""Splits by trace and kind of engine; None: one pool."""
START = 8
"""Replicas of each pool at which a search begins."""
GOOD = 0.99
QUICK_SECONDS = 10.0
SLO = {"ttft": {"p99": "5s"}, "tpot": {"p99": "150ms"}}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A trace, the kind of engine, and the longest prompt of the short pool; None: there is one pool."""

    trace: str
    engines: str
    split: int | None
    seconds: float | None
    """How much of the trace is played; None: all of it."""

    def search(self) -> Search:
        """The search that `tailgate plan` makes."""
        urls = [f"http://127.0.0.1:{9001 + n}" for n in range(2 * START)]
        pools: dict[str, dict[str, object]] = {"long": {"replicas": urls[:START]}}
        if self.split is not None:
            pools = {"short": {"replicas": urls[START:], "max_prompt_tokens": self.split}, **pools}
        data = {
            "apiVersion": "tailgate/v1",
            "models": {"*": {"pools": list(pools)}},
            "pools": pools,
            "tiers": {"default": {"slo": SLO, "max_tokens": {"default": "none", "limit": ENGINE.max_model_len}}},
        }
        profiles = dict.fromkeys(pools, ENGINE)
        if self.engines == RESERVED:
            contexts = {"long": ENGINE.max_model_len, "short": SHORT_CONTEXT}
            profiles = {
                name: replace(ENGINE, max_num_seqs=ENGINE.kv_capacity_tokens // contexts[name]) for name in pools
            }
        path = str(Path(os.environ[FOLDER]) / TRACES[self.trace])
        return Search(
            policy=load_document(Document("split", data), ""),
            workload=load_workload(path, rate_per_s=RATES_PER_S[self.trace], duration_s=self.seconds, mix=Mix()),
            profiles=profiles,
            target=GOOD,
            seeds=(1,),
            options=Options(duration_s=math.inf if self.seconds is None else self.seconds),
        )


def fewest(fleet: Fleet) -> dict[str, int]:
    """Replicas by pool."""
    return dict(fleet.search().fewest_of_all())


def split(runner: Runner) -> Findings:
    """One pool and two; nothing where the traces are not at hand."""
    seconds = QUICK_SECONDS if runner.effort.quick else None
    findings = Findings((1,), how="One run of each fleet." if seconds is None else f"{seconds:g} s of each trace.")
    if FOLDER not in os.environ:
        findings.notes.append(f"Nothing was measured: {FOLDER} names no folder with the traces.")
        return findings
    fleets = [Fleet(*of, longest, seconds) for of, splits in ARMS.items() for longest in splits]
    found = dict(zip(fleets, runner.map(fewest, fleets), strict=True))
    rows, labels = list[list[str]](), list[str]()
    parts: dict[str, list[float]] = {"one pool": [], "short": [], "long": []}
    for fleet, replicas in found.items():
        trace, engines = fleet.trace, fleet.engines
        alone = sum(found[replace(fleet, split=None)].values())
        saved = 1 - sum(replicas.values()) / alone
        way = "one pool" if fleet.split is None else f"split at {fleet.split:,}"
        if fleet.split is not None:
            kind = "_reserved" if engines == RESERVED else ""
            findings.figures[f"saved_{trace}_{fleet.split}{kind}"] = bare(saved, 1)
        rows.append([trace, engines, way, " + ".join(map(str, replicas.values())), f"{saved:.0%}"])
        labels.append(f"{trace}, {engines}, {way}")
        parts["one pool"].append(float(alone if fleet.split is None else 0))
        parts["short"].append(float(replicas.get("short", 0)))
        parts["long"].append(float(0 if fleet.split is None else replicas["long"]))
    findings.grids.append(Grid("The fewest replicas", ["trace", "engines", "pools", "replicas", "saved"], rows))
    findings.bars = Bars("split", "The fewest replicas for the Azure traces", "replicas", parts, labels)
    return findings
