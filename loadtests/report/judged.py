"""Judges the requests of a test: good or not, and why not. The results are columns beside the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gateway.core.policy import Tier
from gateway.core.slo import Slo
from loadtests.replay.columns import Mask, Rows
from loadtests.replay.request import Outcome

NO_SLO = Slo()
NOT_COUNTED = [int(outcome) for outcome in Outcome if not outcome.counts]
LATE = {"ttft": "late: TTFT", "tpot": "late: TPOT", "e2e": "late: e2e"}
ERRORS = {
    Outcome.FAILED: "error status",
    Outcome.ERROR_EVENT: "error in the stream",
    Outcome.TRUNCATED: "broken off",
    Outcome.RESET: "reset",
    Outcome.CONNECT: "no connection",
    Outcome.TIMEOUT: "client timeout",
    Outcome.NO_HTTP: "no HTTP",
    Outcome.EMPTY: "empty answer",
}
"""Outcomes with an error, and their names in reports."""


class Held(Protocol):
    """The objectives of a test: a policy, or the kept part of one."""

    @property
    def tiers(self) -> Mapping[str, Tier]: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of the report, sorted by the time at which they were due, with their worth."""

    rows: Rows
    counted: Mask
    """Whether each row is in the denominator of goodput: all are, except 4xx, quotas, and requests that were stopped
    while they could still be good.
    """
    finished: Mask
    good: Mask
    late: Mapping[str, Mask]
    """By metric: whether each request was beyond the bound at its end, or when the test was stopped."""

    @property
    def beyond(self) -> Mask:
        """Whether each row is beyond the bound of a metric."""
        return _any_of(self.late)

    def of(self, chosen: Mask) -> Judged:
        """The chosen rows alone."""
        at = np.flatnonzero(chosen)  # see Rows
        late = {metric: mask[at] for metric, mask in self.late.items()}
        return Judged(self.rows[at], self.counted[at], self.finished[at], self.good[at], late)


def judge(rows: Rows, tiers: list[str], policy: Held | None) -> Judged:
    """Judge every row by its tier's objectives. Without a policy every finished request is good.

    A good request finished and was not cut short, and each observed latency is within the threshold of its metric's
    highest percentile. A stream without a first token misses every TTFT objective. Latencies count from when the
    request was due. A request that was open when the test was stopped is a miss if it was beyond a bound already.
    Otherwise a target that hangs would look better if the test was stopped.
    """
    outcome = rows["outcome"]
    finished, stopped = outcome == Outcome.FINISHED, outcome == Outcome.INTERRUPTED
    waited_s = rows["e2e_s"]
    late = {metric: np.zeros(len(rows), dtype=np.bool_) for metric in LATE}
    for number in np.unique(rows["tier"]):
        slo = slo_of(policy, tiers[number])
        own = rows["tier"] == number
        done, left = own & finished, own & stopped
        for metric, bound_s in (("ttft", slo.ttft_bound_s), ("tpot", slo.tpot_bound_s), ("e2e", slo.e2e_bound_s)):
            # NaN (not observed) is not beyond a bound, except for a missing first token of a stream.
            values = rows[f"{metric}_s"]
            beyond = done & (values > bound_s)
            if metric == "ttft" and slo.ttft:
                beyond |= done & (rows["streamed"] != 0) & np.isnan(values)
                first_s = np.where(np.isnan(values), waited_s, values)
                beyond |= left & (rows["streamed"] != 0) & (first_s > bound_s)
            if metric == "e2e" and slo.e2e_up_to_tokens is not None:
                beyond &= rows["output_tokens"] <= slo.e2e_up_to_tokens
            elif metric == "e2e":
                beyond |= left & (waited_s > bound_s)
            late[metric] |= beyond
    counted = ~np.isin(outcome, NOT_COUNTED) | late["ttft"] | late["e2e"]
    return Judged(rows, counted, finished, finished & ~_any_of(late), late)


def _any_of(late: Mapping[str, Mask]) -> Mask:
    return late["ttft"] | late["tpot"] | late["e2e"]


def slo_of(policy: Held | None, tier: str) -> Slo:
    """The objectives of a tier; none without a policy. Raises ValueError if the policy has no such tier."""
    if policy is None:
        return NO_SLO
    if tier not in policy.tiers:
        known = ", ".join(policy.tiers)
        raise ValueError(
            f"the traffic has tier {tier}, the policy only {known}: give a policy that has it, or other traffic"
        )
    return policy.tiers[tier].slo


def misses(judged: Judged, reasons: list[str]) -> dict[str, int]:
    """Counted requests that were not good, by reason, the most frequent first. Each has one reason."""
    rows = judged.rows
    missed = judged.counted & ~judged.good
    found: dict[str, int] = {}
    left = missed & judged.beyond
    for metric, name in LATE.items():
        count = int(np.count_nonzero(left & judged.late[metric]))
        left &= ~judged.late[metric]
        if count:
            found[name] = count
    return _ranked(found, rows[missed & ~judged.beyond], reasons)


def apart(judged: Judged, reasons: list[str]) -> dict[str, int]:
    """Requests outside of all shares, by reason, the most frequent first."""
    return _ranked({}, judged.rows[~judged.counted], reasons)


def _ranked(found: dict[str, int], others: Rows, reasons: list[str]) -> dict[str, int]:
    for outcome, reason, count in _groups(others):
        name = _named(Outcome(outcome), reasons[reason])
        found[name] = found.get(name, 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _groups(rows: Rows) -> list[tuple[int, int, int]]:
    """The number of rows with each outcome and reason: (outcome, reason, number)."""
    keys = rows["outcome"].astype(np.int64) << 16 | rows["reason"]
    values, counts = np.unique(keys, return_counts=True)
    return [(int(value) >> 16, int(value) & 0xFFFF, int(count)) for value, count in zip(values, counts, strict=True)]


def _named(outcome: Outcome, reason: str) -> str:
    match outcome:
        case Outcome.SHED:
            return f"shed: {reason}"
        case Outcome.CUT:
            return f"cut short: {reason}"
        case Outcome.UNFINISHED | Outcome.INTERRUPTED:
            return outcome.name.lower()
        case Outcome.QUOTA | Outcome.INVALID:
            return f"{outcome.name.lower()}: {reason}"
        case _:
            return f"{ERRORS[outcome]}: {reason}" if reason else ERRORS[outcome]
