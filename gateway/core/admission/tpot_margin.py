"""How close to a TPOT objective the mean step of a replica may come, so that the written share of answers is in time.

The mean step is what a budget can hold (fleet/step_budget.py); an objective is of single answers, which scatter around
it. How far, no model says: it depends on how lumpy prompts are and how long answers. So it is measured, as adaptive
conformal inference does (Gibbs and Candes, NeurIPS 2021): each answer that was made near the limit moves the margin,

    in time:  log margin += STEP x (1 - quantile)         late:  log margin -= STEP x quantile

and rests where the share of late answers is the one that the objective allows.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import Objective

START: Final = 0.85
"""On six engines the p99 of a full replica is 1.05 to 1.2 times its mean."""
STEP: Final = 0.02
"""A hundred answers in time, of a p99, undo one that was late."""
MIN_MARGIN: Final = 0.5
"""A miss that the load does not explain must not empty a replica."""
MAX_MARGIN: Final = 1.25
"""Above 1: the model may expect too much, and half of the answers are to meet a p50."""
NEAR: Final = 0.7
"""Answers count whose forecast was above this share of the limit: others say nothing of a full replica."""


class TpotMargin:
    """The margin of one objective in one pool."""

    __slots__ = ("_log", "_objective", "limit_s")

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._log = math.log(START)
        self.limit_s = START * objective.threshold_s
        """Longest mean step that keeps the objective."""

    def learn(self, forecast_s: float, tpot_s: float) -> None:
        """An answer took `tpot_s` per token, where `forecast_s` was expected."""
        quantile, bound_s = self._objective.quantile, self._objective.threshold_s
        if forecast_s < NEAR * self.limit_s:
            return
        self._log += STEP * ((1.0 - quantile) if tpot_s <= bound_s else -quantile)
        self._log = max(math.log(MIN_MARGIN), min(math.log(MAX_MARGIN), self._log))
        self.limit_s = math.exp(self._log) * bound_s
