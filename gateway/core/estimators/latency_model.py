"""Latency model of a pool's typical replica: learned costs of steps, tokens and prompts.

    S     = c0 + c1 d + c2 k          seconds of a step without prefill; d: decoding sequences, k: their context
    TPOT  = S / (1 - u)               u = c3 x prompt tokens sent to the replica per second
    TTFT  = t0 + t1 W + t2 p + t3 S   W: unread prompt tokens ahead of the request; p: its own

The coefficients c are learned from answers. The time per step is regressed on the mean load during the answer and on
the prompt tokens read in that time. Steps also read chunks of prompts, so the regression fits S + c3 x prompt tokens
per step. In slow steps more prompts come, so the instrument of prompt tokens per step is their rate. The coefficients t
are learned from the times to first tokens.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.histograms import Pace
from gateway.core.estimators.memory import Remembering
from gateway.core.estimators.regression import FIRST, TIMES, NonNegative

# Model units: prompt tokens and decoding sequences in thousands, context tokens in hundreds of thousands. They make all
# coefficients similar in size. The priors are rather slow: a small model on one card.
TOKENS: Final = 1e-3
DECODES: Final = 1e-3
CONTEXT: Final = 1e-5
STEP_PRIOR = (0.02, 0.15, 0.03, 0.15)
TTFT_PRIOR = (0.05, 0.15, 0.15, 1.5)
STEP_AND_A_HALF: Final = 1.5
"""Steps from sent to first token, besides prefill: on average half of the step under way, and the first step of the
request itself.
"""
MAX_BUSY: Final = 0.8
"""Upper bound on u, the share of time that an engine spends on prompts."""
SAMPLES_PER_S: Final = 50.0
"""At most this many samples are learned per second. Further samples would cost time and teach nothing."""
MAX_MERGED: Final = 0.1
"""If a larger share of answers has several steps in one event, the model learns from answers only at their end."""
LOWER: Final = 0.1
HIGHER: Final = 0.0125
"""Step sizes with which `_low` moves towards a lower load (`LOWER`) or a higher load (`HIGHER`). Their ratio makes
`_low` the 1/9 expectile: about one load in four is lower.
"""


class LatencyModel(Remembering):
    """Learned costs of the typical replica of one pool."""

    __slots__ = (
        "_low",
        "decode_s",
        "lessons",
        "merged",
        "pace",
        "queued_backlog",
        "queued_context",
        "queued_decodes",
        "queued_drift",
        "queued_limit_s",
        "queued_slot_s",
        "residual",
        "stay_s",
        "step",
        "ttft",
    )

    def __init__(self) -> None:
        self.step = NonNegative(STEP_PRIOR)
        self._low = (0.0, 0.0, 0.0)
        """Low end of the loads from which steps were learned: decodes, context tokens, prompt tokens per step, in model
        units.
        """
        self.ttft = NonNegative(TTFT_PRIOR)
        self.lessons = 0.0
        """Total weight of the samples in `residual`."""
        self.residual = 0.0
        """Mean log(time per token / its forecast) of the pool. The log-speed of a replica is its own mean minus this
        mean.
        """
        self.stay_s = 0.0
        """Mean seconds from dispatch to end; 0 until known."""
        self.decode_s = 0.0
        """Mean seconds from first token to end; 0 until known."""
        self.merged = 0.0
        """Share (0-1) of recent answers that had several steps in one event."""
        self.pace = Pace(SAMPLES_PER_S)
        self.queued_backlog = self.queued_decodes = self.queued_context = self.queued_slot_s = 0.0
        """Mean load of the replica at the moment when a queued request was sent to it."""
        self.queued_drift = 1.0
        """Mean drift of a replica's step budget at the same moments."""
        self.queued_limit_s = math.inf
        """Step limit (seconds) of the typical replica; inf without any. The forecast of a queued request assumes the
        typical replica, because its own replica is not known yet.
        """

    def remembered(self) -> tuple[str, ...]:
        return (
            "step",
            "ttft",
            "_low",
            "lessons",
            "residual",
            "stay_s",
            "decode_s",
            "merged",
            "queued_backlog",
            "queued_decodes",
            "queued_context",
            "queued_slot_s",
            "queued_drift",
        )

    @property
    def has_single_steps(self) -> bool:
        """Whether the events of answers under way count steps."""
        return self.merged < MAX_MERGED

    def step_s(self, decodes: float, context: float) -> float:
        """Seconds of a step without prefill, under this load (sequences, context tokens).

        If the fit attributes all time to prompts, the result is the step under the lightest load seen.
        """
        c0, c1, c2, _ = self.step.coefficients
        low = self._low
        step_s = c0 + c1 * max(low[0], decodes * DECODES) + c2 * max(low[1], context * CONTEXT)
        return step_s if step_s > 0.0 else self.typical_step_s(0.0, 0.0, 0.0)

    def learn_step(self, decodes: float, context: float, prefill: float, seen_s: float, weight: float) -> None:
        """Learn that steps took `seen_s` seconds each under this load, which is in model units. `weight`: 0-1."""
        # Bounded like its weight, so that a step which came with the one before it does not decide alone.
        rate = prefill / max(seen_s, self.typical_step_s(decodes, context, prefill) / TIMES)
        self.step.add(decodes, context, prefill, seen_s, weight, rate)
        a, b, c = self._low
        self._low = _expectile(a, decodes), _expectile(b, context), _expectile(c, prefill)

    def typical_step_s(self, decodes: float, context: float, prefill: float) -> float:
        """Seconds of a step under this load (model units). A load below the usual range is raised to its lower end.

        Below the loads seen, the coefficients cannot be told apart. If all replicas are full, chance decides which
        coefficient explains the time. Then the step of a nearly idle replica could be predicted as 0.
        """
        a, b, c = self._low
        return max(self.step.predict(max(a, decodes), max(b, context), max(c, prefill)), 1e-9)

    def tpot_s(self, step_s: float, prompt_tokens_per_s: float) -> float:
        """Seconds per token at a replica. `step_s`: seconds of a step without prefill. `prompt_tokens_per_s`: rate
        at which they are sent to this replica.
        """
        return step_s / (1.0 - min(MAX_BUSY, self.step.coefficients[3] * TOKENS * prompt_tokens_per_s))

    def ttft_s(self, backlog: float, prompt_tokens: int, step_s: float) -> float:
        """Seconds from sent to first token. `backlog`: unread prompt tokens ahead. Before enough first tokens are seen,
        the time is derived from steps.
        """
        if self.ttft.samples < FIRST:
            return STEP_AND_A_HALF * step_s + self.prompt_token_s() * (backlog + prompt_tokens)
        return self.ttft.predict(backlog * TOKENS, prompt_tokens * TOKENS, step_s)

    def prompt_token_s(self) -> float:
        """Seconds to read one prompt token. The TTFT model has a cost per own token and a cost per earlier token. The
        larger of the two is returned.
        """
        if self.ttft.samples < FIRST:
            return max(self.step.coefficients[3], 1e-3) * TOKENS
        _, before, own, _ = self.ttft.coefficients
        return max(max(before, own), 1e-3) * TOKENS  # compiled, `max` of three arguments would box the floats

    def met(self, backlog: float, decodes: int, context: int, slot_s: float, drift: float) -> None:
        """Learn the load of a replica at the moment when a queued request was sent to it. `backlog`: unread prompt
        tokens. `decodes`: sequences. `context`: their tokens. `slot_s`: seconds of wait for a seat in the batch.
        `drift`: that of its step budget.
        """
        self.queued_backlog += 0.05 * (backlog - self.queued_backlog)
        self.queued_decodes += 0.05 * (decodes - self.queued_decodes)
        self.queued_context += 0.05 * (context - self.queued_context)
        self.queued_slot_s += 0.05 * (slot_s - self.queued_slot_s)
        self.queued_drift += 0.05 * (drift - self.queued_drift)

    def forget(self) -> None:
        """Keep only the newest quarter of the samples, after an alarm of drift."""
        self.ttft.forget()
        self.step.forget()


def _expectile(low: float, value: float) -> float:
    return low + (HIGHER if value > low else LOWER) * (value - low)
