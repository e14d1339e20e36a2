"""Whether the figures of a report are to be trusted, and what else a reader must know before them."""

from __future__ import annotations

from collections import Counter

from loadtests.report.words import Report, share, time

FELT_S = 0.005
"""Waits on an event loop that do not count: its timers are a few milliseconds late even when it is idle."""
OFF = 0.05
"""Share by which prompts may differ from their wanted length without a warning."""
SPARE, MAX_GAPS = 0.1, 20.0
"""An early end of the traffic is reported if more than this share of the planned time, and more than this many mean
gaps, are missing. A smaller rest may be a normal gap.
"""


def fell_behind(generator: Report) -> str | None:
    """`behind`, for the generator of a report."""
    return behind(generator["late_p99_s"], generator["loop_wait_p99_above_s"], generator["max_late_s"])


def behind(late_p99_s: float, loop_wait_p99_above_s: float, max_late_s: float) -> str | None:
    """How late a generator was, if over 1% of its requests or reads were later than `max_late_s`; else None."""
    if late_p99_s > max_late_s:
        return f"the generator was late by {time(late_p99_s)} (p99)"
    if loop_wait_p99_above_s >= max(FELT_S, max_late_s):
        return f"data waited over {time(loop_wait_p99_above_s)} for the generator to read it (p99)"
    return None


def warnings(report: Report) -> list[str]:
    """Warnings that a reader needs before the figures."""
    about, generator, prompts = report["about"], report["generator"], report["prompts"]
    found = [f"Not to be trusted: {why}." for why in about.get("condemned", ())]
    if (late := fell_behind(generator)) is not None:
        found.append(f"Not to be trusted: {late}; {time(generator['max_late_s'])} were allowed.")
    elif about.get("gave_up"):
        found.append("Not to be trusted: the generator could not keep up with the traffic.")
    elif generator["late_max_s"] > generator["max_late_s"]:
        which = "the p99.9 and the maxima" if generator["late_p999_s"] > generator["max_late_s"] else "the maxima"
        found.append(
            f"The generator was late by {time(generator['late_max_s'])} at most: {which} of latencies may be due to "
            "it, not to the target."
        )
    elif generator["loop_wait_max_above_s"] >= max(FELT_S, generator["max_late_s"]):
        waited = time(generator["loop_wait_max_above_s"])
        found.append(
            f"At times data waited over {waited} for the generator: the maxima of latencies, and single gaps between "
            "tokens, may be due to it, not to the target."
        )
    if left_out := apart(report):
        found.append(left_out)
    if about.get("wrong_row"):
        found.append(f"Partial: the test ended at a wrong row of the trace ({about['wrong_row']}).")
    elif about.get("gave_up"):
        found.append("Partial: the generator gave up, because every request of ten seconds left over a second late.")
    elif not report["complete"]:
        found.append(
            "Partial: the test was stopped. Requests that were open then are counted apart, unless their TTFT or "
            "e2e was beyond the objective already."
        )
    elif (rest_s := (about["planned_s"] or 0.0) - (ended_s := report["seconds"] + about["warmup_s"])) > 0.0:
        gap_s = report["seconds"] / report["totals"]["offered"]
        if rest_s > max(SPARE * about["planned_s"], MAX_GAPS * gap_s):
            planned = time(about["planned_s"])
            found.append(f"The traffic ended after {time(ended_s)} of the wanted {planned}.")
    if report["totals"]["offered_per_s"] is None:
        found.append(f"Only {time(report['seconds'])} of the test count: too short for rates per second.")
    if about["mode"] == "closed loop":
        found.append(
            f"Closed loop: {about['clients']} clients wait for each answer before they ask again, so a target that "
            "stalls gets fewer requests, and the figures leave out the waiting that users would have had."
        )
    if about.get("empty_rows"):
        empty = "they have 0 tokens, so they failed when they were recorded"
        why = "nobody asks anything in them" if about.get("own_words") else empty
        found.append(f"{about['empty_rows']:,} rows of the traffic were left out: {why}.")
    if about["policy"] is None:
        found.append("No policy was given: there are no objectives, so every answered request is good.")
    counted, wanted = prompts["prompt_tokens_counted"], prompts["prompt_tokens"]
    own_words = about.get("own_words", False)
    if not about.get("probed", True) and not wanted and prompts["output_tokens_wanted"] and not own_words:
        found.append("The target does not count the tokens of prompts: one token per word was assumed.")
    if wanted and abs(counted / wanted - 1.0) > OFF:
        found.append(f"The target counts {share(counted / wanted)} of the prompt tokens of the traffic.")
    if about["length"] != "cap" and prompts["shorter_answers"]:
        found.append(f"{prompts['shorter_answers']:,} answers were shorter than the traffic says.")
    found += _contradictions(report)
    if lost := report.get("turns", {}).get("lost"):
        sent = report["turns"]["sent"]
        found.append(
            f"{lost:,} of {sent + lost:,} later turns of conversations were not sent: an answer before them failed, or "
            "came after the end."
        )
    if left_out := about.get("left_out"):
        found.append(f"The target refuses {', '.join(left_out)}: all requests went without.")
    for tier, of in report["tiers"].items():
        others = {name: count for name, count in of["served_as"].items() if name != tier}
        unnamed = about["policy"] is None and tier == about.get("unnamed_tier")
        if others and not unnamed:
            names = ", ".join(f"{count:,} as {name}" for name, count in others.items())
            mend = "give its key with --key, serve a policy that has this tier, or name another with --mix"
            found.append(f"Requests of tier {tier} were served as another tier ({names}): {mend}.")
    return found


def _contradictions(report: Report) -> list[str]:
    """Where the token counts of the target contradict its answers."""
    prompts, found = report["prompts"], []
    if fewer := prompts.get("fewer_tokens_than_pieces"):
        found.append(f"{fewer:,} answers arrived in more pieces than the tokens that the target counts.")
    if report["about"]["length"] != "hidden" and (longer := prompts.get("longer_answers")):
        found.append(f"The target counts more output tokens than were asked for in {longer:,} answers.")
    return found


def apart(report: Report) -> str:
    """The number of requests outside of all shares, and why; empty if all count."""
    reasons: Counter[str] = Counter()
    for of in report["tiers"].values():
        reasons.update(of["apart"])
    if not reasons:
        return ""
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return f"{reasons.total():,} of {report['totals']['offered']:,} requests are in no share: {told}."
