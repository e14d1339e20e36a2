"""A report as a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.report.trust import warnings
from loadtests.report.words import headline, objective, rate, share, time, told

Report = dict[str, Any]


def print_report(report: Report, out: Console) -> None:
    """Print the report, the most important lines first."""
    out.print(Text(headline(report), style="bold"))
    for text in warnings(report):
        out.print(Text(text, style="yellow"))
    totals, generator = report["totals"], report["generator"]
    out.print(
        f"{rate(totals['offered_per_s'])} requests/s offered, {rate(totals['good_per_s'])} of them good; "
        f"ended while requests were sent: {rate(totals['answered_per_s'])} answers/s, "
        f"{rate(totals['output_tokens_per_s'])} output tokens/s; "
        f"generator late by {time(generator['late_p99_s'])} (p99), {rate(generator['cpu'], '.2f')} of a core"
    )
    out.print(_tiers(report))
    if totals["cached"] is not None:
        of_tiers = ", ".join(f"{name} {share(of['cached'])}" for name, of in report["tiers"].items())
        out.print(f"Prompt tokens found in prefix caches: {share(totals['cached'])} ({of_tiers})")
    sections = {
        "Objectives, of answered requests; then the share of all that each concerns": _objectives(report),
        "Not good": _reasons(report, "misses"),
        "Counted apart": _reasons(report, "apart"),
        "In the target's own words": told(report),
    }
    for title, rows in sections.items():
        if rows:
            out.print(Text(title, style="bold"))
            for row in rows:
                out.print(f"  {row}")
    if report["about"]["retries"] and (again := list(_retry_after(report))):
        out.print(Text("Retry-After, over all tries", style="bold"))
        for row in again:
            out.print(f"  {row}")


def _retry_after(report: Report) -> Iterator[str]:
    for name, of in report["tiers"].items():
        for reason, tries in of["retry_after"].items():
            yield (
                f"{name}: {reason}: {tries['told']:,} told when to retry, {tries['obeyed']:,} did, of which "
                f"{tries['admitted']:,} were answered and {tries['refused']:,} refused again"
            )
        if of["retry_after"]:
            back = [sum(tries[column] for tries in of["retry_after"].values()) for column in ("admitted", "refused")]
            yield f"{name}: answered: {_answered(*back)} of those, {_answered(**of['newcomers'])} of newcomers"


def _answered(admitted: int, refused: int) -> str:
    """The share of answered requests among the answered and the refused."""
    return share(admitted / (admitted + refused) if admitted + refused else None)


def _tiers(report: Report) -> Table:
    found = Table(box=None, pad_edge=False)
    columns = ["tier", "offered", "good", "goodput", "TTFT p50", "p99", "ITL p99", "TPOT p99", "e2e p99"]
    for column in [*columns, "queue p99"]:
        found.add_column(column, justify="left" if column == "tier" else "right")
    for name, of in report["tiers"].items():
        latencies = of["latencies"]
        ttft, tpot, e2e, queue = (latencies[metric] for metric in ("ttft", "tpot", "e2e", "queue"))
        cells = [time(ttft["p50"]), time(ttft["p99"]), time(of["itl"]["p99"]), time(tpot["p99"])]
        cells += [time(e2e["p99"]), time(queue["p99"])]
        found.add_row(name, f"{of['offered']:,}", f"{of['good']:,}", share(of["goodput"]), *cells)
    return found


def _objectives(report: Report) -> list[str]:
    words = {True: "met", False: "missed", None: "nothing to judge"}
    return [
        f"{name}: {objective(row)}: {time(row['measured_s'])}, {words[row['met']]}; of all: {share(row['goodput'])}"
        for name, of in report["tiers"].items()
        for row in of["objectives"]
    ]


def _reasons(report: Report, kind: str) -> list[str]:
    return [f"{name}: {reason} {count:,}" for name, of in report["tiers"].items() for reason, count in of[kind].items()]
