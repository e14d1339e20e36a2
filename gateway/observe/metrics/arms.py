"""Counters of the arms of split models, and comparisons of each arm with the largest arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.policy import Model, Policy
from gateway.core.request import Outcome, Record
from gateway.core.stats import quantile
from gateway.observe.metrics.differences import MIN_REQUESTS, Estimate, deviations, quantile_of, share
from gateway.observe.metrics.facts import Edges
from gateway.observe.metrics.window import EDGES, Quantiles, Sliding

TOLERANCE: Final = 0.05
"""Relative difference of latencies that is tolerated between arms. A small pool queues a little more than a large
one.
"""


class ArmVerdict(StrEnum):
    """Verdict on an arm, compared with the largest arm of its split."""

    LARGEST = "largest"
    TOO_FEW = "too-few"
    """One of the two arms has too few requests."""
    ALIKE = "alike"
    """No difference is certain yet."""
    BETTER = "better"
    WORSE = "worse"


class ArmFacts:
    """Counters of one arm: since the start, over the last minute, and since its split was last changed."""

    OFFERED: Final = 0
    FINISHED: Final = 1
    GOOD: Final = 2
    ERRORS: Final = 3

    __slots__ = ("_before", "counts", "e2e", "outcomes", "recent", "ttft")

    def __init__(self, edges: Edges) -> None:
        self.counts: list[float] = [0, 0, 0, 0]
        """Numbers of requests: offered, finished, good, and failed by a replica."""
        self.recent = Sliding(self.counts)
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.ttft = Quantiles(sorted({*EDGES, *edges.ttft}))
        self.e2e = Quantiles(sorted({*EDGES, *edges.e2e}))
        self.begin()

    def begin(self) -> None:
        """Restart the comparison. Only requests that end from now on are compared."""
        self._before = [list(counts) for counts in (self.counts, self.ttft.histogram.counts, self.e2e.histogram.counts)]

    def add(self, record: Record) -> None:
        """Count one request that is over."""
        outcome, counts = record.outcome, self.counts
        self.outcomes[outcome] += 1
        counts[self.OFFERED] += outcome.counts
        counts[self.ERRORS] += outcome is Outcome.ERROR
        if record.ttft_s is not None:
            self.ttft.histogram.add(record.ttft_s)
        if outcome is Outcome.OK:
            counts[self.FINISHED] += 1
            counts[self.GOOD] += record.good
            self.e2e.histogram.add(record.e2e_s)

    def refused(self) -> None:
        """Count one request that the fallback served, because the arm would not have served it in time."""
        self.outcomes[Outcome.REFUSED] += 1
        self.counts[self.OFFERED] += 1

    def roll(self, now: float) -> None:
        """Advance the sliding window to `now`."""
        for sliding in (self.recent, self.ttft, self.e2e):
            sliding.roll(now)

    def judged(self) -> list[list[float]]:
        """Returns [counts, TTFT buckets, e2e buckets] since the split was last changed."""
        now = (self.counts, self.ttft.histogram.counts, self.e2e.histogram.counts)
        return [
            [count - old for count, old in zip(counts, before, strict=True)]
            for counts, before in zip(now, self._before, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class ArmDifferences:
    """An arm's figures minus those of the largest arm; None if there are too few requests."""

    goodput: Estimate | None = None
    errors: Estimate | None = None
    ttft_p50_s: Estimate | None = None
    ttft_p99_s: Estimate | None = None
    tolerance_p50_s: float = 0.0
    """Tolerated difference of the quantile: `TOLERANCE` times the largest arm's quantile."""
    tolerance_p99_s: float = 0.0

    def verdict(self) -> ArmVerdict:
        """The verdict is worse if any interval is beyond its tolerance on the bad side. Otherwise it is better if any
        interval is on the good side.
        """
        if self.goodput is None or self.errors is None:
            return ArmVerdict.TOO_FEW
        latencies = ((self.ttft_p50_s, self.tolerance_p50_s), (self.ttft_p99_s, self.tolerance_p99_s))
        known = [(found, tolerance) for found, tolerance in latencies if found is not None]
        if self.goodput.high < 0 or self.errors.low > 0 or any(found.low > most for found, most in known):
            return ArmVerdict.WORSE
        if self.goodput.low > 0 or self.errors.high < 0 or any(found.high < -most for found, most in known):
            return ArmVerdict.BETTER
        return ArmVerdict.ALIKE


class Arms:
    """The arms of every split model, by the names of split and arm. Counts are kept when a reload removes an arm."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._splits: dict[str, tuple[tuple[str, int], ...]] = {}
        self.facts: dict[tuple[str, str], ArmFacts] = {}

    def configure(self, policy: Policy) -> None:
        """Apply a policy. If the arms or weights of a split change, its comparison is restarted."""
        splits = {model.name: model.split for model in policy.models.values() if model.split}
        for name, split in splits.items():
            for arm, _ in split:
                facts = self.facts.get((name, arm))
                if facts is None:
                    self.facts[name, arm] = ArmFacts(self._edges)
                elif self._splits.get(name) != split:
                    facts.begin()
        self._splits = splits

    def ended(self, record: Record) -> None:
        """Count one request of a split model. A request that a fallback served counts as refused by its arm.

        An arm that was never in a policy of this process is ignored.
        """
        request = record.request
        facts = self.facts.get((request.split, request.fallback_of or request.model.name))
        if facts is not None and request.fallback_of:
            facts.refused()
        elif facts is not None:
            facts.add(record)

    def roll(self, now: float) -> None:
        """Advance the sliding windows to `now`."""
        for facts in self.facts.values():
            facts.roll(now)

    def differences(self, model: Model) -> Mapping[str, ArmDifferences]:
        """Differences of each other arm of a split from its largest arm, by name."""
        largest = largest_arm(model)
        base = self.facts[model.name, largest]
        return {
            arm: ArmDifferences() if arm == largest else difference(self.facts[model.name, arm], base)
            for arm, _ in model.split
        }


def largest_arm(model: Model) -> str:
    """The arm with the largest weight; the first of several with that weight."""
    return max(model.split, key=lambda arm: arm[1])[0]


def difference(arm: ArmFacts, base: ArmFacts) -> ArmDifferences:
    """The figures of `arm` minus those of `base`."""
    (ours, ttft, _), (theirs, their_ttft, _) = arm.judged(), base.judged()
    offered, their_offered = ours[ArmFacts.OFFERED], theirs[ArmFacts.OFFERED]
    if min(offered, their_offered) < MIN_REQUESTS:
        return ArmDifferences()
    z = deviations(offered, their_offered)

    def shares(index: int) -> Estimate:
        return share(ours[index], offered, z).minus(share(theirs[index], their_offered, z))

    p50, p99 = (_ttft(arm, base, ttft, their_ttft, q) for q in (0.5, 0.99))
    tolerances = [TOLERANCE * (quantile(base.ttft.histogram.edges, their_ttft, q) or 0.0) for q in (0.5, 0.99)]
    return ArmDifferences(shares(ArmFacts.GOOD), shares(ArmFacts.ERRORS), p50, p99, *tolerances)


def _ttft(arm: ArmFacts, base: ArmFacts, ours: Sequence[float], theirs: Sequence[float], q: float) -> Estimate | None:
    if min(sum(ours), sum(theirs)) < MIN_REQUESTS:
        return None
    z = deviations(sum(ours), sum(theirs))
    one = quantile_of(arm.ttft.histogram.edges, ours, q, z)
    other = quantile_of(base.ttft.histogram.edges, theirs, q, z)
    return None if one is None or other is None else one.minus(other)
