"""Autoscaling signal: the demand of a pool, in replicas' worth of work. An autoscaler divides it by its own target.

    work    = prompt tokens x c3 + output tokens x (c1 + c2 context + c0 / slots)    in seconds of a full replica
    demand  = work that arrives per second, with refused requests, smoothed over a minute       in replicas' worth

A request that moves from one pool to another (spill, fallback, retry) is demand of both.

The coefficients c0 to c3 are the learned costs of the latency model. Utilisation would not do: an engine with one
request in every step is as "busy" as a full one.

The signal is computed in the core, so that the simulator has the same, and a journal replays it. Only calls of the
controller change it.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.estimators.memory import Remembering
from gateway.core.snapshot import DemandView

TICK_S: Final = 5.0
LEVEL_TAU_S: Final = 60.0
ANSWERS: Final = 0.01
"""Weight of one answer in the running mean of answer lengths."""


class Demand(Remembering):
    """Demand of one pool. Rates are per second, and smoothed."""

    __slots__ = (
        "_at",
        "_is_served",
        "_output",
        "_requests_per_s",
        "_serving",
        "_ticks",
        "_tokens_per_s",
        "_work",
        "prompt_tokens",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        """Prompt tokens since the last tick."""
        self._output = 0.0
        """Running mean of output tokens per answer; 0 until known."""
        self._is_served = False
        """Whether any request of the pool has ended."""
        self._requests_per_s = 0.0
        self._tokens_per_s = 0.0
        self._work = 0.0
        self._ticks = 0
        self._at = -math.inf
        self._serving = 0.0

    def remembered(self) -> tuple[str, ...]:
        return "_at", "_is_served", "_output", "_requests_per_s", "_serving", "_ticks", "_tokens_per_s", "_work"

    def arrived(self, prompt_tokens: int) -> None:
        """Count an arrival, whether it is served or refused."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens

    def take_back(self, prompt_tokens: int) -> None:
        """Take back an arrival, because an engine refused the request: more replicas would not have served it."""
        self.requests -= 1
        self.prompt_tokens -= prompt_tokens

    def ended(self, counts: bool, output_tokens: int) -> None:
        """Count the end of a request. `counts`: whether the request is in the denominator of goodput. `output_tokens`:
        0 without an answer.
        """
        self._is_served = self._is_served or counts
        if output_tokens > 0:
            self._output += ANSWERS * (output_tokens - self._output) if self._output else output_tokens

    def is_due(self, now: float) -> bool:
        """Whether it is time for a `tick`."""
        return now - self._at >= TICK_S

    def tick(self, costs: LatencyModel, serving: float, slots: int, now: float) -> None:
        """Update the rates by the counts since the last tick. `serving` replicas get requests, with `slots` in all."""
        step_s = now - self._at
        self._at = now
        if step_s == math.inf:
            return
        # An arrival of the last tick that is taken back now may leave fewer than 0. The rest lowers the next tick.
        requests, tokens = max(0, self.requests), max(0, self.prompt_tokens)
        self.requests -= requests
        self.prompt_tokens -= tokens
        work_s = self._seconds(costs, requests, tokens, slots / serving if serving else 1.0)
        self._ticks += 1
        weight = max(1.0 / self._ticks, 1.0 - math.exp(-step_s / LEVEL_TAU_S))  # the first ticks count equally
        self._requests_per_s += weight * (requests / step_s - self._requests_per_s)
        self._tokens_per_s += weight * (tokens / step_s - self._tokens_per_s)
        self._work += weight * (work_s / step_s - self._work)
        self._serving = serving

    def _seconds(self, costs: LatencyModel, requests: int, prompt_tokens: int, slots: float) -> float:
        """Seconds that a full replica needs for these requests."""
        if not requests:
            return 0.0
        c0, c1, c2, c3 = costs.step.coefficients
        context = prompt_tokens / requests + self._output / 2.0
        token_s = c1 * DECODES + c2 * CONTEXT * context + c0 / max(1.0, slots)
        return prompt_tokens * c3 * TOKENS + requests * self._output * token_s

    def view(self) -> DemandView | None:
        """The signal and its inputs, for the admin pages and metrics. None in the first minute, or before a request
        ended.
        """
        if self._ticks * TICK_S < LEVEL_TAU_S or not self._is_served:
            return None
        return DemandView(
            replicas=self._work,
            serving=self._serving,
            requests_per_s=self._requests_per_s,
            prompt_tokens_per_s=self._tokens_per_s,
            output_tokens_per_s=self._requests_per_s * self._output,
        )
