"""Error budget of a tier: the misses that its percentiles still allow. It scales the tier's threshold for P(breach).

An objective `p99: 1s` allows one request in a hundred to be slower. The objective with the least budget left decides
for the tier:

    left = 1 - (share of answers that missed it lately) / (1 - quantile)        1: nothing missed, 0: all used up

The tier's threshold for P(breach) is multiplied by 1 + SWING x left, with `left` clamped to -1..1. Only answers change
the budget, not refusals. Counting refusals would make a tier that sheds look worse, take less risk and shed more.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.results import Outcome, Record
from gateway.core.slo import Metric, Objective, Slo

MEMORY_S: Final = 300.0
EVERY_S: Final = 0.005
SWING: Final = 0.5
MIN_ANSWERS: Final = 50.0
"""With fewer answers than this, the policy's threshold applies unchanged."""
MAX: Final = 0.95


class ObjectiveCount:
    """Number of answers to which one objective applies, and how many of them missed it."""

    __slots__ = ("allowed", "answers", "metric", "misses", "threshold_s")

    def __init__(self, metric: Metric, objective: Objective) -> None:
        self.metric = metric
        self.threshold_s = objective.threshold_s
        self.allowed = 1.0 - objective.quantile
        self.answers = self.misses = 0.0


class ErrorBudget:
    """Answers and misses of one tier by objective. Old ones are forgotten exponentially, with time constant
    `MEMORY_S`.
    """

    __slots__ = ("_at", "_counts", "_next_at", "left", "slo")

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self._counts = [ObjectiveCount(metric, objective) for metric, objective in slo.objectives()]
        self._at = 0.0
        self._next_at = -math.inf
        self.left: float | None = None
        """Budget left, -1 to 1; None until there are enough answers."""

    def threshold(self, written: float) -> float:
        """Largest P(breach) that is admitted. `written`: the value in the policy."""
        if self.left is None or written >= MAX:
            return written
        return min(MAX, written * (1.0 + SWING * self.left))

    def count(self, slo: Slo, record: Record, now: float) -> None:
        """Count an answer. `slo`: the objectives that its request had. Objectives that a reload has removed are
        ignored.

        At most one answer in `EVERY_S` is counted.
        """
        if now < self._next_at or record.outcome is not Outcome.OK or (slo is not self.slo and slo != self.slo):
            return
        self._next_at = now + EVERY_S
        kept = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        e2e_s = record.e2e_s if slo.covers(record.output_tokens) else None
        left, enough = 1.0, False
        for count in self._counts:
            metric = count.metric
            took_s = record.ttft_s if metric is Metric.TTFT else record.tpot_s if metric is Metric.TPOT else e2e_s
            count.misses *= kept
            count.answers *= kept
            if took_s is not None:
                count.answers += 1.0
                if took_s > count.threshold_s:
                    count.misses += 1.0
            if count.answers >= MIN_ANSWERS:
                enough = True
                left = min(left, 1.0 - count.misses / count.answers / count.allowed)
        self.left = max(-1.0, left) if enough else None
