"""`report.html`: a report as one self-contained page, for small and large screens, in light and dark themes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from loadtests.charts.chart import Chart, Picture
from loadtests.charts.svg import STYLE, svg
from loadtests.report.pictures import pictures
from loadtests.report.trust import warnings
from loadtests.report.words import headline, objective, rate, share, shed, time, told

Report = dict[str, Any]
TEMPLATE = Path(__file__).parent / "page.html"
Rows = Iterable[Sequence[str]]
QUANTILES = ("p50", "p90", "p95", "p99", "p999", "max")
SEVERAL = 1.05
"""Tokens in a piece of content from which gaps between pieces are not those between tokens."""


def page(report: Report) -> str:
    """The whole document."""
    about = report["about"]
    parts = [
        f"<h1>{escape(headline(report))}</h1>",
        f'<p class="about">{escape(_about(report))}</p>',
        *(f'<p class="warning">{escape(text)}</p>' for text in warnings(report)),
        tiles(_tiles(report)),
        figures(pictures(report)),
        "<h2>Tiers</h2>",
        _tiers(report),
        _latencies(report),
        _objectives(report),
        _sheds(report),
        table([], [line.split(": ", 1) for line in told(report)], "In the target's own words"),
        _retry_after(report),
        _replicas(report),
        _turns(report),
        "<h2>Can it be trusted?</h2>",
        _trust(report),
    ]
    return document(f"Load test of {about['target']}", parts)


def document(title: str, parts: Sequence[str]) -> str:
    """The page with these parts."""
    text = TEMPLATE.read_text().replace("{style}", STYLE)
    return text.replace("{title}", escape(title)).replace("{body}", "\n".join(part for part in parts if part))


def tiles(of: Mapping[str, str]) -> str:
    """The most important figures, by name."""
    found = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in of.items())
    return f'<dl class="tiles">{found}</dl>'


def figures(of: Sequence[Picture]) -> str:
    """Pictures, side by side if there is room."""
    drawn = (svg(picture, unit(picture)) for picture in of)
    return f'<div class="figures">{"".join(drawn)}</div>'


def unit(picture: Picture) -> Callable[[float], str] | None:
    """The form of the values of a picture: logarithmic axes of reports have latencies."""
    return time if isinstance(picture, Chart) and picture.log_y else None


def table(columns: Sequence[str], rows: Rows, caption: str = "") -> str:
    """A table whose first column names the rows. It scrolls if it is too wide. Without columns it has no head."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    if not body:
        return ""
    title = f"<h3>{escape(caption)}</h3>" if caption else ""
    return f'{title}<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _about(report: Report) -> str:
    about = report["about"]
    return (
        f"{about['target']} · {about['traffic']} · {about['mode']} · {report['seconds']:.0f} s counted after "
        f"{about['warmup_s']:g} s of warm-up · seed {about['seed']} · {about['started_at']}"
        + (f" · objectives of {about['policy']}" if about["policy"] else "")
    )


def _tiles(report: Report) -> dict[str, str]:
    totals = report["totals"]
    ttft = totals["latencies"]["ttft"]
    metric, name = (ttft, "TTFT") if ttft["n"] else (totals["latencies"]["e2e"], "e2e")
    sheds = sum(map(shed, report["tiers"].values()))
    errors = sum(sum(tier["errors"].values()) for tier in report["tiers"].values())
    return {
        "goodput": share(totals["goodput"]),
        "good /s": rate(totals["good_per_s"], ".3g"),
        "offered /s": rate(totals["offered_per_s"], ".3g"),
        f"{name} p50": time(metric["p50"]),
        f"{name} p99": time(metric["p99"]),
        "shed": f"{sheds:,}",
        "errors": f"{errors:,}",
    }


def _tiers(report: Report) -> str:
    rows = [
        [
            name,
            f"{of['offered']:,}",
            f"{of['finished']:,}",
            f"{of['good']:,}",
            share(of["goodput"]),
            f"{shed(of):,}",
            f"{sum(of['errors'].values()):,}",
            ", ".join(f"{count:,} {outcome}" for outcome, count in of["apart"].items()) or "–",
        ]
        for name, of in report["tiers"].items()
    ]
    return table(["tier", "offered", "answered", "good", "goodput", "shed", "errors", "counted apart"], rows)


