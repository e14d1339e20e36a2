"""Learned facts of one pool: what its engine costs, and how forecasts err."""

from __future__ import annotations

from typing import Final

from gateway.core.estimators.drift import PageHinkley
from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.estimators.logistic import Calibration, features
from gateway.core.estimators.memory import Remembering, objects_in
from gateway.core.estimators.spread import Spread
from gateway.core.forecast.reliability import Scores
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.prediction import Ahead, Forecast
from gateway.core.snapshot import PoolLearnedView, Trust

COLD_SAMPLES: Final = 30
"""Costs count as known after this many latency samples (first tokens or whole answers)."""
TRUSTED_SAMPLES: Final = 100
"""P(breach) decides only after this many: the spread of latencies is learned later than their costs."""


class PoolLearned(Remembering):
    """Learned facts of one pool."""

    __slots__ = ("_breach", "costs", "drift", "samples", "scores", "spread")

    def __init__(self) -> None:
        self.costs = LatencyModel()
        self.spread = Spread()
        self._breach: dict[str, Calibration] = {}
        """Calibration of P(breach), by tier, where everything is admitted. Later arrivals overtake requests of less
        urgent tiers, so for these the same raw probability means a higher risk.
        """
        self.drift = PageHinkley()
        self.scores = Scores()
        """Labels of P(breach)."""
        self.samples = 0
        """Latencies that were compared with their forecasts: first tokens, or whole answers."""

    def remembered(self) -> tuple[str, ...]:
        return "costs", "spread", "samples"

    def memory(self) -> dict[str, object]:
        """The fields, and the calibrations by tier."""
        return {**super().memory(), "breach": {tier: each.memory() for tier, each in self._breach.items()}}

    def recall(self, memory: object, shift_s: float) -> None:
        """Take over the facts of a predecessor."""
        super().recall(memory, shift_s)
        for tier, told in objects_in(objects_in(memory).get("breach")).items():
            calibration = self._breach[tier] = Calibration()
            calibration.recall(told, shift_s)

    @property
    def has_costs(self) -> bool:
        """Whether there are enough samples for engine costs to be known."""
        return self.samples >= COLD_SAMPLES

    @property
    def trust(self) -> Trust:
        """Whether P(breach) decides."""
        return Trust.TRUSTED if self.samples >= TRUSTED_SAMPLES else Trust.COLD

    def sampled(self, error: float) -> None:
        """Learn that a latency was exp(error) times its forecast at dispatch. Drift makes the costs forgotten."""
        if self.has_costs and self.drift.add(error):
            self.costs.forget()
        self.samples += 1

    def calibrate(self, tier: Tier, made: Forecast, raw: float, ahead: Ahead) -> None:
        """Complete a forecast by P(breach). `raw`: the probability (0-1) before calibration.

        Where P(breach) decides who is admitted, outcomes would teach it its own choice, so it stays raw.
        """
        made.breach = raw
        if tier.admission.mode is not AdmissionMode.ENFORCE:
            made.features = features(raw, ahead.requests, ahead.higher_share)
            made.breach = self._breach.get(tier.name, UNCALIBRATED).of(made.features)

    def label(self, tier: Tier, forecast: Forecast, breached: bool) -> None:
        """Learn whether a request missed an objective."""
        self.scores.add(forecast.breach, breached)
        if tier.admission.mode is AdmissionMode.ENFORCE:
            return
        calibration = self._breach.get(tier.name)
        if calibration is None:
            calibration = self._breach[tier.name] = Calibration()
        calibration.learn(forecast.features, breached)

    def view(self, pool: str) -> PoolLearnedView:
        """A copy of what is learned. `pool`: its name."""
        return PoolLearnedView(
            pool=pool,
            trust=self.trust,
            ttft_coefficients=self.costs.ttft.coefficients,
            step_coefficients=self.costs.step.coefficients,
            samples=self.samples,
            drift_alarms=self.drift.alarms,
            reliability=self.scores.read(),
        )


UNCALIBRATED: Final = Calibration()
"""That of a tier without labels. Nothing may be added to it."""
UNKNOWN: Final = PoolLearned()
"""Facts of a pool of which nothing is known. Nothing may be added to it."""
