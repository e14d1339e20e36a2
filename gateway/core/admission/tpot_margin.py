"""Margin between a TPOT objective and the longest mean step of a replica that still keeps it.

A budget can bound the mean step (fleet/step_budget.py). An objective is about single answers, which scatter around the
mean. How far depends on the sizes of prompts and the lengths of answers. So the margin is measured, as in adaptive
conformal inference (Gibbs and Candes, NeurIPS 2021). Each answer made near the limit moves it:

    in time:  log margin += STEP x (1 - quantile)         late:  log margin -= STEP x quantile

It rests where the share of late answers is the one that the objective allows.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import Objective

START: Final = 0.85
"""On six engines the p99 of a full replica is 1.05 to 1.2 times its mean."""
STEP: Final = 0.02
"""For a p99, a hundred answers in time undo one late answer."""
MIN_MARGIN: Final = 0.5
"""Misses that load does not explain must not empty a replica."""
MAX_MARGIN: Final = 1.25
"""Above 1, since the model may overestimate, and a p50 has to be met by only half of the answers."""
NEAR: Final = 0.7
"""Only answers forecast above this share of the limit count: the others were not made by a full replica."""


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
