"""A series of engine steps, each of which takes longer than the one before by the same time."""

from __future__ import annotations

import math


class StepSeries:
    """The steps under way. With 0 steps, the engine is idle."""

    __slots__ = ("_growth_s", "_step_s", "began_at", "steps")

    def __init__(self) -> None:
        self.began_at = 0.0
        self.steps = 0
        self._step_s = 0.0
        self._growth_s = 0.0

    def begin(self, now: float, step_s: float, growth_s: float, steps: int) -> None:
        """Begin `steps` steps. The first takes `step_s`, each further one `growth_s` longer."""
        self.began_at = now
        self._step_s = step_s
        self._growth_s = growth_s
        self.steps = steps

    def end_of(self, steps: int) -> float:
        """Time at which the first `steps` steps end."""
        return self.began_at + steps * self._step_s + self._growth_s * (steps * (steps - 1) / 2)

    def done(self, now: float) -> int:
        """Number of steps that are over by `now`. It inverts `end_of`, and corrects for rounding."""
        if now < self.end_of(1):
            return 0
        elapsed = now - self.began_at
        half = self._step_s - self._growth_s / 2
        root = 2 * elapsed / (half + math.sqrt(half * half + 2 * self._growth_s * elapsed))
        steps = min(int(root), self.steps)
        while steps < self.steps and self.end_of(steps + 1) <= now:
            steps += 1
        while steps and self.end_of(steps) > now:
            steps -= 1
        return steps

    def skip(self, steps: int) -> None:
        """Forget the first `steps` steps, which are over."""
        self.began_at = self.end_of(steps)
        self._step_s += steps * self._growth_s
        self.steps -= steps
