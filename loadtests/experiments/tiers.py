"""Shares of the tiers under overload: attainment of each tier and length of prompt, and the floor of the lowest tier.

The floor is the lowest tier's share of the dispatched tokens, in windows of 10 s in which one of its requests always
waits. The figure is the smallest share over all windows, seeds and loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.sim.analysis.report import mean, summary
from gateway.sim.run.results import Result
from gateway.sim.run.tally import LENGTHS
from loadtests.experiments.cells import Judgement, mean_of_cells, over_cells
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner, ours
from loadtests.experiments.targets import at_least

LOADS = (0.9, 1.5, 2.0, 3.0)


def tiers(runner: Runner) -> Findings:
    """The main workload under our policy."""
    findings = Findings(runner.seeds)
    policy, workload, one_x = runner.policy(), runner.workload("main"), runner.one_x("main")
    loads = (0.9, 3.0) if runner.effort.quick else LOADS
    found = {load: runner.compare([ours(policy)], workload.at_rate(one_x * load))["ours"] for load in loads}
    lowest = max(policy.tiers.values(), key=lambda tier: tier.priority).name
    attained = {
        name: {load: mean([run.tiers[name].attainment or 0.0 for run in runs]) for load, runs in found.items()}
        for name in policy.tiers
    }
    findings.figures["mean_goodput"] = mean_of_cells([[run.weighted for run in runs] for runs in found.values()])
    highest = [Judgement(share, at_least(0.99)) for share in attained["tier-0"].values()]
    findings.figures |= over_cells("tier_0_attainment", highest)
    least = [run.tiers[lowest].floor.least for runs in found.values() for run in runs]
    known = [share for share in least if share is not None]
    if known:
        findings.figures["least_floor"] = bare(min(known), len(known))
    columns = ["tier", *(f"{load:g}x" for load in loads)]
    findings.grids.append(
        Grid("Attainment", columns, [[name, *map(written, by.values())] for name, by in attained.items()])
    )
    findings.grids.append(by_length("Attainment by tokens of the prompt", found))
    findings.charts.append(
        Chart(
            "tiers",
            "Attainment by tier",
            "load, as a multiple of 1x",
            "good / offered",
            [line(name, loads, list(by.values())) for name, by in attained.items()],
            most_y=1.02,
        )
    )
    findings.raw |= {f"{load:g}x": summary(runs) for load, runs in found.items()}
    return findings


def by_length(title: str, found: Mapping[float, Sequence[Result]]) -> Grid:
    """Attainment of each tier by tokens of the prompt, at each load."""
    told = {load: summary(runs).lengths for load, runs in found.items()}
    lengths = [length for length in LENGTHS if any(length in by for tiers in told.values() for by in tiers.values())]
    rows = [
        [f"{load:g}x", tier, *(written(by.get(length), 2) for length in lengths)]
        for load, tiers in told.items()
        for tier, by in tiers.items()
    ]
    return Grid(title, ["load", "tier", *lengths], rows)
