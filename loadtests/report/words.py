"""Formats figures for people, and says the result of a report in words."""

from __future__ import annotations

from typing import Any

Report = dict[str, Any]


def time(seconds: float | None) -> str:
    """`870 ms`, `1.24 s`, `0.31 ms`."""
    if seconds is None:
        return "–"
    if seconds >= 99.5:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"


def share(value: float | None) -> str:
    """`98.2%`; less than all is never shown as 100%."""
    if value is None:
        return "–"
    text = f"{100 * value:.1f}%"
    return text if value in (0.0, 1.0) or text not in ("100.0%", "0.0%") else f"{100 * value:.3f}%"


def rate(value: float | None, form: str = ".4g") -> str:
    """A number per second."""
    return "–" if value is None else f"{value:{form}}"


def objective(row: Report) -> str:
    """`p99 TTFT <= 1 s`, `p95 e2e <= 10 s up to 100 tokens`."""
    name = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}[row["metric"]]
    up_to = "" if row["up_to_tokens"] is None else f" up to {row['up_to_tokens']:,} tokens"
    return f"p{100 * row['quantile']:.6g} {name} ≤ {time(row['threshold_s'])}{up_to}"


def headline(report: Report) -> str:
    """The main result in one sentence."""
    totals = report["totals"]
    if report["about"]["policy"] is None:
        return f"{share(totals['goodput'])} of {_counted(totals)} were answered."
    return (
        f"{share(totals['goodput'])} of {_counted(totals)} were good: answered in full, "
        "within the objectives of their tier."
    )


def _counted(totals: Report) -> str:
    if totals["counted"] == totals["offered"]:
        return f"{totals['counted']:,} requests"
    return f"{totals['counted']:,} counted requests (of {totals['offered']:,})"


def told(report: Report) -> list[str]:
    """The target's own words, once for each reason with which requests failed or were refused."""
    found = []
    for reason, message in report.get("messages", {}).items():
        count = sum(
            number
            for of in report["tiers"].values()
            for kind in ("misses", "apart")
            for name, number in of[kind].items()
            if name.endswith(f": {reason}")
        )
        if count:
            found.append(f"{reason} ({count:,}): {message}")
    return found


def shed(tier: Report) -> int:
    """Shed requests of a tier of the report, for any reason."""
    return sum(of["count"] for of in tier["sheds"].values())
