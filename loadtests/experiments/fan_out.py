"""Fan-out: a client with n calls is slow if any of them is, and P(slow) = 1 - (1 - p)^n.

In the textbook's fleet, 2% of the calls take six times as long. A call is slow if it takes longer than the p99 of calls
that are not hedged, or longer than 100 ms. Duplicates past the p95 cannot help calls that are only a little late. The
formula uses p of the same calls, which are independent.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.policy import Hedge
from gateway.sim.analysis.report import Interval, mean
from loadtests.experiments.drawn import Servers, Times, policy_of
from loadtests.experiments.findings import Chart, Findings, Grid, Line, bare, line, written
from loadtests.experiments.runner import Runner

SERVERS, SLOTS, RATE = 8, 10**6, 1000.0
REQUESTS, WARMUP = 120_000, 20_000
WIDTHS = (1, 2, 5, 10, 20, 50, 100)
TIMES = Times()
ARMS: dict[str, Hedge | None] = {"not hedged": None, "hedged": Hedge()}
BOUNDS_S = {"the p99 of a call": TIMES.quantile(0.99), "100 ms": 0.1}


def fan_out(runner: Runner) -> Findings:
    """Run both arms, and judge every width by both bounds."""
    findings = Findings(runner.seeds)
    requests = REQUESTS // 2 if runner.effort.quick else REQUESTS
    findings.how = f"{len(runner.seeds)} seeds of {requests - WARMUP:,} calls at {RATE:g}/s each."
    found = iter(runner.map(_calls, [(hedge, seed, requests) for hedge in ARMS.values() for seed in runner.seeds]))
    judge(findings, {arm: [next(found) for _ in runner.seeds] for arm in ARMS})
    return findings


def judge(findings: Findings, calls: dict[str, list[list[float]]]) -> None:
    """Figures from TTFTs in order of arrival, by arm and run, simulated or live."""
    most_off = 0.0
    for name, bound_s in BOUNDS_S.items():
        slow = {
            arm: [mean([slow_share(run, n, bound_s) for run in runs]) for n in WIDTHS] for arm, runs in calls.items()
        }
        formula = {arm: [1.0 - (1.0 - shares[0].value) ** n for n in WIDTHS] for arm, shares in slow.items()}
        for arm, shares in slow.items():
            most_off = max(most_off, *(abs(s.value - f) for s, f in zip(shares, formula[arm], strict=True)))
        if name != "100 ms":
            findings.figures |= _widest(slow)
        _show(findings, name if name == "100 ms" else f"{name} ({bound_s * 1000:.0f} ms)", slow, formula)
        findings.charts.append(_chart(name, slow, formula))
    findings.figures["most_off_formula"] = bare(most_off, len(findings.seeds))


def slow_share(calls: Sequence[float], width: int, bound_s: float) -> float:
    """The share of clients with a call longer than the bound, if each makes `width` calls, one after the other."""
    clients = range(0, len(calls) - width + 1, width)
    return sum(max(calls[at : at + width]) > bound_s for at in clients) / len(clients)


def _widest(slow: dict[str, list[Interval]]) -> dict[str, Interval]:
    without, hedged = slow["not hedged"][-1], slow["hedged"][-1]
    return {
        "slow_100_not_hedged": without,
        "slow_100_hedged": hedged,
        "slow_100_hedged_to_not": bare(hedged.value / without.value, hedged.n),
    }


def _show(findings: Findings, title: str, slow: dict[str, list[Interval]], formula: dict[str, list[float]]) -> None:
    columns = ["calls", *(cell for arm in slow for cell in (f"{arm}, slow %", f"{arm}, formula %"))]
    rows = []
    for at, width in enumerate(WIDTHS):
        row = [str(width)]
        for arm, shares in slow.items():
            share = shares[at]
            percent = Interval(100.0 * share.value, _percent(share.low), _percent(share.high), share.n)
            row += [written(percent, 1)]
            row += [f"{formula[arm][at] * 100:.1f}"]
        rows.append(row)
    findings.grids.append(Grid(f"Clients with a call slower than {title}", columns, rows))


def _percent(value: float | None) -> float | None:
    return None if value is None else value * 100.0


def _chart(name: str, slow: dict[str, list[Interval]], formula: dict[str, list[float]]) -> Chart:
    lines: list[Line] = []
    for arm, shares in slow.items():
        lines.append(line(arm, WIDTHS, shares, bold=arm == "hedged"))
        lines.append(Line(f"{arm}, by the formula", WIDTHS, formula[arm], dashed=True))
    file = "fan-out" if name != "100 ms" else "fan-out-100ms"
    return Chart(file, f"Slower than {name}", "calls of a client", "share of clients", lines, log_x=True, most_y=1.02)


def _calls(asked: tuple[Hedge | None, int, int]) -> list[float]:
    hedge, seed, requests = asked
    return Servers(policy_of(SERVERS, SLOTS, hedge), TIMES, seed, fifo=False).run(RATE, requests, WARMUP).in_order_s
