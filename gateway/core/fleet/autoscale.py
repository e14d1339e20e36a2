"""How many replicas a pool wants: from the demand that is coming and the knee of a replica, not from how busy it is.

    work    = prompt tokens x c3 + output tokens x (c1 + c2 context + c0 / slots)    seconds of a full replica: costs
    demand  = work that arrives per second, that of refused requests included        replicas' worth
    wanted  = ceil(demand in `LEAD_S`, by its level and trend / knee)

The knee is the demand per replica up to which objectives are met. It begins at `KNEE` and is learned from what happens,
in windows of `WINDOW_S`: too many requests were not good, at a demand near it or above, and it falls to below that; few
were, near it or above, and it rises. Misses far below the knee are not for want of replicas and teach nothing.

Up at once, down slowly: the number falls once in `HOLD_S`, to the largest that was wanted meanwhile with a margin, so
that neither noise nor a short lull moves it. It never asks for more than twice what serves.

Here, and not where metrics are made, since demand and misses are decided here, since it then is the same in the
simulator, which knows no metrics, and since a journal replays it: it is moved by the calls that the controller gets
(arrivals, ends, looks at replicas) and by nothing else.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.forecast.views import ScaleView

TICK_S: Final = 5.0
LEVEL_TAU_S: Final = 60.0
TREND_TAU_S: Final = 300.0
LEAD_S: Final = 120.0
"""How far ahead: about as long as a replica takes to load a model."""
KNEE: Final = 0.6
MIN_KNEE: Final = 0.1
MAX_KNEE: Final = 2.0
WINDOW_S: Final = 30.0
MIN_ENDED: Final = 50
"""Requests that a window needs to say anything; it is longer until it has them."""
MISSES: Final = 0.02
"""Share of the requests of a window that is too many, and half of it is few."""
BEYOND: Final = 1.25
"""The knee is believed to be so many times what was seen to be carried, at most,"""
FAR: Final = 0.6
"""and below this share of it many misses say nothing."""
FIRST_RISE: Final = 0.05
RISE: Final = 0.01
"""In a window, before and after it first fell."""
FALL: Final = 0.1
HOLD_S: Final = 300.0
MARGIN: Final = 0.1
ANSWERS: Final = 0.01
"""Weight of one answer in their mean length."""


class KneeEstimate:
    """What one replica carries inside the objectives, in replicas' worth of work (a share of its time at best)."""

    __slots__ = ("_fell_at", "_from", "_serving_s", "_work_s", "ended", "missed", "rise", "value", "windows")

    def __init__(self) -> None:
        self.value = KNEE
        self.windows = 0
        self.rise = FIRST_RISE
        self.ended = 0
        self.missed = 0
        self._from = -math.inf
        self._fell_at = -math.inf
        self._work_s = 0.0
        self._serving_s = 0.0

    def passed(self, work_s: float, serving_s: float, now: float) -> None:
        """So much work came to so many seconds of replicas; learn when the window is full."""
        self._work_s += work_s
        self._serving_s += serving_s
        if self._from == -math.inf:
            self._from = now
        if now - self._from < WINDOW_S or self.ended < MIN_ENDED:
            return
        if self._serving_s > 0.0:
            self._learn(self._work_s / self._serving_s, now)
        self._from, self._work_s, self._serving_s, self.ended, self.missed = now, 0.0, 0.0, 0, 0

    def _learn(self, demand: float, now: float) -> None:
        knee, expected = self.value, MISSES * self.ended
        if self.missed > expected + 2.0 * math.sqrt(expected):
            # Until what is asked for now can serve, the same misses would make it fall again and again.
            if demand >= FAR * knee and now - self._fell_at >= LEAD_S:
                knee = min(knee, demand) * (1.0 - FALL)
                self.rise, self._fell_at = RISE, now
        elif self.missed <= expected / 2.0:
            knee = max(knee, min(knee * (1.0 + self.rise), demand * BEYOND))
        if knee != self.value:
            self.windows += 1
            self.value = min(MAX_KNEE, max(MIN_KNEE, knee))


class Trend:
    """Level and slope of what comes per second (Holt's linear method), at steps of any length."""

    __slots__ = ("level", "slope", "steps")

    def __init__(self) -> None:
        self.level = 0.0
        self.slope = 0.0
        self.steps = 0

    def add(self, per_s: float, step_s: float) -> None:
        """What came per second during the last step."""
        self.steps += 1
        # The first steps are a plain mean: a level that began at 0 would be a trend.
        weight = max(1.0 / self.steps, 1.0 - math.exp(-step_s / LEVEL_TAU_S))
        before = self.level
        self.level = self.ahead(step_s)
        self.level += weight * (per_s - self.level)
        if self.steps * step_s > LEVEL_TAU_S:
            slope = (self.level - before) / step_s
            self.slope += (1.0 - math.exp(-step_s / TREND_TAU_S)) * (slope - self.slope)

    def ahead(self, seconds: float) -> float:
        """What is to be expected then; never below nothing."""
        return max(0.0, self.level + self.slope * seconds)


