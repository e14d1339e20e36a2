"""The textbook's hedge: duplicates past the p95 cut the tail in half for 5% more requests.

A request takes a lognormal time (median 40 ms, sigma .35), 2% of them six times as long; servers have no queues. With a
duplicate after T, the first token is later than t with probability S(t) S(t - T). The gateway's controller hedges with
learned thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.policy import Hedge
from gateway.sim.analysis.report import Interval, mean
from loadtests.experiments.drawn import Run, Servers, Times, inverse, policy_of
from loadtests.experiments.findings import Chart, Findings, Grid, bare, line, written
from loadtests.experiments.runner import Runner

SERVERS, SLOTS, RATE = 8, 10**6, 1000.0
REQUESTS, FULL_REQUESTS, WARMUP = 30_000, 60_000, 10_000
TRIGGERS = (0.90, 0.95, 0.98, 0.99)
SLOW = (0.0, 0.01, 0.02, 0.05, 0.10)
SHARED = (0.3, 0.5, 1.0)
TIMES = Times()
FREE = Hedge(budget=0.2, holdout=0.0)
"""The textbook's hedge: no holdout, and a budget that never binds."""


Case = tuple[Times, Hedge | None]
"""The times of servers, and the hedge: None for no duplicates."""
Found = dict[Case, list[Run]]


def textbook_hedge(runner: Runner) -> Findings:
    """Run all sweeps with all seeds."""
    findings = Findings(runner.seeds)
    requests = REQUESTS // 3 if runner.effort.quick else FULL_REQUESTS if runner.effort.full else REQUESTS
    findings.how = f"{len(runner.seeds)} seeds of {requests:,} requests at {RATE:g}/s each."
    shares = SLOW[:: len(SLOW) - 1] if runner.effort.quick else SLOW
    found = _all(runner, _cases(shares), requests)
    plain, usual = found[TIMES, None], found[TIMES, Hedge()]
    hedged = {trigger: found[TIMES, replace(FREE, quantile=trigger)] for trigger in TRIGGERS}
    _figures(findings, plain, hedged[0.95])
    rows = [["none", *_row(plain), *_exact(None)]]
    rows += [[f"p{trigger * 100:g}", *_row(runs), *_exact(trigger)] for trigger, runs in hedged.items()]
    rows.append(["p95, 5% budget, 5% holdout (the defaults)", *_row(usual), "", ""])
    columns = [
        "duplicate past",
        "p50, ms",
        "p99, ms",
        "p99.9, ms",
        "duplicates, %",
        "won, %",
        "exact p99",
        "exact p99.9",
    ]
    findings.grids.append(Grid("Which quantile to hedge at", columns, rows))
    _slow(findings, found, shares)
    _shared(findings, found)
    return findings


def _figures(findings: Findings, plain: list[Run], hedged: list[Run]) -> None:
    p99, p999, duplicates = _ms(hedged, 0.99), _ms(hedged, 0.999), mean([run.duplicates for run in hedged])
    findings.figures |= {
        "p99_without_ms": _ms(plain, 0.99),
        "p99_ms": p99,
        "p999_without_ms": _ms(plain, 0.999),
        "p999_ms": p999,
        "duplicates": duplicates,
        "p99_off_118_ms": bare(abs(p99.value - 118.0), p99.n),
        "p999_off_152_ms": bare(abs(p999.value - 152.0), p999.n),
        "duplicates_off_5_percent": bare(abs(duplicates.value - 0.05), duplicates.n),
    }


def _slow(findings: Findings, found: Found, shares: Sequence[float]) -> None:
    runs, hedged = ([found[replace(TIMES, slow=share), hedge] for share in shares] for hedge in (None, FREE))
    p50s, p99s, after = ([_ms(of, q) for of in arm] for arm, q in ((runs, 0.5), (runs, 0.99), (hedged, 0.99)))
    findings.figures["p50_at_10_percent_slow_to_none"] = bare(p50s[-1].value / p50s[0].value, p50s[0].n)
    findings.figures["p99_at_10_percent_slow_to_none"] = bare(p99s[-1].value / p99s[0].value, p99s[0].n)
    rows = [
        [f"{share:.0%}", written(p50, 1), written(p99, 1), written(hedge, 1)]
        for share, p50, p99, hedge in zip(shares, p50s, p99s, after, strict=True)
    ]
    columns = ["slow requests", "p50, ms", "p99, ms", "p99 hedged, ms"]
    findings.grids.append(Grid("What slow requests do, by their share", columns, rows))
    percent = [share * 100 for share in shares]
    lines = [
        line("p50", percent, p50s),
        line("p99", percent, p99s),
        line("p99, hedged past p95", percent, after, bold=True),
    ]
    findings.charts.append(
        Chart("slow-share", "Slow requests move the tail, and not the median", "requests that take 6x, %", "ms", lines)
    )


def _shared(findings: Findings, found: Found) -> None:
    rows = []
    for share in SHARED:
        runs = found[replace(TIMES, shared=share), FREE]
        rows.append([f"{share:.0%}", written(_ms(runs, 0.99), 1), written(mean([run.won for run in runs]), 2)])
    columns = ["duplicates of slow requests that are slow", "p99, ms", "won"]
    findings.grids.append(Grid("Where the request is slow, and not the server", columns, rows))


def _cases(shares: Sequence[float]) -> list[Case]:
    """Every case once: the sweeps have some in common."""
    cases: list[Case] = [(TIMES, None), (TIMES, Hedge())]
    cases += [(TIMES, replace(FREE, quantile=trigger)) for trigger in TRIGGERS]
    cases += [(replace(TIMES, slow=share), hedge) for share in shares for hedge in (None, FREE)]
    cases += [(replace(TIMES, shared=share), FREE) for share in SHARED]
    return list(dict.fromkeys(cases))


def _all(runner: Runner, cases: Sequence[Case], requests: int) -> Found:
    """The runs of each case, one a seed."""
    runs = iter(runner.map(_run, [(*case, seed, requests) for case in cases for seed in runner.seeds]))
    return {case: [next(runs) for _ in runner.seeds] for case in cases}


def _run(asked: tuple[Times, Hedge | None, int, int]) -> Run:
    times, hedge, seed, requests = asked
    return Servers(policy_of(SERVERS, SLOTS, hedge), times, seed, fifo=False).run(RATE, requests, WARMUP)


def _ms(runs: list[Run], q: float) -> Interval:
    return mean([run.quantile(q) * 1000.0 for run in runs])


def _row(runs: list[Run]) -> list[str]:
    return [
        *(written(_ms(runs, q), 1) for q in (0.5, 0.99, 0.999)),
        written(mean([run.duplicates * 100 for run in runs]), 2),
        written(mean([run.won * 100 for run in runs]), 0),
    ]


def _exact(trigger: float | None) -> list[str]:
    late_s = None if trigger is None else TIMES.quantile(trigger)

    def survival(t: float) -> float:
        return TIMES.survival(t) * (1.0 if late_s is None else TIMES.survival(t - late_s))

    return [f"{inverse(survival, q) * 1000:.1f}" for q in (0.99, 0.999)]
