"""Decides whether the forecasts of a pool may be acted upon."""

from __future__ import annotations

from typing import Final

from gateway.core.snapshot import Trust

COLD_SAMPLES: Final = 30
"""Costs count as known after this many latency samples (first tokens or whole answers)."""
COLD_LABELS: Final = 100
"""Probabilities are trusted only after this many labels."""
DRIFT_OFFSET: Final = 0.5
"""Added to the logarithm of forecast latencies (a factor of 1.65) while the pool is cold and after an alarm of drift.
"""
OFFSET_KEPT: Final = 0.97
"""Each sample multiplies the offset by this. After 75 samples a tenth of it is left."""
DRIFTED_OFFSET: Final = 0.1
SCORE_WEIGHT: Final = 0.0005
"""Weight of one label in the running Brier scores, so about the last 2,000 labels count."""
DOUBTED_WEIGHT: Final = 0.003
"""Weight of one label in the Brier scores while forecasts are untrusted: about the last 330 labels count. With the
smaller weight, early bad forecasts would keep a pool untrusted for minutes. While a pool is untrusted, outcomes are
hard to forecast, because requests wait until their deadlines.
"""
BASE_WEIGHT: Final = 0.0001
"""Weight of one label in the base rate.

It is smaller than `SCORE_WEIGHT`. A base rate that follows bursts would be a good forecast, so the model could hardly
beat it.
"""
MAX_EXCESS: Final = 0.02
"""Probabilities are untrusted if their Brier score exceeds that of the base rate by more than this."""
UNLABELLED: Final = 200
"""Forecasts are uncovered after this many in a row without a label. The count starts at the first forecast under a
heavier load than that of all labels.
"""


class TrustMonitor:
    """Decides whether forecasts are trusted, in O(1) per event.

    Trust is lost at an outer bound and regained at an inner bound, so that it does not change back and forth. Regaining
    is faster than losing, because recent labels weigh more while forecasts are untrusted (`DOUBTED_WEIGHT`).
    """

    __slots__ = (
        "_base",
        "_brier",
        "_excess",
        "_highest",
        "_reference",
        "_unlabelled",
        "labels",
        "offset",
        "samples",
        "state",
    )

    def __init__(self) -> None:
        self.samples = 0
        self.labels = 0
        self.offset = DRIFT_OFFSET
        """Added to the logarithm of every forecast latency."""
        self.state = Trust.COLD
        self._base = 0.5
        self._brier = self._reference = 0.0
        self._excess = 0.0
        self._highest = 0.0
        """The heaviest load at which a labelled forecast was made; it is slowly forgotten."""
        self._unlabelled = 0

    @property
    def has_costs(self) -> bool:
        """Whether there are enough samples for engine costs to be known."""
        return self.samples >= COLD_SAMPLES

    def sampled(self, alarm: bool) -> None:
        """Count a latency that was compared with its forecast. `alarm`: whether it raised an alarm of drift."""
        self.samples += 1
        if alarm:
            self.offset = DRIFT_OFFSET
        elif self.samples >= COLD_SAMPLES:
            self.offset *= OFFSET_KEPT
        self._judge()

    def forecast(self, load: float) -> None:
        """Count a forecast. `load`: the load under which it was made, in any measure that grows with load."""
        if load > 1.5 * self._highest or self._unlabelled > 0:
            self._unlabelled += 1
        if self._unlabelled == UNLABELLED:
            self._judge()

    def labelled(self, probability: float, breached: bool, load: float) -> None:
        """Score a forecast by its label. `load`: the load under which it was made."""
        self.labels += 1
        self._unlabelled = 0
        self._highest = max(load, self._highest * 0.9999)
        y = 1.0 if breached else 0.0
        weight = max(SCORE_WEIGHT if self.state is Trust.TRUSTED else DOUBTED_WEIGHT, 1.0 / self.labels)
        self._brier += weight * ((probability - y) ** 2 - self._brier)
        self._reference += weight * ((self._base - y) ** 2 - self._reference)
        self._base += max(BASE_WEIGHT, 1.0 / self.labels) * (y - self._base)
        self._judge()

    def _judge(self) -> None:
        trusted = self.state is Trust.TRUSTED
        excess = self._brier - self._reference
        if self.samples < COLD_SAMPLES or self.labels < COLD_LABELS:
            self.state = Trust.COLD
        elif self._unlabelled >= UNLABELLED:
            self.state = Trust.UNCOVERED
        elif self.offset > DRIFTED_OFFSET * (2.0 if trusted else 1.0) or excess > MAX_EXCESS * (
            1.0 if trusted else 0.5
        ):
            self.state = Trust.DRIFTED
        else:
            self.state = Trust.TRUSTED
