"""Counters of the arms of split models."""

from __future__ import annotations

from typing import Final

from gateway.core.policy import Policy
from gateway.core.results import Outcome, Record
from gateway.observe.metrics.facts import Edges
from gateway.observe.metrics.window import EDGES, Quantiles, Sliding


class ArmFacts:
    """Counters of one arm: since the start, and over the last minute."""

    OFFERED: Final = 0
    FINISHED: Final = 1
    GOOD: Final = 2
    ERRORS: Final = 3

    __slots__ = ("counts", "e2e", "outcomes", "recent", "ttft")

    def __init__(self, edges: Edges) -> None:
        self.counts: list[float] = [0, 0, 0, 0]
        """Numbers of requests: offered, finished, good, and failed by a replica."""
        self.recent = Sliding(self.counts)
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.ttft = Quantiles(sorted({*EDGES, *edges.ttft}))
        self.e2e = Quantiles(sorted({*EDGES, *edges.e2e}))

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


class Arms:
    """The arms of every split model, by the names of split and arm. Counts are kept when a reload removes an arm."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self.facts: dict[tuple[str, str], ArmFacts] = {}

    def configure(self, policy: Policy) -> None:
        """Apply a policy."""
        for model in policy.models.values():
            for arm, _ in model.split:
                if (model.name, arm) not in self.facts:
                    self.facts[model.name, arm] = ArmFacts(self._edges)

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
