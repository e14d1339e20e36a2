"""Figures as people read them, and what they should be told before they believe a report."""

from __future__ import annotations

from collections import Counter
from typing import Any

Report = dict[str, Any]
FELT_S = 0.005
"""Waits on an event loop that are none: its timers are a few milliseconds late when it has nothing to do."""
OFF = 0.05
"""How far prompts may be from their wanted length before it is said."""
SPARE, MAX_GAPS = 0.1, 20.0
"""Of the time in which requests are sent, and in mean gaps between them: a trace that ends so long before is told apart
from a gap at the end."""


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
    """`98.2%`; never 100% for what is only nearly all."""
    if value is None:
        return "–"
    text = f"{100 * value:.1f}%"
    return text if value in (0.0, 1.0) or text not in ("100.0%", "0.0%") else f"{100 * value:.3f}%"


def rate(value: float | None, form: str = ".4g") -> str:
    """A rate: a number of something per second."""
    return "–" if value is None else f"{value:{form}}"


def objective(row: Report) -> str:
    """`p99 TTFT <= 1 s`, `p95 e2e <= 10 s up to 100 tokens`."""
    name = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}[row["metric"]]
    up_to = "" if row["up_to_tokens"] is None else f" up to {row['up_to_tokens']:,} tokens"
    return f"p{100 * row['quantile']:.6g} {name} ≤ {time(row['threshold_s'])}{up_to}"


def headline(report: Report) -> str:
    """The one sentence."""
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
    return f"{totals['counted']:,} requests that count (of {totals['offered']:,})"


def fell_behind(generator: Report) -> str | None:
    """How the generator did, if one in a hundred of what it sent, or of what it had to read, was later than allowed."""
    if generator["late_p99_s"] > generator["max_late_s"]:
        return f"the generator was late by {time(generator['late_p99_s'])} (p99)"
    if generator["loop_wait_p99_above_s"] >= max(FELT_S, generator["max_late_s"]):
        return f"what the generator had to read waited over {time(generator['loop_wait_p99_above_s'])} for it (p99)"
    return None


def warnings(report: Report) -> list[str]:
    """Warnings that a reader needs before believing the figures."""
    about, generator, prompts = report["about"], report["generator"], report["prompts"]
    found = []
    if (behind := fell_behind(generator)) is not None:
        found.append(f"Not to be trusted: {behind}; {time(generator['max_late_s'])} were allowed.")
    elif generator["late_max_s"] > generator["max_late_s"]:
        which = "the p99.9 and the maxima" if generator["late_p999_s"] > generator["max_late_s"] else "the maxima"
        found.append(
            f"The generator was late by {time(generator['late_max_s'])} at most: {which} of latencies may be its own, "
            "not the target's."
        )
    elif generator["loop_wait_max_above_s"] >= max(FELT_S, generator["max_late_s"]):
        waited = time(generator["loop_wait_max_above_s"])
        found.append(
            f"What the generator had to read waited over {waited} for it at times: the maxima of latencies, and single "
            "gaps between tokens, may be its own, not the target's."
        )
    if left_out := apart(report):
        found.append(left_out)
    if about.get("wrong_row"):
        found.append(f"Partial: the test ended at a row of the trace that is wrong ({about['wrong_row']}).")
    elif not report["complete"]:
        found.append(
            "Partial: the test was stopped. What was under way then is counted apart, unless its TTFT, or "
            "its e2e, was beyond the objective already."
        )
    elif (rest_s := (about["planned_s"] or 0.0) - (ended_s := report["seconds"] + about["warmup_s"])) > 0.0:
        gap_s = report["seconds"] / report["totals"]["offered"]
        if rest_s > max(SPARE * about["planned_s"], MAX_GAPS * gap_s):
            planned = time(about["planned_s"])
            found.append(f"There was nothing more to send after {time(ended_s)} of the {planned} asked for.")
    if report["totals"]["offered_per_s"] is None:
        found.append(f"Only {time(report['seconds'])} of the test count: too short to say what comes in a second.")
    if about["mode"] == "closed loop":
        found.append(
            f"Closed loop: {about['clients']} clients wait for each answer before they ask again, so a target that "
            "stalls is sent less, and the waiting that users would have had is in none of these figures."
        )
    if about.get("empty_rows"):
        found.append(
            f"{about['empty_rows']:,} rows of the trace were left out: they are of 0 tokens, so they failed when they "
            "were recorded."
        )
    if about["policy"] is None:
        found.append("No policy was given: there are no objectives, and every request that was answered is good.")
    counted, wanted = prompts["prompt_tokens_counted"], prompts["prompt_tokens"]
    if not about.get("probed", True) and not wanted and prompts["output_tokens_wanted"]:
        found.append("The target does not say how many tokens prompts have: a word was taken for one token each.")
    if wanted and abs(counted / wanted - 1.0) > OFF:
        found.append(f"The target counts {share(counted / wanted)} of the prompt tokens that were meant to be sent.")
    if about["length"] != "cap" and prompts["shorter_answers"]:
        found.append(f"{prompts['shorter_answers']:,} answers were shorter than the traffic says.")
    for tier, of in report["tiers"].items():
        others = {name: count for name, count in of["served_as"].items() if name != tier}
        unnamed = about["policy"] is None and tier == about.get("unnamed_tier")
        if others and not unnamed:
            names = ", ".join(f"{count:,} as {name}" for name, count in others.items())
            mend = "give its key with --key, serve a policy that has this tier, or name another with --mix"
            found.append(f"Requests of tier {tier} were served as another tier ({names}): {mend}.")
    return found


def apart(report: Report) -> str:
    """How many stand in no share, and why; empty where all count."""
    reasons: Counter[str] = Counter()
    for of in report["tiers"].values():
        reasons.update(of["apart"])
    if not reasons:
        return ""
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return f"{reasons.total():,} of {report['totals']['offered']:,} requests are counted apart, in no share: {told}."


def shed(tier: Report) -> int:
    """How many requests of a tier, as its report has it, were shed, for whatever reason."""
    return sum(of["count"] for of in tier["sheds"].values())
