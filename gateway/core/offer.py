"""A request as one pool is asked to serve it."""

from __future__ import annotations

import math

from gateway.core.fleet.pool import Pool
from gateway.core.request import GENERATING, Request
from gateway.core.slo import Slo


class Offer:
    """A request asks this of a pool: the estimated tokens of its prompt, the tokens that its answer may have, and its
    deadline. An offer never changes; another pool or a shorter answer is another offer.
    """

    __slots__ = (
        "deadline",
        "least_unread",
        "max_tokens",
        "needs_tokens",
        "pool",
        "prompt_likely",
        "prompt_tokens",
        "request",
        "slo",
        "timeouts",
    )

    def __init__(
        self, request: Request, pool: Pool, prompt_tokens: int, prompt_likely: int, needs_tokens: int, max_tokens: int
    ) -> None:
        self.request = request
        self.pool = pool
        self.prompt_tokens = prompt_tokens
        """Tokens of all prompts together: a high estimate."""
        self.prompt_likely = prompt_likely
        """Tokens of one prompt: the mean of the low and the high estimate."""
        self.needs_tokens = needs_tokens
        """Context that its longest prompt and its answer are likely to need."""
        self.max_tokens = max_tokens
        """Most output tokens of one choice; 0 if nothing is generated."""
        self.timeouts = request.policy.timeouts(request.tier, pool.spec.name)
        self.slo: Slo = request.slo or request.tier.slo
        self.least_unread = pool.least_unread(prompt_tokens, request)
        """Prompt tokens that the replica with the best cache would have to read."""
        slo = self.slo
        bound_s = min(slo.ttft_bound_s, slo.e2e_bound_s) if request.stream else slo.e2e_bound_s
        self.deadline = request.body_at + (self.timeouts.queue_s if bound_s == math.inf else bound_s)
        """The time after which it certainly misses its objective. Minus the predicted engine TTFT, it orders the queue.

        By this time a streamed answer needs its first token, and any other answer its end. Without an objective it is
        the time of the queue timeout.
        """

    def at(self, pool: Pool) -> Offer:
        """The same offer to another pool."""
        return self._with(pool, self.max_tokens)

    def capped(self, max_tokens: int) -> Offer:
        """The same offer with an answer of at most `max_tokens`."""
        return self._with(self.pool, max_tokens)

    def _with(self, pool: Pool, max_tokens: int) -> Offer:
        return Offer(self.request, pool, self.prompt_tokens, self.prompt_likely, self.needs_tokens, max_tokens)

    def judged_by(self, slo: Slo) -> Offer:
        """The same offer with other objectives."""
        other = self.capped(self.max_tokens)
        other.slo = slo
        return other

    @property
    def all_likely(self) -> int:
        """Tokens of all its prompts together that are likely."""
        return self.prompt_likely * self.request.batch

    @property
    def max_breach(self) -> float:
        """Largest P(breach) with which it is admitted."""
        return self.request.tier.admission.max_breach_probability

    @property
    def expires_at(self) -> float:
        """Time at which its total timeout ends it."""
        return self.request.head_at + self.timeouts.total_s


def granted(request: Request) -> int:
    """The output tokens that a request asks for, within the caps of its tier; 0 if it generates nothing."""
    return request.tier.caps.granted(request.max_tokens) if request.endpoint in GENERATING else 0
