"""Counts useless answers as load."""

from __future__ import annotations

from gateway.core.admission.forecaster import Forecaster
from gateway.core.fleet.evidence import EVIDENCE, Says, seen_of
from gateway.core.learner import Learner
from gateway.core.request import AttemptResult
from gateway.core.request_state import Attempt


class UselessAnswers(Learner):
    """Counts a useless answer as load for as long as a useful answer would take."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster

    def closed(self, attempt: Attempt, finish: AttemptResult, now: float) -> None:
        pool = attempt.replica.pool
        if EVIDENCE[seen_of(finish)].says is Says.ODD:
            pool.imputed.add(attempt.slot, self._forecaster.costs(pool).stay_s, now)
