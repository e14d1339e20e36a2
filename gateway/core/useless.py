"""Counts useless answers."""

from __future__ import annotations

from gateway.core.admission.forecaster import Forecaster
from gateway.core.fleet.odd_answers import is_odd
from gateway.core.learner import Learner
from gateway.core.request import AttemptOutcome, AttemptResult
from gateway.core.request_state import Attempt


class UselessAnswers(Learner):
    """Counts odd answers per replica. A useless answer also counts as load for as long as a useful answer would
    take.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def closed(self, attempt: Attempt, finish: AttemptResult, now: float) -> None:
        pool = attempt.replica.pool
        odd = is_odd(finish)
        if odd or finish.end is AttemptOutcome.FAILED:
            pool.imputed.add(attempt.slot, self._forecaster.costs(pool).stay_s, now)
        if odd or finish.end is AttemptOutcome.COMPLETE:
            pool.answered(attempt.replica, odd)
