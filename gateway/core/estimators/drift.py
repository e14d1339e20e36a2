"""Detects a change of a mean: a cumulative test."""

from __future__ import annotations


class PageHinkley:
    """Detects a change of the mean of a series, up or down, by a cumulative test (Page 1954, Hinkley 1971).

    The part of a sample's deviation from the slow mean of the series that exceeds `slack` is added to a sum. The alarm
    is raised when this sum is above `threshold`. After an alarm the test starts again without any samples.
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
        if self._up <= self.threshold and self._down <= self.threshold:
            return False
        self.alarms += 1
        self._n = 0
        self._mean = self._up = self._down = 0.0
        return True
