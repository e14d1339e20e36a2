"""The story of one request, in lines: for `tailgate why` and the console."""

from __future__ import annotations

from typing import Any

from gateway.core.admission.rules import SAYS
from gateway.core.admission.wording import probability
from gateway.core.decision import RuleName
from gateway.core.results import Reason
from gateway.observe.metrics.stages import FIRST_TOKEN, REST, STAGES, add_stages
from gateway.wire.errors.reasons import ROWS

Document = dict[str, Any]

GOOD_STATUS = 200
PLACES = (
    "receiving the body",
    "waiting in the gateway",
    "in the engine's queue, by the replica's mean",
    "reading the prompt, by the replica's mean",
    "at the replica before the first token",
    "the answer after its first token",
)
"""Names of the stages in texts."""
NAMES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "e2e"))


def story(one: Document) -> list[tuple[str, str]]:
    """The lines about one request: (label, text)."""
    if one["outcome"] == "early":
        return _early(one)
    lines = [("request", _headline(one)), ("who", _who(one)), ("why", _why(one))]
    decision = one["decision"]
    if decision is not None:
        lines.append(("decision", _decision(decision)))
        if decision["forecast"] is not None:
            lines.append(("forecast", _forecast(decision, one["bounds"])))
    lines.append(("measured", _measured(one)))
    lines.append(("tokens", _tokens(one)))
    lines += [("attempt", _attempt(each, one)) for each in one["attempts"]]
    return lines


def _early(one: Document) -> list[tuple[str, str]]:
    reason = Reason(one["reason"])
    field = "" if one["param"] is None else f", field {one['param']}"
    who = " of ".join(text for text in (one["tier"], one["tenant"]) if text) or "no known key"
    return [
        ("request", f"{one['request_id']}, refused unread at {one['ended']}"),
        ("who", who),
        ("why", f"{one['status']} {reason.value}{field}: {ROWS[reason].message}"),
    ]


def _headline(one: Document) -> str:
    if one["ended"] is None:
        return f"{one['request_id']}, under way for {spoken(one['e2e_s'])}: {one['state']}"
    verdict = "good" if one["good"] else "not good"
    outcome = one["outcome"] if one["reason"] is None else f"{one['outcome']} ({one['reason']})"
    return f"{one['request_id']}, {outcome}, {verdict}, arrived {one['arrived']}, ended {one['ended']}"


def _who(one: Document) -> str:
    key = "" if one["key"] is None else f", key {one['key']}"
    model = one["model"] if one["asked_model"] is None else f"{one['model']} for {one['asked_model']}"
    adapter = "" if one["adapter"] is None else f" with adapter {one['adapter']}"
    form = "streamed" if one["stream"] else "whole"
    again = ", a client's retry" if one["client_retry"] else ""
    place = f"{one['tier']} of {one['tenant']}{key}, {one['endpoint']} {form}, model {model}{adapter}{again}"
    return f"{place}, policy generation {one['policy']}"


def _why(one: Document) -> str:
    """The error, or the objectives that a late answer missed."""
    if one["ended"] is None:
        return "not over yet: times are those so far"
    if one["reason"] is not None:
        row = ROWS[Reason(one["reason"])]
        retry = "" if one["retry_after_s"] is None else f" Told to retry after {spoken(one['retry_after_s'])}."
        status = "200, then broken off" if one["status"] == GOOD_STATUS else one["status"]
        return f"{status}: {one['detail'] or row.message}{retry}"
    if one["missed"]:
        late = [
            f"{label} {spoken(one[f'{name}_s'])}, more than {spoken(one['bounds'][f'{name}_s'])}{_mostly(one, name)}"
            for name, label in NAMES
            if name in one["missed"]
        ]
        return f"answered, but late: {'; '.join(late)}"
    return "answered within every objective" if one["good"] else "answered, but cut shorter than the client asked for"


