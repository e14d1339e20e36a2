"""Tables on the terminal, and the tables of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from gateway.sim.analysis.report import Difference, Interval, Summary

WIDEST = 1000
PERCENTS = ("p50", "p95", "p99")
LATENCIES = ("queue", "ttft", "tpot", "e2e")


def print_tables(rows: Sequence[Summary], differences: Sequence[Difference], out: Console) -> None:
    """Print a comparison: goodput, tiers, latencies, reasons of requests that were not good, and differences."""
    seeds = len(rows[0].seeds)
    known = "95% intervals over seeds in brackets" if seeds > 1 else "one seed: no intervals"
    show(out, _goodput(rows), f"Goodput ({seeds} seed{'s' * (seeds > 1)}; {known})")
    show(out, _lengths(rows), "Attainment by tier and by tokens of the prompt (good / offered)")
    show(out, _latencies(rows), "Latencies of finished requests, in ms (raw percentiles, mean over seeds)")
    show(out, _promises(rows), "Waits, and clients that retry (shares; mean over seeds)")
    show(out, _misses(rows), "Not finished, by reason (mean per run; in parentheses: counted apart, not in goodput)")
    if differences:
        show(out, _differences(differences), f"{differences[0].policy} less each of the others, paired by seed")


def _goodput(rows: Sequence[Summary]) -> Table:
    table = new_table(
        "policy", "weighted", "plain", "by tokens", "good/s", "busy", "slots", "KV", "cached", "preempted", "req/CPU-s"
    )
    for row in rows:
        figures = row.figures
        table.add_row(
            row.policy,
            *(interval(figures[name]) for name in ("weighted", "goodput", "token_weighted")),
            f"{figures['good_per_s'].value:.1f}",
            *(f"{figures[name].value:.0%}" for name in ("busy", "slots", "kv", "cached")),
            f"{figures['preemptions'].value:.0f}",
            f"{figures['requests_per_cpu_s'].value:,.0f}",
        )
    return table


def _lengths(rows: Sequence[Summary]) -> Table:
    lengths = dict.fromkeys(name for row in rows for tier in row.lengths.values() for name in tier)
    table = new_table("policy", "tier", "all", "of those served", *lengths, "tokens", "least")
    for row in rows:
        for tier, figures in row.tiers.items():
            by_length = row.lengths[tier]
            table.add_row(
                row.policy,
                tier,
                interval(figures["attainment"]),
                _share(figures["attainment_served"]),
                *(_share(by_length.get(name)) for name in lengths),
                _share(figures["token_share"]),
                _share(figures["token_share_short"]),
            )
    return table


def _latencies(rows: Sequence[Summary]) -> Table:
    names = [f"{latency} {percent}" for latency in LATENCIES for percent in PERCENTS]
    table = new_table("policy", "tier", *names)
    for row in rows:
        for tier, figures in row.tiers.items():
            values = (figures[f"{latency}_{percent}_s"] for latency in LATENCIES for percent in PERCENTS)
            table.add_row(row.policy, tier, *("-" if v is None else f"{1000 * v.value:,.0f}" for v in values))
    return table


def _promises(rows: Sequence[Summary]) -> Table:
    shares = ("in_vain", "newcomers_admitted", "comebacks_admitted")
    table = new_table("policy", "tier", "waited", "in vain", "newcomers admitted", "comebacks")
    for row in rows:
        for tier, figures in row.tiers.items():
            waited = figures["waited"]
            table.add_row(
                row.policy,
                tier,
                "-" if waited is None else f"{waited.value:,.0f}",
                *(_share(figures[s]) for s in shares),
            )
    return table


def _misses(rows: Sequence[Summary]) -> Table:
    reasons = sorted({reason for row in rows for tier in row.misses.values() for reason in tier})
    table = new_table("policy", "tier", "offered", *reasons)
    for row in rows:
        for tier, misses in row.misses.items():
            offered = row.tiers[tier]["offered"]
            counts = (misses.get(reason, 0.0) for reason in reasons)
            table.add_row(
                row.policy,
                tier,
                "-" if offered is None else f"{offered.value:,.0f}",
                *(f"{count:,.0f}" if count else "-" for count in counts),
            )
    return table


def _differences(rows: Iterable[Difference]) -> Table:
    table = new_table("against", "goodput", "difference", "ratio")
    for row in rows:
        ratio = "-" if row.ratio is None else interval(row.ratio)
        table.add_row(row.against, row.figure.replace("_", " "), interval(row.difference, "+.3f"), ratio)
    return table


def new_table(*columns: str) -> Table:
    """An empty table, with the first column left-aligned and the others right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 1 or column == "tier" else "right", no_wrap=True)
    return table


def show(out: Console, table: Table, title: str) -> None:
    """Print a table in full: lines that are longer than the terminal are better than truncated lines."""
    out.print(title, style="bold")
    out.width = Measurement.get(out, out.options.update(width=WIDEST), table).maximum
    out.print(table)
    out.print()


def interval(value: Interval | None, form: str = ".3f") -> str:
    """A mean as text, with its interval in brackets if there is one."""
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return format(value.value, form)
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"


def _share(value: Interval | None) -> str:
    return "-" if value is None else f"{value.value:.3f}"