def _latencies(report: Report) -> str:
    rows = []
    per_piece = report["prompts"]["tokens_per_piece"] or 1.0
    several = per_piece if per_piece > SEVERAL else None
    for name, of in report["tiers"].items():
        metrics = {**of["latencies"], "itl": of["itl"]}
        for metric in ("ttft", "itl", "tpot", "e2e", "queue"):
            found = metrics[metric]
            if metric == "itl" and found["n"] and several:
                cells = [time(found[quantile] / several) for quantile in QUANTILES]
                rows.append([f"{name} ITL of tokens, {several:.3g} a piece", "", *cells])
            if found["n"]:
                label = {"queue": "queue time", "e2e": "e2e"}.get(metric, metric.upper())
                cells = [time(found[quantile]) for quantile in QUANTILES]
                rows.append([f"{name} {label}", f"{found['n']:,}", *cells])
    caption = "Latency of answered requests, from the time they were due"
    return table(["", "of", "p50", "p90", "p95", "p99", "p99.9", "most"], rows, caption)


def _objectives(report: Report) -> str:
    rows = [
        [
            f"{name}: {objective(row)}",
            time(row["measured_s"]),
            {True: "met", False: "missed", None: "–"}[row["met"]],
            share(row["goodput"]),
        ]
        for name, of in report["tiers"].items()
        for row in of["objectives"]
    ]
    return table(["objective", "of answered requests", "", "share of all that met it"], rows, "Objectives")


def _sheds(report: Report) -> str:
    rows = [
        [
            f"{tier}: {reason}",
            f"{of['count']:,}",
            f"{of['with_retry_after']:,}",
            time(of["after_p50_s"]),
            time(of["after_p95_s"]),
        ]
        for tier, tiers in report["tiers"].items()
        for reason, of in tiers["sheds"].items()
    ]
    return table(["shed", "requests", "with Retry-After", "told after (p50)", "(p95)"], rows, "Refusals")


def _retry_after(report: Report) -> str:
    """The section on retries; empty without retries."""
    columns = ("told", "obeyed", "admitted", "refused")
    rows = [
        [f"{tier}: {reason}", *(f"{of[column]:,}" for column in columns)]
        for tier, tiers in report["tiers"].items()
        for reason, of in tiers["retry_after"].items()
        if report["about"]["retries"]
    ]
    rows += [
        [f"{tier}: newcomers", "", "", *(f"{of['newcomers'][column]:,}" for column in columns[2:])]
        for tier, of in report["tiers"].items()
        if of["retry_after"] and rows
    ]
    return table(["refused, all tries", "told when", "came then", "answered", "refused again"], rows, "Retry-After")


def _replicas(report: Report) -> str:
    rows = [
        [name, f"{of['finished']:,}", time(of["ttft_p50_s"]), time(of["ttft_p99_s"])]
        for name, of in report["replicas"].items()
    ]
    return table(["replica", "answered", "TTFT p50", "p99"], rows, "By replica") if len(rows) > 1 else ""


def _turns(report: Report) -> str:
    rows = [
        [turn, f"{of['finished']:,}", time(of["ttft_p50_s"]), time(of["ttft_p99_s"]), share(of["cached"])]
        for turn, of in report["turns"]["by_turn"].items()
    ]
    return table(["turn", "answered", "TTFT p50", "p99", "cached"], rows, "By turn of conversations")


def _trust(report: Report) -> str:
    generator, prompts = report["generator"], report["prompts"]
    capped = report["about"]["length"] == "cap"
    late = " / ".join(time(generator[f"late_{name}_s"]) for name in ("p50", "p99", "p999", "max"))
    rows = [
        [
            "lateness of requests, p50 / p99 / p99.9 / most",
            f"{late} (allowed: p99 {time(generator['max_late_s'])})",
        ],
        [
            "waits on the generator's loop, p99 / most",
            f"more than {time(generator['loop_wait_p99_above_s'])} / {time(generator['loop_wait_max_above_s'])}",
        ],
        [
            "CPU of the generator, most memory",
            f"{rate(generator['cpu'], '.2f')} of a core, {generator['most_memory_bytes'] / 2**20:,.0f} MiB",
        ],
        ["connections, requests under way at most", f"{generator['most_connections']}, {generator['most_under_way']}"],
        ["pieces of content read", f"{rate(generator['chunks_per_s'], '.0f')}/s"],
        ["prompt tokens meant, counted", f"{prompts['prompt_tokens']:,}, {prompts['prompt_tokens_counted']:,}"],
        ["prompt tokens found in prefix caches", share(report["totals"]["cached"])],
        [
            "output tokens meant" + (" at most" if capped else "") + ", got",
            f"{prompts['output_tokens_wanted']:,}, {prompts['output_tokens']:,}",
        ],
        ["sent again by clients", f"{report['totals']['sent_again']:,}"],
    ]
    return table([], rows)
