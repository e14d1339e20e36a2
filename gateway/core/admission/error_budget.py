"""Error budget of a tier: the misses that its percentiles still allow, which set how much risk it takes.

An objective `p99: 1s` allows one request in a hundred to be slower. The objective of the tier with the least budget
left decides:

    left = 1 - (share of answers that missed it lately) / (1 - quantile)        1: nothing missed, 0: all used up

The tier's threshold for P(breach) is multiplied by 1 + SWING x left, left within -1 and 1. Only answers count. Were
refusals to count, a tier that sheds would look worse, take less risk and shed more.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import Metric, Slo
from gateway.core.request import Outcome, Record

MEMORY_S: Final = 300.0
EVERY_S: Final = 0.005
SWING: Final = 0.5
MIN_ANSWERS: Final = 50.0
"""With fewer answers the threshold of the policy applies unchanged."""
MAX: Final = 0.95


class ErrorBudget:
    """Answers and misses of one tier by objective, forgotten exponentially over `MEMORY_S`."""

    __slots__ = ("_answers", "_at", "_misses", "_next_at", "_objectives", "left", "slo")

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self._objectives = slo.objectives()
        self._misses = [0.0] * len(self._objectives)
        self._answers = [0.0] * len(self._objectives)
        self._at = 0.0
        self._next_at = -math.inf
        self.left = 0.0
        """Budget left, -1 to 1; 0 until there are enough answers."""

    def threshold(self, written: float) -> float:
        """Largest P(breach) to admit, where the policy says `written`."""
        return written if written >= MAX else min(MAX, written * (1.0 + SWING * self.left))

    def count(self, slo: Slo, record: Record, now: float) -> None:
        """Count an answer of the tier that had the objectives `slo`. Objectives of before a reload are ignored.

        At most one answer in `EVERY_S` is counted.
        """
        if now < self._next_at or record.outcome is not Outcome.OK or (slo is not self.slo and slo != self.slo):
            return
        self._next_at = now + EVERY_S
        kept = math.exp((self._at - now) / MEMORY_S)
        self._at = now
        left, enough = 1.0, False
        for index, (metric, objective) in enumerate(self._objectives):
            took_s = _latency(metric, slo, record)
            misses, answers = self._misses[index] * kept, self._answers[index] * kept
            if took_s is not None:
                answers += 1.0
                misses += took_s > objective.threshold_s
            self._misses[index], self._answers[index] = misses, answers
            if answers >= MIN_ANSWERS:
                enough = True
                left = min(left, 1.0 - misses / answers / (1.0 - objective.quantile))
        self.left = max(-1.0, left) if enough else 0.0


def _latency(metric: Metric, slo: Slo, record: Record) -> float | None:
    """Seconds of `metric`; None if the objective does not cover this answer."""
    match metric:
        case Metric.TTFT:
            return record.ttft_s
        case Metric.TPOT:
            return record.tpot_s
        case Metric.E2E:
            return record.e2e_s if slo.covers(record.output_tokens) else None