class Demand:
    """What comes to one pool, and how many replicas it wants for that."""

    __slots__ = (
        "_at",
        "_highest",
        "_hold_from",
        "_output",
        "_prompt_tokens",
        "_prompts",
        "_requests",
        "_seen",
        "_serving",
        "_work",
        "knee",
        "prompt_tokens",
        "requests",
        "wanted",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        """Since the last tick."""
        self.knee = KneeEstimate()
        self.wanted = 0
        """0: not known yet."""
        self._output = 0.0
        """Mean tokens of an answer; 0: they have none, or nobody knows."""
        self._seen = False
        """Whether any request has ended."""
        self._requests = Trend()
        self._prompts = Trend()
        self._work = Trend()
        self._at = -math.inf
        self._serving = 0.0
        self._hold_from = -math.inf
        self._highest = 0

    def arrived(self, prompt_tokens: int) -> None:
        """A request came, whatever becomes of it."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens

    def ended(self, counts: bool, good: bool, output_tokens: int) -> None:
        """One is over. `counts`: its end says something of the service; `output_tokens` 0: it has none."""
        if counts:
            self._seen = True
            self.knee.ended += 1
            self.knee.missed += not good
        if output_tokens > 0:
            self._output += ANSWERS * (output_tokens - self._output) if self._output else output_tokens

    def is_due(self, now: float) -> bool:
        """Whether it is time for a `tick`."""
        return now - self._at >= TICK_S

    def tick(self, costs: LatencyModel, serving: float, slots: int, now: float) -> None:
        """Some time has passed; `serving` replicas get requests, with so many slots together."""
        step_s = now - self._at
        self._at = now
        if step_s == math.inf:
            return
        requests, tokens = self.requests, self.prompt_tokens
        self.requests = self.prompt_tokens = 0
        work_s = self._seconds(costs, requests, tokens, slots / serving if serving else 1.0)
        self._requests.add(requests / step_s, step_s)
        self._prompts.add(tokens / step_s, step_s)
        self._work.add(work_s / step_s, step_s)
        self.knee.passed(work_s, serving * step_s, now)
        self._serving = serving
        self._decide(now)

    def _seconds(self, costs: LatencyModel, requests: int, prompt_tokens: int, slots: float) -> float:
        """Seconds of a full replica that so much takes."""
        if not requests:
            return 0.0
        c0, c1, c2, c3 = costs.step.coefficients
        context = prompt_tokens / requests + self._output / 2.0
        token_s = c1 * DECODES + c2 * CONTEXT * context + c0 / max(1.0, slots)
        return prompt_tokens * c3 * TOKENS + requests * self._output * token_s

    def _decide(self, now: float) -> None:
        if self._work.steps * TICK_S < LEVEL_TAU_S or not self._seen:
            return
        worth = self._work.ahead(LEAD_S) / self.knee.value
        # A step up is bounded, not what was wanted before: replicas that have died are wanted no less.
        most = max(1, self.wanted, math.ceil(2.0 * self._serving))
        up = min(most, max(1, math.ceil(worth)))
        down = min(most, max(1, math.ceil(worth * (1.0 + MARGIN))))
        if up >= self.wanted:
            if up > self.wanted:
                self.wanted, self._hold_from, self._highest = up, now, 0
            else:
                self._hold_from, self._highest = now, 0
            return
        self._highest = max(self._highest, min(self.wanted, down))
        if now - self._hold_from >= HOLD_S:
            self.wanted, self._hold_from, self._highest = self._highest, now, 0

    def view(self, now: float) -> ScaleView | None:
        """A copy for people and gauges; None as long as nothing is known."""
        if not self.wanted:
            return None
        requests_per_s = self._requests.level
        demand, predicted, knee = self._work.level, self._work.ahead(LEAD_S), self.knee.value
        held_s = max(0.0, self._hold_from + HOLD_S - now)
        worth = predicted / knee
        why = f"{demand:.2f} replicas' worth of work comes, {predicted:.2f} in {LEAD_S:.0f} s; one carries {knee:.2f}"
        if math.ceil(worth) < self.wanted:
            why += f": {max(1, math.ceil(worth))} would do, {self.wanted} stay for {held_s:.0f} s"
        return ScaleView(
            wanted=self.wanted,
            serving=self._serving,
            requests_per_s=requests_per_s,
            prompt_tokens_per_s=self._prompts.level,
            output_tokens_per_s=requests_per_s * self._output,
            demand=demand,
            predicted=predicted,
            worth=worth,
            knee=knee,
            windows=self.knee.windows,
            held_s=held_s,
            why=why,
        )
