"""Judge of one TTFT objective of a tier: limits the share of its answers whose first token is late.

An objective `p50: 500ms` promises that at least half of the tier's answers have their first token within 500 ms. The
judge keeps this inequality, over the answers of the last seconds and the admitted requests that have no first token
yet:

    late answers + expected late answers <= allowed x (answers + admitted)        allowed = SAFETY x (1 - quantile)

A new request that is late with probability p adds p to the left side and 1 to the right count. It is admitted if the
inequality still holds. It is also admitted if p <= allowed: admitting such requests repairs a broken percentile,
refusing them does not. So under overload the queue stays as short as the tightest percentile needs. The highest
percentile counts a refusal after a wait as late.

p is the forecast probability times a margin. The margin is the only thing that is learned: with each answer,

    log margin += STEP x (late - p)        late: 1 or 0, p: as it was admitted

as in adaptive conformal inference (Gibbs and Candes, NeurIPS 2021). So in the long run as many answers are late as were
expected, whatever the engine, the drift or the quality of the forecast.

An objective below the highest percentile may be out of reach even for idle replicas, because a new model is slower or
prompts grew. Refusing requests for its sake would leave the fleet idle. So its judge also averages, over all arrivals,
the probability to be late at an idle replica. While the average exceeds the allowed share, it admits everything, and
the highest percentile decides.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.rates import Decay
from gateway.core.slo import Objective

MEMORY_S: Final = 10.0
"""Time constant (seconds) of forgetting: short, so that an objective holds in each window with enough answers."""
OFFERED_MEMORY_S: Final = 60.0
"""The same for what idle replicas could keep: fewer arrivals would show too little of a mix of prompts."""
SAFETY: Final = 0.9
"""Admissions use up this share of the allowed late answers. The rest is a margin for chance."""
STEP: Final = 0.1
"""Change of log margin per answer. Over 49 cells of four engines, .05 and .2 change the goodput by less than .001."""
MAX_MARGIN: Final = 4.0
"""The margin stays between 1 / `MAX_MARGIN` and this: answers of a nearly idle fleet show little about tails."""


class TtftJudge(Remembering):
    """Holds the share of a tier's answers that miss one TTFT objective."""

    __slots__ = (
        "_admitted",
        "_alone",
        "_answers",
        "_answers_decay",
        "_expected",
        "_late",
        "_log_margin",
        "_offered",
        "_offered_decay",
        "allowed",
        "highest",
        "objective",
    )

    def __init__(self, objective: Objective, highest: bool) -> None:
        self.objective = objective
        self.highest = highest
        """Whether its objective is the highest TTFT percentile of the tier."""
        self.allowed = SAFETY * (1.0 - objective.quantile)
        """Allowed share (0-1) of late answers."""
        self._log_margin = 0.0
        self._answers = self._late = 0.0
        self._answers_decay = Decay(MEMORY_S)
        self._admitted = 0
        self._expected = 0.0
        self._offered = self._alone = 0.0
        self._offered_decay = Decay(OFFERED_MEMORY_S)

    def remembered(self) -> tuple[str, ...]:
        return "_log_margin", "_answers", "_late", "_answers_decay", "_offered", "_alone", "_offered_decay"

    @property
    def open(self) -> int:
        """Number of admitted requests without a first token."""
        return self._admitted

    @property
    def name(self) -> str:
        """Name of its objective, for texts."""
        return f"TTFT {self.objective.percentile}"

    @property
    def margin(self) -> float:
        """The factor on forecast probabilities, 1 / `MAX_MARGIN` to `MAX_MARGIN`."""
        return math.exp(self._log_margin)

    def corrected(self, p: float) -> float:
        """The forecast probability `p` (0-1), corrected by the margin."""
        return min(1.0, self.margin * p)

    def admits(self, p: float, now: float) -> bool:
        """Whether one more request may be admitted. `p` (0-1): P(it is late), corrected."""
        return p <= self.allowed or self.is_beyond() or self.late_share(p, now) <= self.allowed

    def late_share(self, p: float, now: float) -> float:
        """Share (0-1) of late answers with one more request, admitted ones included. `p`: as for `admits`."""
        kept = self._answers_decay.kept(now)
        return (kept * self._late + self._expected + p) / (kept * self._answers + self._admitted + 1.0)

    def offered(self, alone: float, now: float) -> None:
        """Count an arrival. `alone` (0-1): P(an idle replica would be late for it)."""
        kept = self._offered_decay.forget(now)
        self._offered = kept * self._offered + 1.0
        self._alone = kept * self._alone + alone

    def is_beyond(self) -> bool:
        """Whether even idle replicas would break the objective under the offered requests."""
        return SAFETY * self.margin * self._alone > self.allowed * self._offered

    def admitted(self, p: float) -> None:
        """Count an admitted request. `p` (0-1): P(it is late), corrected."""
        self._admitted += 1
        self._expected += p

    def dropped(self, p: float) -> None:
        """Remove an admitted request from the counts, without an answer."""
        self._admitted -= 1
        # 0 when no request is left, so rounding errors do not add up
        self._expected = self._expected - p if self._admitted else 0.0

    def judged(self, p: float, late: bool, now: float, had_costs: bool = True) -> None:
        """Count the answer of an admitted request. `p`: P(it is late), as forecast at its admission.

        `had_costs`: whether costs were known at admission. Without them the answer says nothing about later forecasts.
        """
        self.dropped(p)
        one = 1.0 if late else 0.0
        kept = self._answers_decay.forget(now)
        self._answers = kept * self._answers + 1.0
        self._late = kept * self._late + one
        if had_costs:
            most = math.log(MAX_MARGIN)
            self._log_margin = max(-most, min(most, self._log_margin + STEP * (one - p)))


def ttft_judges(before: tuple[TtftJudge, ...], objectives: tuple[Objective, ...]) -> tuple[TtftJudge, ...]:
    """One judge for each TTFT objective of a tier. Judges of unchanged objectives keep their counts."""
    kept = {(judge.objective, judge.highest): judge for judge in before}
    last = max(objectives, key=lambda objective: objective.quantile)
    return tuple(
        kept.get((objective, objective is last)) or TtftJudge(objective, objective is last) for objective in objectives
    )