def _mostly(one: Document, name: str) -> str:
    """The stage that took most of a latency."""
    if name == "tpot":
        return ""
    seconds = [0.0] * len(STAGES)
    add_stages(seconds, 0.0, one["queue_s"], one["ttft_s"], one["e2e_s"], one["engine_queue_share"])
    if name == "ttft":
        seconds[REST] = 0.0
    longest = max(range(len(STAGES)), key=seconds.__getitem__)
    place = "at the replica" if longest == FIRST_TOKEN and one["ttft_s"] is None else PLACES[longest]
    return f", mostly {place} ({spoken(seconds[longest])})"


def _decision(decision: Document) -> str:
    rule, binds, breach = RuleName(decision["rule"]), decision["binds"], decision["breach"]
    chance = ""
    if breach is not None:
        shown, limit = f"; P(breach) {probability(breach)}", f"{decision['threshold']:.2f}"
        if binds is None:
            chance = f"{shown}, at most {limit} is admitted"
        elif breach <= decision["threshold"]:
            chance = f"{shown} would be admitted (limit {limit}); the judge of {binds} refuses"
        else:
            chance = f"{shown} does not decide yet; the judge of {binds} refuses"
    mode = "" if decision["mode"] == "enforce" else f", mode {decision['mode']}"
    return f"{rule.value}: {SAYS[rule]}{chance}{mode}"


def _forecast(decision: Document, bounds: Document) -> str:
    forecast = decision["forecast"]
    parts = [f"wait {spoken(forecast['wait_s'])}"]
    for name, label in NAMES:
        bound_s = bounds[f"{name}_s"]
        bound = "" if bound_s is None else f" of {spoken(bound_s)}"
        parts.append(f"{label} {spoken(forecast[f'{name}_s'])}{bound}")
    other = decision["runner_up"]
    if other is not None:
        parts.append(f"runner-up {other['replica']}: TTFT {spoken(other['ttft_s'])}, P(breach) {other['breach']:.2f}")
    return ", ".join(parts)


def _measured(one: Document) -> str:
    parts = [f"received in {spoken(one['receive_s'])}", f"waited {spoken(one['queue_s'])}"]
    share, ttft_s = one["engine_queue_share"], one["ttft_s"]
    if share is not None and ttft_s is not None:
        parts.append(f"then in the engine's queue {spoken(share * (ttft_s - one['queue_s']))} (by the replica's mean)")
    parts += [f"{label} {spoken(one[f'{name}_s'])}" for name, label in NAMES if one[f"{name}_s"] is not None]
    marks = [name for name in ("degraded", "explored", "would_shed") if one[name]]
    if one["hedged"] is not None:
        marks.append(f"hedge {one['hedged']}")
    return ", ".join(parts + marks)


def _tokens(one: Document) -> str:
    cached = "" if one["cached_tokens"] is None else f", {one['cached_tokens']} of them cached"
    source = "by the engine's count" if one["tokens_exact"] else "estimated"
    most = f" of at most {one['max_tokens']}" if one["max_tokens"] else ""
    estimate = one["prompt_tokens_estimated"]
    return f"prompt {one['prompt_tokens']} (estimate {estimate}){cached}; answer {one['output_tokens']}{most}, {source}"


def _attempt(each: Document, one: Document) -> str:
    kind = "hedge to" if each["hedge"] else "to"
    parts = [f"{kind} {each['replica']} (pool {each['pool']}) at {spoken(each['opened_s'])}"]
    if each["first_token_s"] is not None:
        expected = "" if each["expected_ttft_s"] is None else f", expected {spoken(each['expected_ttft_s'])}"
        took_s = each["first_token_s"] - each["opened_s"]
        parts.append(f"first token after {spoken(took_s)}{expected}")
    status = "" if each["status"] in (None, GOOD_STATUS) else f" with HTTP {each['status']}"
    parts.append(f"{each['end']}{status} at {spoken(each['ended_s'])}")
    if len(one["attempts"]) > 1 and each["answered"]:
        parts.append("the client got this one")
    return ", ".join(parts)


def spoken(seconds: float | None) -> str:
    """A time in milliseconds or seconds."""
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.0f} ms" if seconds < 1.0 else f"{seconds:.2f} s"
