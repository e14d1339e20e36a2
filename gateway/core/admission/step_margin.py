"""Margin between the step that an objective allows and the mean step of a replica that still keeps it.

A budget can bound the mean step (fleet/step_budget.py). An objective is about single answers, which vary around that
mean. How much they vary depends on the sizes of prompts and the lengths of answers. So the margin is measured, as in
adaptive conformal inference (Gibbs and Candes, NeurIPS 2021). Each answer made near the limit moves it:

    in time:  log margin += STEP x planned        late:  log margin -= STEP x (1 - planned)

It settles where the planned share of answers is late: SAFETY times the share that the objective allows. At the full
share, every other window would by chance have too many late answers.

For a TPOT objective, the allowed step equals its threshold. For an e2e objective, it is the step in which nearly all
answers end in time. It is (threshold - usual TTFT) / tokens, with the tokens that only a share 1 - quantile of the
answers exceeds.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.percentiles import SAFETY
from gateway.core.policy import Objective

START: Final = 0.85
"""On six engines the p99 of TPOT of a full replica is 1.05 to 1.2 times its mean."""
LONG_START: Final = 1.0
"""The same for e2e, which only long answers miss: their TPOT averages many steps."""
STEP: Final = 0.02
"""For a p99, a hundred answers in time undo one late answer."""
MIN_MARGIN: Final = 0.3
"""Misses that load does not explain must not empty a replica."""
MAX_MARGIN: Final = 1.25
"""Above 1, since the model may overestimate, and a p50 must be met by only half of the answers."""
NEAR: Final = 0.3
"""Only answers forecast above this share of the limit count: the others came from a nearly idle replica.

One prompt of another request in one step breaks the TPOT of an answer of ten tokens, however short the mean step is. At
.7 four of five answers to code on 70B with 4 A100 did not count, and a tenth of those were late.
"""
FOLLOW: Final = 0.05


class StepMargin:
    """The margin of one objective in one pool."""

    __slots__ = ("_allowed_s", "_log", "objective", "ttft_s")

    def __init__(self, objective: Objective, start: float = START) -> None:
        self.objective = objective
        self._allowed_s = objective.threshold_s
        self._log = math.log(start)
        self.ttft_s = 0.0
        """Usual TTFT of its answers."""

    @property
    def limit_s(self) -> float:
        """Longest mean step that keeps the objective."""
        return math.exp(self._log) * self._allowed_s

    def fit(self, tokens: float) -> None:
        """For an e2e objective: all but the allowed share of the answers have at most `tokens` (>= 1)."""
        self._allowed_s = max(0.0, self.objective.threshold_s - self.ttft_s) / tokens

    def learn(self, forecast_s: float, late: bool) -> None:
        """An answer was in time or late; its forecast was `forecast_s` per token."""
        if forecast_s < NEAR * self.limit_s:
            return
        planned = SAFETY * (1.0 - self.objective.quantile)
        self._log += STEP * (planned - 1.0 if late else planned)
        self._log = max(math.log(MIN_MARGIN), min(math.log(MAX_MARGIN), self._log))

    def saw_ttft(self, ttft_s: float) -> None:
        """An answer had its first token after `ttft_s`."""
        self.ttft_s += FOLLOW * (ttft_s - self.ttft_s)
