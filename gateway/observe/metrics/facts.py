"""Counters of requests per tier, per pool and per replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gateway.core.admission.promises import is_lost
from gateway.core.estimators.histograms import LogHistogram, most_by_chance
from gateway.core.policy import Policy, Tier
from gateway.core.results import Outcome, Reason, Record
from gateway.core.slo import Metric, Objective
from gateway.observe.metrics.stages import STAGES
from gateway.observe.metrics.window import EDGES, NEVER, SLICE_S, SPAN_S, Quantiles, Sliding

# Bucket edges in seconds, from the OpenTelemetry GenAI conventions, extended upwards for long queues and long answers.
TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
TPOT_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
ITL_EDGES = (*TPOT_EDGES, 5, 7.5, 10)
REFUSAL_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
E2E_EDGES = tuple(0.01 * 2**step for step in range(17))
_FINE_REFUSAL_EDGES: Final = tuple(sorted(set(EDGES) | set(REFUSAL_EDGES)))


@dataclass(frozen=True, slots=True)
class Edges:
    """Bucket edges in seconds, for each latency."""

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    itl: tuple[float, ...]
    e2e: tuple[float, ...]
    queue: tuple[float, ...]

    @classmethod
    def of(cls, policy: Policy) -> Edges:
        """The standard edges, with every SLO threshold of `policy` added."""
        slos = [tier.slo for tier in policy.tiers.values()]
        ttft = {o.threshold_s for slo in slos for o in slo.ttft}
        tpot = {o.threshold_s for slo in slos for o in slo.tpot}
        e2e = {o.threshold_s for slo in slos for o in slo.e2e}

        def edges(standard: Sequence[float], thresholds: set[float]) -> tuple[float, ...]:
            return tuple(sorted({float(edge) for edge in (*standard, *thresholds)}))

        return cls(
            edges(TTFT_EDGES, ttft),
            edges(TPOT_EDGES, tpot),
            edges(ITL_EDGES, tpot),
            edges(E2E_EDGES, e2e),
            edges(TTFT_EDGES, set()),
        )


class Attainment:
    """Counts for one objective: requests that met it, requests to which it applied, and answered requests to which it
    applied.

    The counts are since the start and over the last minute. An objective is a promise about answers. It counts as kept
    unless more answers of the last minute missed it than chance explains (one-sided, 5%).
    """

    GOOD: Final = 0
    TOTAL: Final = 1
    ANSWERED: Final = 2

    __slots__ = ("broken_since", "counts", "quantile", "recent")

    def __init__(self, quantile: float) -> None:
        self.counts: list[float] = [0, 0, 0]
        self.recent = Sliding(self.counts)
        self.quantile = quantile
        """Share (0-1) of the answers that must meet the objective."""
        self.broken_since: float | None = None
        """Time since which every check has found the objective broken; None if the last check found it kept."""

    def add(self, finished: bool, value_s: float | None, threshold_s: float) -> None:
        """Count a request to which the objective applies. `value_s`: None if an answer is too short to have it."""
        if not finished:
            self.counts[Attainment.TOTAL] += 1
        elif value_s is not None:
            self.counts[Attainment.TOTAL] += 1
            self.counts[Attainment.ANSWERED] += 1
            self.counts[Attainment.GOOD] += value_s <= threshold_s

    def kept(self, now: float) -> bool | None:
        """Whether the answers of the minute up to `now` keep the objective; None if there were none."""
        good, _, answered = self.recent.read(now)
        if not answered:
            return None
        return answered - good <= most_by_chance(int(answered), 1.0 - self.quantile)

    def kept_for_all(self, now: float) -> bool | None:
        """The same for all requests to which the objective applies: refused and failed ones count as misses."""
        good, total, _ = self.recent.read(now)
        return total - good <= most_by_chance(int(total), 1.0 - self.quantile) if total else None

    def broken_s(self, now: float) -> float:
        """Seconds for which the objective has been broken; 0 if it is kept."""
        return 0.0 if self.broken_since is None else now - self.broken_since

    def roll(self, now: float) -> None:
        """Advance the sliding window to `now`, and check whether the objective is kept."""
        self.recent.roll(now)
        if self.kept(now) is not False:
            self.broken_since = None
        elif self.broken_since is None:
            self.broken_since = now


class Decided(StrEnum):
    """Why a request was admitted. With it, forecasts are compared with outcomes."""

    __hash__ = str.__hash__  # Enum's own hash is a Python function, and slow

    ADMITTED = "admitted"
    EXPLORED = "explored"
    DEGRADED = "degraded"
    WOULD_SHED = "would-shed"


def decided(record: Record) -> Decided:
    """Why this admitted request was admitted."""
    if record.would_shed:
        return Decided.WOULD_SHED
    if record.explored:
        return Decided.EXPLORED
    return Decided.DEGRADED if record.degraded else Decided.ADMITTED


ADMISSIONS: Final = (("no", "refused"), ("no", "admitted"), ("yes", "refused"), ("yes", "admitted"))
"""Meaning of the four admission counts: (whether the client retried, the decision)."""


class RefusalFamily(StrEnum):
    """Class of a refusal: when it happened, or that a failure caused it."""

    __hash__ = str.__hash__  # Enum's own hash is a Python function, and slow

    AT_ONCE = "at-once"
    """Refused on arrival."""
    WAITED = "waited"
    FAILURE = "failure"
    """A replica failed, no replica was available, or the process stopped."""


def family_of(record: Record) -> RefusalFamily | None:
    """The class of the refusal of a request; None if neither the gateway nor a replica refused it."""
    if record.outcome not in (Outcome.REFUSED, Outcome.TIMEOUT, Outcome.ERROR):
        return None
    if not is_lost(record) or record.attempts:
        return RefusalFamily.FAILURE
    return RefusalFamily.WAITED if record.waited else RefusalFamily.AT_ONCE


GAP_S: Final = SPAN_S + SLICE_S
"""Without an event for this long, a streak is over: then no sliding window has one either."""


class Streak:
    """Events of one kind, with no gap of `GAP_S` between them."""

    __slots__ = ("began_at", "latest_at")

    def __init__(self) -> None:
        self.began_at = NEVER
        self.latest_at = NEVER

    def saw(self, now: float) -> None:
        """An event happened."""
        if now - self.latest_at > GAP_S:
            self.began_at = now
        self.latest_at = now

    def age_s(self, now: float) -> float | None:
        """Seconds since the first event; None if the streak is over."""
        return None if now - self.latest_at > GAP_S else now - self.began_at


class TierFacts:
    """Counters of one tier, since the start and over the last minute."""

    GOOD: Final = 0
    FINISHED: Final = 1
    OFFERED: Final = 2

    __slots__ = (
        "admissions",
        "counts",
        "e2e",
        "failing",
        "forecasts",
        "objectives",
        "objectives_of_streams",
        "queue",
        "recent",
        "recent_admissions",
        "recent_stages",
        "refusals",
        "refusing",
        "slo",
        "stages",
        "tier",
        "tpot",
        "ttft",
        "waits",
    )

    def __init__(self, tier: Tier) -> None:
        self.counts: list[float] = [0, 0, 0]
        """Numbers of requests: good, finished, offered."""
        self.recent = Sliding(self.counts)
        self.admissions: list[float] = [0, 0, 0, 0]
        """Numbers of offered requests, in the order of `ADMISSIONS`."""
        self.recent_admissions = Sliding(self.admissions)
        self.stages: list[float] = [0.0] * len(STAGES)
        """Seconds of streamed requests that had a first token, in the order of `STAGES`."""
        self.recent_stages = Sliding(self.stages)
        self.waits: dict[Reason | None, int] = {}
        """Number of requests that waited, by the reason why they were not sent. The key None counts requests that were
        sent.
        """
        self.ttft, self.tpot, self.e2e, self.queue = Quantiles(), Quantiles(), Quantiles(), Quantiles()
        self.refusals = {family: Quantiles(_FINE_REFUSAL_EDGES) for family in RefusalFamily}
        """Seconds from body complete to the refusal, by class."""
        self.refusing, self.failing = Streak(), Streak()
        self.forecasts: dict[tuple[Decided, bool], list[int]] = {}
        """Number of admitted requests, as the only item of a list, by the reason of admission and by whether they were
        good.
        """
        self.slo: dict[tuple[Metric, str], Attainment] = {}
        """Counts of the objectives, by metric and percentile ("p99")."""
        self.follow(tier)

    def follow(self, tier: Tier) -> None:
        """Use the objectives of `tier` from now on."""
        self.tier = tier
        every = [
            (metric, objective.threshold_s, self.attainment(metric, objective))
            for metric, objective in tier.slo.objectives()
        ]
        self.objectives = [each for each in every if each[0] is Metric.E2E]
        """The objectives of all requests: (metric, threshold in seconds, counts)."""
        self.objectives_of_streams = [each for each in every if each[0] is not Metric.E2E]

    def attainment(self, metric: Metric, objective: Objective) -> Attainment:
        """The counts of an objective; created if missing."""
        key = metric, objective.percentile
        found = self.slo.get(key)
        if found is None:
            found = self.slo[key] = Attainment(objective.quantile)
        return found

    def judge(self, record: Record) -> None:
        """Count a request as kept or missed for every objective that applies to it.

        TTFT and TPOT objectives apply to streamed requests, e2e objectives to answers with at most `e2e_up_to_tokens`.
        An unfinished request misses all its objectives. An answer that is too short to have the latency is left out.
        """
        finished = record.outcome is Outcome.OK
        if self.objectives and self.tier.slo.covers(record.output_tokens):
            for _, threshold_s, attainment in self.objectives:
                attainment.add(finished, record.e2e_s, threshold_s)
        if record.request.stream:
            for metric, threshold_s, attainment in self.objectives_of_streams:
                attainment.add(finished, record.ttft_s if metric is Metric.TTFT else record.tpot_s, threshold_s)

    def refused(self, family: RefusalFamily, after_s: float, now: float) -> None:
        """Count a refusal, `after_s` after body complete."""
        self.refusals[family].histogram.add(after_s)
        (self.failing if family is RefusalFamily.FAILURE else self.refusing).saw(now)

    def roll(self, now: float) -> None:
        """Advance the sliding window to `now`."""
        for sliding in (
            self.recent,
            self.recent_admissions,
            self.recent_stages,
            self.ttft,
            self.tpot,
            self.e2e,
            self.queue,
        ):
            sliding.roll(now)
        for told in self.refusals.values():
            told.roll(now)
        for attainment in self.slo.values():
            attainment.roll(now)


@dataclass(slots=True)
class Lane:
    """Counters of one tier in one pool. The pool is "" for requests that never reached a pool."""

    requests: dict[tuple[str, Outcome, Reason | None], list[int]] = field(default_factory=dict)
    """Number of requests, as the only item of a list, by (model, outcome, reason). So a key is looked up once."""
    attempts: int = 0
    dispatched: int = 0
    """Number of requests that reached a replica."""
    held_s: float = 0.0
    """Sum of the seconds from dispatch to end, over all dispatched requests."""
    prompt_tokens: list[int] = field(default_factory=lambda: [0, 0])
    """Prompt tokens: (estimated, exact)."""
    output_tokens: list[int] = field(default_factory=lambda: [0, 0])


class LatencyCell:
    """The latency histograms of one tier, pool and replica."""

    __slots__ = ("e2e", "facts", "lane", "queue", "tpot", "ttft")

    def __init__(self, edges: Edges, facts: TierFacts, lane: Lane) -> None:
        self.facts = facts
        self.lane = lane
        self.ttft = LogHistogram(edges.ttft)
        self.tpot = LogHistogram(edges.tpot)
        self.e2e = LogHistogram(edges.e2e)
        self.queue = LogHistogram(edges.queue)
