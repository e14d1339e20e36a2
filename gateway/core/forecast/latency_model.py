"""Latency model of a pool's typical replica: learned costs of steps, tokens and prompts.

    S     = c0 + c1 decodes + c2 context tokens          a step without prompts
    TPOT  = S / (1 - u),  u = c3 x prompt tokens sent to the replica per second
    TTFT  = t0 + t1 W + t2 p + t3 S                      W: prompt tokens before it; p: its own

The coefficients c are learned from finished answers. The time per token is regressed on the mean load during the
answer and on the prompt tokens read meanwhile. Chunks of prompts share the steps: S + c3 x prompt tokens per step. The
coefficients t are learned from first tokens.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.regression import FIRST, NonNegative
from gateway.core.stats import Pace

# Units in which coefficients are of one size: prompt tokens and decoding sequences in thousands, context tokens in
# hundreds of thousands. Priors are on the slow side: a small model on one card.
TOKENS: Final = 1e-3
DECODES: Final = 1e-3
CONTEXT: Final = 1e-5
STEP_PRIOR = (0.02, 0.15, 0.03, 0.15)
TTFT_PRIOR = (0.05, 0.15, 0.15, 1.5)
RATE_TAU_S: Final = 5.0
STEP_AND_A_HALF: Final = 1.5
"""Half of the step that is under way, and one of its own."""
MAX_BUSY: Final = 0.8
"""Upper bound on the share of a step that prompts take for long."""
SAMPLES_PER_S: Final = 50.0
"""Samples learned per second at most: more would teach nothing, at the same cost each."""
LOWER: Final = 0.1
HIGHER: Final = 0.0125
"""Weights of a load below (`LOWER`) and above the low end: the low end is the 1/9 expectile, with about one load in
four below it.
"""


class LatencyModel:
    """Learned costs of a pool."""

    __slots__ = (
        "_low",
        "_rate",
        "_rate_at",
        "decode_s",
        "lessons",
        "merged",
        "pace",
        "queued_backlog",
        "queued_context",
        "queued_decodes",
        "queued_slot_s",
        "residual",
        "stay_s",
        "step",
        "ttft",
    )

    def __init__(self) -> None:
        self.step = NonNegative(STEP_PRIOR)
        self._low = (0.0, 0.0, 0.0)
        """Low end of the loads from which steps were learned."""
        self.ttft = NonNegative(TTFT_PRIOR)
        self.lessons = 0.0
        """Weight of the samples of `residual`."""
        self.residual = 0.0
        """Mean log-ratio of time per token to its forecast: the speeds of replicas are relative to it."""
        self.stay_s = 0.0
        """Mean time from dispatch to end; 0: not known."""
        self.decode_s = 0.0
        """Mean time from first token to end."""
        self.merged = 0.0
        """Share (0-1) of recent answers with several tokens to an event."""
        self.pace = Pace(SAMPLES_PER_S)
        self.queued_backlog = self.queued_decodes = self.queued_context = self.queued_slot_s = 0.0
        """Mean load at their replica when queued requests were sent."""
        self._rate = self._rate_at = 0.0

    def step_s(self, decodes: float, context: float) -> float:
        """Seconds of a step without prompts.

        If the fit gives all time to prompts, the step of the lightest load learned.
        """
        c0, c1, c2, _ = self.step.coefficients
        low = self._low
        step_s = c0 + c1 * max(low[0], decodes * DECODES) + c2 * max(low[1], context * CONTEXT)
        return step_s if step_s > 0.0 else self.typical_step_s(0.0, 0.0, 0.0)

    def learn_step(self, decodes: float, context: float, prefill: float, seen_s: float, weight: float) -> None:
        """Steps took `seen_s` each under this load, in the units of the coefficients."""
        self.step.add(decodes, context, prefill, seen_s, weight)
        a, b, c = self._low
        self._low = _expectile(a, decodes), _expectile(b, context), _expectile(c, prefill)

    def typical_step_s(self, decodes: float, context: float, prefill: float) -> float:
        """Seconds of a step under this load, which is raised to the low end of the loads learned from.

        Below that end the coefficients cannot be told apart. If all replicas are full, chance decides which coefficient
        gets the time, and a nearly idle replica's step would be predicted as 0.
        """
        a, b, c = self._low
        return max(self.step.predict(max(a, decodes), max(b, context), max(c, prefill)), 1e-9)

    def tpot_s(self, step_s: float, prompts_per_s: float) -> float:
        """Time per token at a replica that is sent so many prompt tokens per second."""
        return step_s / (1.0 - min(MAX_BUSY, self.step.coefficients[3] * TOKENS * prompts_per_s))

    def prompts_per_s(self, now: float) -> float:
        """Prompt tokens sent to all replicas, per second."""
        return self._rate * math.exp((self._rate_at - now) / RATE_TAU_S) / RATE_TAU_S

    def ttft_s(self, backlog: float, prompt_tokens: int, step_s: float) -> float:
        """Seconds from sent to first token. Before first tokens are learned, it is derived from steps."""
        if self.ttft.samples < FIRST:
            return STEP_AND_A_HALF * step_s + self.prompt_token_s() * (backlog + prompt_tokens)
        return self.ttft.predict(backlog * TOKENS, prompt_tokens * TOKENS, step_s)

    def prompt_token_s(self) -> float:
        """Seconds to read one prompt token: the larger of the TTFT's costs per own token and per earlier token."""
        if self.ttft.samples < FIRST:
            return max(self.step.coefficients[3], 1e-3) * TOKENS
        _, before, own, _ = self.ttft.coefficients
        return max(max(before, own), 1e-3) * TOKENS  # with three arguments, `max` would make objects of them

    def sent(self, prompt_tokens: int, now: float) -> None:
        """Prompt tokens went to a replica of the pool."""
        self._rate = self._rate * math.exp((self._rate_at - now) / RATE_TAU_S) + prompt_tokens
        self._rate_at = now

    def met(self, backlog: float, decodes: int, context: int, slot_s: float) -> None:
        """A queued request met this load: unread prompt tokens, sequences, their context, wait for a slot."""
        self.queued_backlog += 0.05 * (backlog - self.queued_backlog)
        self.queued_decodes += 0.05 * (decodes - self.queued_decodes)
        self.queued_context += 0.05 * (context - self.queued_context)
        self.queued_slot_s += 0.05 * (slot_s - self.queued_slot_s)

    def forget(self) -> None:
        """Keep the newest quarter of the samples."""
        self.ttft.forget()
        self.step.forget()


def _expectile(low: float, value: float) -> float:
    return low + (HIGHER if value > low else LOWER) * (value - low)
