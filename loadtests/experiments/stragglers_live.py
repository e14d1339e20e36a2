"""Two stragglers behind a good mean: two of eight live replicas are 12 times as slow, with and without countermeasures.

Gateway, clients and emulated replicas use HTTP on one machine. *Before* is round robin without ejection. *After* is a
policy's defaults and `hedge: {}`. Stragglers are slow from the first request on; the gateway must find them in the
warm-up. A client makes n calls in a row, and is slow if any of them takes more than three times the median.
"""

from __future__ import annotations

from dataclasses import asdict
from random import Random

from gateway.sim.analysis.report import Interval, bootstrap
from gateway.sim.run.results import latency
from loadtests.experiments.fan_out import slow_share
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare
from loadtests.experiments.runner import SETUP, Runner
from loadtests.live.planned import PlannedRequest
from loadtests.live.rig import Load, Run, run_together
from loadtests.live.scaled import key_of
from loadtests.quantiles import off, rank

REPLICAS, SLOW = 8, {2: 12.0, 5: 12.0}
SCALE = 0.5
"""Virtual seconds per real one."""
RATE = 10.0
"""Requests per real second; the slow replicas can serve an eighth of them each."""
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 32
BOUND_S = 2.0
WARMUP_S, SECONDS, QUICK_SECONDS, FULL_SECONDS = 40.0, 70.0, 30.0, 120.0
GRACE_S = 30.0
SEED = 1
WIDTHS, SLOW_TIMES = (1, 2, 5, 10, 20, 50, 100), 3.0
POLICIES = {"before": "stragglers-before.yaml", "after": "stragglers.yaml"}


def stragglers_live(runner: Runner) -> Findings:
    """One run without the countermeasures and one with them, at the same time: each uses a tenth of a core."""
    seconds = QUICK_SECONDS if runner.effort.quick else FULL_SECONDS if runner.effort.full else SECONDS
    both = run_together({name: (None, _load(file, seconds)) for name, file in POLICIES.items()}, runner.tell)
    runs = dict(zip(POLICIES, both, strict=True))
    findings = Findings((SEED,))
    before, after = (_ttft_s(runs[name]) for name in POLICIES)
    findings.figures |= {
        "p99_ttft_before_to_after": _ratio(before, after, 0.99),
        "p50_ttft_after_to_before": _ratio(after, before, 0.50),
        "p99_ttft_before_s": bare(_quantile(before, 0.99), len(before)),
        "p99_ttft_after_s": bare(_quantile(after, 0.99), len(after)),
        "p50_ttft_off": bare(off(_quantile(before, 0.5), _quantile(after, 0.5)), len(after)),
        "finished_after": bare(
            sum(request.finished for request in runs["after"].counted) / len(runs["after"].counted), 1
        ),
    }
    rows = [[name, *_row(found)] for name, found in runs.items()]
    columns = ["", "requests", "finished", "TTFT p50, ms", "p95", "p99", "p99.9", "loop lag p99 <= ms"]
    findings.grids.append(Grid("Time to first token, of all replicas together, in real milliseconds", columns, rows))
    lines = [_percentiles(name, _ttft_s(found)) for name, found in runs.items()]
    findings.charts.append(
        Chart("stragglers-live", "Two slow replicas of eight", "percentile", "TTFT, ms", lines, log_y=True)
    )
    _fan_out(findings, {"before": before, "after": after})
    findings.how = (
        f"{REPLICAS} replicas, of which {len(SLOW)} take 12 times as long; {RATE:g} requests/s for {WARMUP_S:g} s of "
        f"warm-up and {seconds:g} s that count, with {SCALE:g} virtual seconds to a real one. Intervals are "
        "over requests."
    )
    for name, found in runs.items():
        findings.raw[name] = {"ttft": asdict(latency(_ttft_s(found))), "lag_p99_s": found.lag_p99_s}
    return findings


def _fan_out(findings: Findings, ttft_s: dict[str, list[float]]) -> None:
    """The share of clients with at least one slow call, by number of calls."""
    bound_s = SLOW_TIMES * _quantile(ttft_s["before"], 0.5)
    lines, rows = [], [[str(width)] for width in WIDTHS]
    for name, calls in ttft_s.items():
        shares = [slow_share(calls, width, bound_s) for width in WIDTHS]
        formula = [1.0 - (1.0 - shares[0]) ** width for width in WIDTHS]
        lines.append(Line(name, WIDTHS, shares, bold=name == "after"))
        lines.append(Line(f"{name}, by the formula", WIDTHS, formula, dashed=True))
        for row, share, expected in zip(rows, shares, formula, strict=True):
            row += [f"{share:.1%}", f"{expected:.1%}"]
        for width in (1, 10, 100):
            findings.figures[f"slow_of_{width}_{name}"] = bare(shares[WIDTHS.index(width)], len(calls) // width)
    columns = ["calls", *(cell for name in ttft_s for cell in (name, "by the formula"))]
    findings.grids.append(Grid(f"With a call slower than {bound_s * 1000:.0f} ms", columns, rows))
    title = f"A call slower than {SLOW_TIMES:g} times the median"
    findings.charts.append(
        Chart("stragglers-fan-out", title, "calls of a client", "share of clients", lines, log_x=True, most_y=1.02)
    )


def _load(file: str, seconds: float) -> Load:
    random, requests, at = Random(SEED), [], 0.0
    key = key_of("all", "everybody")
    while (at := at + random.expovariate(RATE)) < WARMUP_S + seconds:
        requests.append(PlannedRequest(at, "all", key.text, PROMPT_TOKENS, OUTPUT_TOKENS, BOUND_S))
    text = (SETUP / file).read_text()
    return Load(text, requests, [key], SCALE, WARMUP_S, seconds, GRACE_S, REPLICAS, SLOW)


def _ttft_s(found: Run) -> list[float]:
    return [request.ttft_s for request in found.counted if request.ttft_s is not None]


def _quantile(values: list[float], q: float) -> float:
    return rank(sorted(values), q)


def _ratio(over: list[float], under: list[float], q: float) -> Interval:
    """The ratio of two quantiles with an interval; their draws are independent."""
    count = len(over)

    def statistic(drawn: list[int]) -> float:
        shifted = [(7919 * i + 13) % len(under) for i in drawn]
        return _quantile([over[i] for i in drawn], q) / _quantile([under[i] for i in shifted], q)

    return bootstrap(lambda drawn: statistic(list(drawn)), count)


def _row(found: Run) -> list[str]:
    counted, ttft_s = found.counted, _ttft_s(found)
    quantiles = [f"{_quantile(ttft_s, q) * 1000:.0f}" for q in (0.5, 0.95, 0.99, 0.999)]
    finished = sum(request.finished for request in counted)
    return [f"{len(counted)}", f"{finished}", *quantiles, f"{found.lag_p99_s * 1000:g}"]


def _percentiles(name: str, ttft_s: list[float]) -> Line:
    shares = [n / 200 for n in range(1, 200)] + [0.999]
    return Line(name, [100 * q for q in shares], [_quantile(ttft_s, q) * 1000 for q in shares], bold=name == "after")
