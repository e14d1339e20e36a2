"""Margin: the mean step at which a replica keeps an objective, divided by the step that the objective allows for one
answer.

The step budget limits the mean step (fleet/step_budget.py). An objective is about single answers, which vary around the
mean. How much they vary depends on the sizes of prompts and the lengths of answers. So the margin is measured, as in
adaptive conformal inference (Gibbs and Candes, NeurIPS 2021). Each answer near the limit moves the margin:

    in time:  log margin += STEP x planned        late:  log margin -= STEP x (1 - planned)

The margin settles where at most a share `planned` of the answers is late: a part of the share that the objective
allows. With the full share, half of all time windows would by chance have too many late answers. Answers that are far
from the limit, early or late, do not move it.

For a TPOT objective, the allowed step equals its threshold. For an e2e objective, the allowed step is (threshold -
usual TTFT at the engine) / tokens. Here `tokens` is the length that only a share 1 - quantile of the answers exceeds.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.ttft_judge import SAFETY
from gateway.core.slo import Objective

START: Final = 0.85
"""First margin of a TPOT objective. On six engines, the p99 TPOT of a full replica is 1.05 to 1.2 times its mean."""
LONG_START: Final = 1.0
"""First margin of an e2e objective. Only long answers miss such an objective, and their TPOT is close to the mean step.
"""
STEP: Final = 0.02
"""Change of the logarithm of the margin, as in the formula above. For a p99, a hundred answers in time undo one late
answer.
"""
MIN_MARGIN: Final = 0.3
"""Lower bound, so that misses from other causes than load do not empty a replica."""
MAX_MARGIN: Final = 1.25
"""Upper bound. It is above 1, because the model may overestimate steps, and because only half of the answers must meet
a p50.
"""
TAIL: Final = 0.9
"""Objectives above this percentile are about rare answers."""
TAIL_SAFETY: Final = 0.5
"""Part of the allowed share that is planned to be late, for these objectives. Late answers come in clusters, so with .9
one of ten windows of 10 s broke the e2e objective of three tiers on an 8B model. Goodput was the same.
"""
NEAR: Final = 0.3
"""An answer counts only if its forecast TPOT is above this share of the limit. Other answers came from a nearly idle
replica.

The share is low, because one prompt read in one step breaks the TPOT of an answer of ten tokens, however short the mean
step is. With .7, four of five answers of the code workload (70B model on 4 A100) did not count, and a tenth of these
were late.
"""
NEAR_IN_TIME: Final = 0.85
"""The same share, for answers in time and a percentile up to `TAIL`. If half of the answers of a half-full replica are
in time, the limit may not rise. With .3, a p50 of 50 ms on a 70B model was kept in .89 of the windows of 10 s at the
knee, with .85 in .98.
"""
FOLLOW: Final = 0.05


def planned_late(quantile: float) -> float:
    """Share (0-1) of late answers at which the margin of an objective settles. `quantile`: that of the objective."""
    return (TAIL_SAFETY if quantile > TAIL else SAFETY) * (1.0 - quantile)


class StepMargin(Remembering):
    """The margin of one objective in one pool."""

    __slots__ = ("_allowed_s", "_log", "objective", "ttft_s")

    def __init__(self, objective: Objective, start: float = START) -> None:
        self.objective = objective
        self._allowed_s = objective.threshold_s
        self._log = math.log(start)
        self.ttft_s = 0.0
        """Mean TTFT (seconds) at the engine; recent answers count most."""

    def remembered(self) -> tuple[str, ...]:
        return "_log", "ttft_s"

    @property
    def limit_s(self) -> float:
        """Longest mean step, in seconds, that keeps the objective."""
        return math.exp(self._log) * self._allowed_s

    def fit(self, tokens: float) -> None:
        """Set the allowed step of an e2e objective. `tokens` (>= 1): the length that only the allowed share of answers
        exceeds.
        """
        self._allowed_s = max(0.0, self.objective.threshold_s - self.ttft_s) / tokens

    def learn(self, forecast_s: float, late: bool) -> None:
        """Learn from an answer that was in time or late. `forecast_s`: its forecast TPOT."""
        near = NEAR if late or self.objective.quantile > TAIL else NEAR_IN_TIME
        if forecast_s < near * self.limit_s:
            return
        planned = planned_late(self.objective.quantile)
        self._log += STEP * (planned - 1.0 if late else planned)
        self._log = max(math.log(MIN_MARGIN), min(math.log(MAX_MARGIN), self._log))

    def saw_ttft(self, ttft_s: float) -> None:
        """Learn the TTFT of an answer, without its wait in the gateway."""
        self.ttft_s += FOLLOW * (ttft_s - self.ttft_s)
