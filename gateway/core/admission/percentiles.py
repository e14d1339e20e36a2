"""Each TTFT percentile of a tier as a constraint on its admissions.

An objective `p50: 500ms` promises that at least half of the tier's answers have their first token within 500 ms. The
constraint covers the answers of the last seconds, and the admitted requests without a first token:

    late answers + expected late answers <= (1 - quantile) x (answers + admitted)

A newcomer that is late with probability p adds p to the left side. It is admitted if the sum still holds. It is also
admitted if p is no more than the objective allows: that mends a broken promise, and refusing it would not. So under
overload the queue stays as short as the tightest percentile needs it.

Forecasts over- or underestimate the tails. So p is multiplied by the late answers of the last minute over those
forecast.

A request that still waits when the highest percentile is missed is refused, not answered late. To wait for a refusal is
worse than to be refused at once. So the guard of the highest percentile counts these requests as late, and allows
`IN_VAIN` of the admitted.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.policy import Objective

MEMORY_S: Final = 10.0
"""Answers are forgotten exponentially over so long. A promise holds over any window with enough answers."""
BIAS_MEMORY_S: Final = 60.0
SAFETY: Final = 0.9
"""Share of the allowed late answers that is planned for. The rest is left to chance."""
IN_VAIN: Final = 0.01
"""Share of the admitted that may wait in vain: refused when they miss the highest percentile."""
PRIOR: Final = 1.0
"""Prior count of late answers that were forecast: the forecast is believed until answers show otherwise."""
DOUBTED: Final = 0.1
"""Prior of late answers for the highest percentile, as part of `PRIOR`: little is known of a tail before answers."""
MAX_BIAS: Final = 4.0


class PercentileGuard:
    """Late and expected late answers of one objective of one tier."""

    __slots__ = (
        "_admitted",
        "_allowed",
        "_answers",
        "_at",
        "_expected",
        "_foreseen",
        "_late",
        "_missed",
        "_prior",
        "last",
        "objective",
    )

    def __init__(self, objective: Objective, last: bool) -> None:
        self.objective = objective
        self.last = last
        """Whether it is the highest percentile: requests wait no longer than its threshold, and vain waits are late."""
        self._allowed = SAFETY * (1.0 - objective.quantile)
        if last:
            self._allowed = max(self._allowed, IN_VAIN)
        self._answers = self._late = 0.0
        self._prior = DOUBTED * PRIOR if last else PRIOR
        self._foreseen, self._missed = PRIOR, self._prior
        self._at = 0.0
        self._admitted = 0
        self._expected = 0.0

    @property
    def open(self) -> int:
        """Requests that were admitted and have no first token yet."""
        return self._admitted

    def admits(self, late: float, now: float) -> bool:
        """Whether the objective is kept with one more request, which is forecast late with probability `late` (0-1)."""
        bias = min(MAX_BIAS, self._missed / self._foreseen)
        if bias * late <= self._allowed:
            return True
        kept = math.exp((self._at - now) / MEMORY_S)
        count = kept * self._answers + self._admitted + 1.0
        return kept * self._late + bias * (self._expected + late) <= self._allowed * count

    def admitted(self, late: float) -> None:
        """A request with forecast `late` was admitted."""
        self._admitted += 1
        self._expected += late

    def dropped(self, late: float) -> None:
        """An admitted request with forecast `late` will never have a first token."""
        self._admitted -= 1
        self._expected = self._expected - late if self._admitted else 0.0  # drops rounding errors when none is left

    def answered(self, late: float, ttft_s: float, now: float) -> None:
        """An admitted request with forecast `late` has its first token; `ttft_s` inf: it waited in vain."""
        self.dropped(late)
        is_late = 1.0 if ttft_s > self.objective.threshold_s else 0.0
        kept = math.exp((self._at - now) / MEMORY_S)
        self._answers = kept * self._answers + 1.0
        self._late = kept * self._late + is_late
        kept = math.exp((self._at - now) / BIAS_MEMORY_S)
        self._foreseen = PRIOR + kept * (self._foreseen - PRIOR) + late
        self._missed = self._prior + kept * (self._missed - self._prior) + is_late
        self._at = now
