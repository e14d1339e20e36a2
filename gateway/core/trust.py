"""Whether a forecast may be acted upon."""

from __future__ import annotations

from enum import StrEnum

COLD_SAMPLES = 30
"""Requests seen to the end before costs are believed."""
COLD_LABELS = 100
"""Labels before probabilities are believed."""


class Trust(StrEnum):
    """TRUSTED, or why not."""

    TRUSTED = "trusted"
    COLD = "cold"
    """Too little was seen."""
    DRIFTED = "drifted"
    """What is seen is not what was learned."""
    UNCOVERED = "uncovered"
    """The load is outside of what was seen, or labels have stopped coming."""


class PageHinkley:
    """Says when the mean of a series has moved, up or down, by a cumulative test (Page 1954, Hinkley 1971).

    `slack` per sample is tolerated; an alarm is `threshold` of the sum beyond it. The series is taken relative to its
    own slow mean. After an alarm it begins anew.
    """

    __slots__ = ("_down", "_mean", "_n", "_up", "alarms", "slack", "threshold")

    def __init__(self, slack: float = 0.15, threshold: float = 12.0) -> None:
        self.slack = slack
        self.threshold = threshold
        self.alarms = 0
        self._n = 0
        self._mean = self._up = self._down = 0.0

    def add(self, value: float) -> bool:
        """Take one sample; True if that raises the alarm."""
        self._n += 1
        self._mean += (value - self._mean) / min(self._n, 500)
        error = value - self._mean
        self._up = max(0.0, self._up + error - self.slack)
        self._down = max(0.0, self._down - error - self.slack)
        if max(self._up, self._down) <= self.threshold:
            return False
        self.alarms += 1
        self._n = 0
        self._mean = self._up = self._down = 0.0
        return True
