"""Autoscaling signal: the number of replicas that a pool wants, from its predicted demand and a replica's knee.

    work    = prompt tokens x c3 + output tokens x (c1 + c2 context + c0 / slots)    in seconds of a full replica
    demand  = work that arrives per second, with refused requests       in replicas' worth
    wanted  = ceil(predicted demand / knee)       predicted `LEAD_S` ahead, from level and trend of the demand

A request that moves from one pool to another (spill, fallback, retry) is demand of both. It counts as refused in the
first pool if that pool would have refused it.

The coefficients c0 to c3 are the learned costs of the latency model. Utilisation is not used.

The knee is the demand per replica up to which objectives are met. It begins at `KNEE` and is learned in windows of
`WINDOW_S`. If too many requests of a window missed an objective while demand was near the knee or above it, the knee
falls below that demand. If few requests missed one, the knee rises. Misses far below the knee do not come from a lack
of replicas and are ignored.

The number wanted rises at once. It falls only once in `HOLD_S`, to the largest number wanted in that time, with a
margin. So neither noise nor a short lull lowers it. It never rises above twice the replicas in service.

The signal is computed in the core, where demand and misses are known. So the simulator, which has no metrics, has the
same signal, and a journal replays it. Only calls of the controller change the signal: arrivals, ends of requests, and
`Fleet.cool`.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.snapshot import ScaleView

TICK_S: Final = 5.0
LEVEL_TAU_S: Final = 60.0
TREND_TAU_S: Final = 300.0
LEAD_S: Final = 120.0
"""Horizon of the prediction: about as long as a replica takes to load a model."""
KNEE: Final = 0.6
MIN_KNEE: Final = 0.1
MAX_KNEE: Final = 2.0
WINDOW_S: Final = 30.0
MIN_ENDED: Final = 50
"""A window lasts until this many requests have ended."""
MISSES: Final = 0.02
"""Expected share (0-1) of misses in a window. A significantly larger share is too many; half of this share or less is
few.
"""
BEYOND: Final = 1.15
"""The knee rises at most to this multiple of the demand that was served with few misses. It must be above 1, because
the number of replicas is rounded up.
"""
FAR: Final = 0.6
"""Misses at a demand below this share of the knee are ignored."""
FIRST_RISE: Final = 0.05
"""The knee rises by this share per window with few misses, until it has fallen once."""
RISE: Final = 0.005
"""The knee rises by this share per window with few misses, after it has fallen once. With .01 and a `BEYOND` of 1.25,
the knee exceeded its true value between two falls: in .10 of a day, fewer replicas served than were needed (.04 now).
"""
FALL: Final = 0.1
HOLD_S: Final = 300.0
MARGIN: Final = 0.1
ANSWERS: Final = 0.01
"""Weight of one answer in the running mean of answer lengths."""


class KneeEstimate:
    """The knee: the demand per replica, in replicas' worth of work, up to which the objectives are met."""

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
        """Add arrived work, and serving time summed over replicas, both in seconds. Learns when the window is full."""
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
            # New replicas need LEAD_S to start. Until then, the same shortage would lower the knee in every window.
            if demand >= FAR * knee and now - self._fell_at >= LEAD_S:
                knee = min(knee, demand) * (1.0 - FALL)
                self.rise, self._fell_at = RISE, now
        elif self.missed <= expected / 2.0:
            knee = max(knee, min(knee * (1.0 + self.rise), demand * BEYOND))
        if knee != self.value:
            self.windows += 1
            self.value = min(MAX_KNEE, max(MIN_KNEE, knee))


class Trend:
    """Level and slope of a rate (Holt's linear method). Steps may differ in length."""

    __slots__ = ("level", "slope", "steps")

    def __init__(self) -> None:
        self.level = 0.0
        self.slope = 0.0
        self.steps = 0

    def add(self, per_s: float, step_s: float) -> None:
        """Add a step of `step_s` seconds in which the rate was `per_s`."""
        self.steps += 1
        # The first steps are averaged equally. A level that started at 0 would look like a rising trend.
        weight = max(1.0 / self.steps, 1.0 - math.exp(-step_s / LEVEL_TAU_S))
        before = self.level
        self.level = self.ahead(step_s)
        self.level += weight * (per_s - self.level)
        if self.steps * step_s > LEVEL_TAU_S:
            slope = (self.level - before) / step_s
            self.slope += (1.0 - math.exp(-step_s / TREND_TAU_S)) * (slope - self.slope)

    def ahead(self, seconds: float) -> float:
        """The rate expected `seconds` from now, at least 0."""
        return max(0.0, self.level + self.slope * seconds)


class Demand:
    """Demand of one pool, and the number of replicas wanted for it."""

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
        """Prompt tokens since the last tick."""
        self.knee = KneeEstimate()
        self.wanted = 0
        """Number of replicas wanted; 0 until known."""
        self._output = 0.0
        """Running mean of output tokens per answer; 0 until known."""
        self._seen = False
        """Whether any request of the pool has ended."""
        self._requests = Trend()
        self._prompts = Trend()
        self._work = Trend()
        self._at = -math.inf
        self._serving = 0.0
        self._hold_from = -math.inf
        self._highest = 0

    def arrived(self, prompt_tokens: int) -> None:
        """Count an arrival, whether it is served or refused."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens

    def take_back(self, prompt_tokens: int) -> None:
        """Take back an arrival, because an engine refused the request: more replicas would not have served it."""
        self.requests -= 1
        self.prompt_tokens -= prompt_tokens

    def ended(self, counts: bool, good: bool, output_tokens: int) -> None:
        """Count the end of a request. `counts`: whether the request is in the denominator of goodput. `output_tokens`:
        0 without an answer.
        """
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
        """Update demand and `wanted` by the counts since the last tick. `serving` replicas get requests, with `slots`
        in total.
        """
        step_s = now - self._at
        self._at = now
        if step_s == math.inf:
            return
        # An arrival of the last tick that is taken back now may leave fewer than 0. The rest lowers the next tick.
        requests, tokens = max(0, self.requests), max(0, self.prompt_tokens)
        self.requests -= requests
        self.prompt_tokens -= tokens
        work_s = self._seconds(costs, requests, tokens, slots / serving if serving else 1.0)
        self._requests.add(requests / step_s, step_s)
        self._prompts.add(tokens / step_s, step_s)
        self._work.add(work_s / step_s, step_s)
        self.knee.passed(work_s, serving * step_s, now)
        self._serving = serving
        self._decide(now)

    def _seconds(self, costs: LatencyModel, requests: int, prompt_tokens: int, slots: float) -> float:
        """Seconds that a full replica needs for these requests."""
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
        # The number of serving replicas limits only increases: if replicas die, the number wanted stays.
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
        """The signal and its inputs, for the admin pages and metrics; None until the number is known."""
        if not self.wanted:
            return None
        requests_per_s = self._requests.level
        demand, predicted, knee = self._work.level, self._work.ahead(LEAD_S), self.knee.value
        held_s = max(0.0, self._hold_from + HOLD_S - now)
        worth = predicted / knee
        why = f"{demand:.2f} replicas' worth of work arrives, {predicted:.2f} in {LEAD_S:.0f} s; one carries {knee:.2f}"
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
