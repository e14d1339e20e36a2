"""More than 100,000 disconnects, hedges and faults: nothing leaks, and each client is answered once.

Three tiers, two pools and eight replicas get bursts up to their capacity. Most clients leave, at random moments.
Attempts are refused, reset, cut off, or get no answer. Every four seconds a replica dies, becomes slow or silent or is
drained, or the policy is reloaded. Sockets take no part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from gateway.core.policy import AdmissionMode, AdmissionSpec, Hedge, Limits, Model, OnTotal, Policy, Retry, Tier
from gateway.core.pool_spec import Ejection, Health, PoolSpec, ReplicaSpec, Timeouts
from gateway.core.slo import Objective, Slo
from loadtests.experiments.churn import Churn
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.runner import Runner

REQUESTS = 190_000
"""Totals over all seeds, so that the number of events is the same for any number of seeds."""
SECONDS = 120
TIMEOUTS = Timeouts(queue_s=2.0, ttft_s=3.0, idle_s=2.0, total_s=12.0)


@dataclass(frozen=True, slots=True)
class Churned:
    """Counts of one run."""

    happened: Counter[str]
    wrong: Counter[str]
    leaked: dict[str, int]
    open_by_second: list[int]


def cancel_churn(runner: Runner) -> Findings:
    """Every seed, added up."""
    findings = Findings(runner.seeds)
    requests = REQUESTS // len(runner.seeds)
    findings.how = f"{len(runner.seeds)} seeds of {requests:,} requests each, added up."
    runs = runner.map(churned, [(seed, requests) for seed in runner.seeds])
    happened, wrong, leaked = Counter[str](), Counter[str](), Counter[str]()
    for run in runs:
        happened.update(run.happened)
        wrong.update(run.wrong)
        leaked.update(run.leaked)
    count = len(runs)
    findings.figures["happened"] = bare(sum(happened[what] for what in ("disconnects", "hedges", "faults")), count)
    findings.figures |= {what: bare(happened[what], count) for what in ("disconnects", "hedges", "faults", "retries")}
    findings.figures |= {
        "answers_not_exactly_one": bare(wrong["answers"], count),
        "ends_not_exactly_one": bare(wrong["ends"], count),
        "books_off": bare(wrong["books"], count),
    }
    findings.figures |= {f"leaked_{what}": bare(held, count) for what, held in leaked.items()}
    rows = [[what, f"{times:,}"] for what, times in sorted(happened.items())]
    findings.grids.append(Grid("What happened", ["", "times"], rows))
    seen = runs[0].open_by_second
    last = [(second, held) for second, held in enumerate(seen)][-SECONDS:]
    findings.charts.append(
        Chart(
            "cancel-churn",
            "The last two minutes of one run",
            "seconds",
            "open attempts",
            [Line("open attempts", [float(second) for second, _ in last], [float(held) for _, held in last])],
        )
    )
    findings.raw = {f"seed {seed}": run.happened for seed, run in zip(runner.seeds, runs, strict=True)}
    return findings


def churned(asked: tuple[int, int]) -> Churned:
    """Run one seed to its end."""
    seed, requests = asked
    churn = Churn(policies(), seed)
    churn.run(requests)
    return Churned(churn.happened, churn.wrong, churn.leaked, churn.open_by_second)


def policies() -> tuple[Policy, ...]:
    """The policies of the reloads, in turn: the policy, one with other replicas, and one without its second pool."""
    whole = _policy(6, 2)
    main_alone = _policy(8, 0)
    return whole, _policy(5, 3), replace(main_alone, models={"m": Model("m", ("main",))})


def _policy(main: int, spare: int) -> Policy:
    slo = Slo(ttft=(Objective(0.99, 2.0),))
    off, enforced = AdmissionSpec(AdmissionMode.OFF, exploration=0.0), AdmissionSpec(AdmissionMode.ENFORCE)
    tiers = (
        Tier("gold", timeouts=TIMEOUTS, admission=off, hedge=Hedge(budget=0.3, holdout=0.0), slo=slo),
        Tier("silver", 1, timeouts=TIMEOUTS, admission=enforced, hedge=Hedge(), slo=slo, limits=Limits(concurrency=12)),
        Tier("bronze", 2, timeouts=TIMEOUTS, admission=off, on_total=OnTotal.ERROR, retry=Retry(1.0), floor=0.05),
    )
    health = Health(open_s=2.0, slow_start_s=3.0, ejection=Ejection(time_s=4.0, max_time_s=10.0, stall_s=1.0))
    pools = {
        name: PoolSpec(
            name,
            tuple(ReplicaSpec(f"{name}{n}", f"http://{name}{n}:8000") for n in range(many)),
            slots=8,
            queue_limit=60,
            health=health,
            spill_from=("main",) if name == "spare" else (),
        )
        for name, many in (("main", main), ("spare", spare))
        if many
    }
    by_name = {tier.name: tier for tier in tiers}
    return Policy(models={"m": Model("m", tuple(pools))}, pools=pools, tiers=by_name, keys={}, default_tier="gold")
