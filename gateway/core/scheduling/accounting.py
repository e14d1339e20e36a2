"""Counts each request against its tenant's limits and fair share, and hands its outcome to the parts that learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.admission.promises import Promises, is_lost
from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.offer import Offer
from gateway.core.policy import CountedTokens, Tier
from gateway.core.queueing.limits import LimitExceeded, Tenants
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptResult, Outcome, Reason, Record
from gateway.core.sample import LimitLease
from gateway.core.scheduling.histories import history_of

OUTPUT_WEIGHT: Final = 2.0
"""Cost of an output token, in prompt tokens, when tenants share a queue fairly. The value is llm-d's default."""


class Accounting:
    """`reserve` opens the account of a request, `close` closes it once."""

    def __init__(self, prompts: PromptEstimator, forecaster: Forecaster, promises: Promises) -> None:
        self.tenants = Tenants()
        """The use of their limits."""
        self._prompts = prompts
        self._forecaster = forecaster
        self._promises = promises

    def share(self, gateways: int, leases: Sequence[LimitLease], tiers: Mapping[str, Tier], now: float) -> None:
        """As many gateways share the limits. `leases`: parts of this one. Those of unknown tiers are ignored."""
        self.tenants.share(gateways, tiers, now)
        for lease in leases:
            tier = tiers.get(lease.tier)
            if tier is not None:
                self.tenants.of(lease.tenant, tier, now).lease(lease)

    # ---- in the order in which they are called

    def exceeded(self, state: RequestState, offer: Offer, now: float) -> LimitExceeded | None:
        """The tenant's limit that the new request would exceed, or None. Changes only `state`."""
        request = state.request
        self._expect_cached(state, offer)
        return self.tenants.check(request.tenant, request.tier, state.most_tokens, now)

    def reserve(self, state: RequestState, offer: Offer, now: float) -> LimitExceeded | None:
        """Charge the request, its prompt tokens and its granted output tokens to its tenant's limits."""
        use = self.tenants.of(state.request.tenant, state.request.tier, now)
        self._expect_cached(state, offer)
        exceeded = use.check(state.most_tokens, now)
        if exceeded is not None:
            if exceeded.why in (Reason.LIMIT_TOKENS, Reason.LIMIT_QUOTA) and exceeded.wait_s < math.inf:
                use.refused_tokens = state.most_tokens
            return use.turn(exceeded, now)
        self.take(state, offer, now)
        return None

    def take(self, state: RequestState, offer: Offer, now: float) -> None:
        """Charge the request, even beyond the limits: it runs already, or `reserve` has looked."""
        use = self.tenants.of(state.request.tenant, state.request.tier, now)
        self._expect_cached(state, offer)
        state.use, state.reserved_tokens = use, state.most_tokens
        use.take(state.reserved_tokens, now)

    def offered(self, state: RequestState, offer: Offer, now: float) -> None:
        """Count what a request asks of its tenant's fair share in the pool that it has come to."""
        state.expected_output = self._forecaster.expected_output(offer)
        state.shares = offer.pool.queue.of_tier(state.request.tier).shares
        state.shares.offered(state.request.tenant, state.prompt_tokens + OUTPUT_WEIGHT * state.expected_output, now)

    def dispatched(self, state: RequestState, now: float) -> None:
        """Charge the expected output tokens to the tenant's fair share, at the first dispatch."""
        cost = state.prompt_tokens + OUTPUT_WEIGHT * state.expected_output
        state.charged = cost
        if state.use is not None:
            state.use.serve(cost, now)
        if state.shares is not None:
            state.shares.served(cost, now)

    def first_token(self, state: RequestState, now: float) -> None:
        """Label the forecast if the first token decides the label. A missed TTFT decides it. A kept TTFT decides it
        only if the request has no other objective.
        """
        self._promises.first_token(state, now)
        slo = state.slo
        if now - state.request.body_at > slo.ttft_bound_s:
            self._forecaster.judged(state, True)
        elif slo.tpot_bound_s == slo.e2e_bound_s == math.inf:
            self._forecaster.judged(state, False)

    def attempted(self, state: RequestState, attempt: Attempt, result: AttemptResult) -> None:
        """Record the token counts of the engine's usage report, or else the number of tokens that were streamed."""
        if state.committed is not None and state.committed is not attempt:
            return
        request = state.request
        seen = max(attempt.tokens, result.tokens_seen)
        state.output_tokens = seen if result.output_tokens is None else result.output_tokens
        state.tokens_exact = result.output_tokens is not None
        if request.tier.limits.count is CountedTokens.UNCACHED and request.batch == 1:
            prompt = result.prompt_tokens or state.prompt_tokens
            state.cached_tokens = min(prompt, attempt.predicted_of(prompt))
            if result.cached_tokens is not None:
                state.cached_tokens = min(prompt, result.cached_tokens)
        if result.prompt_tokens is not None:
            state.prompt_tokens = result.prompt_tokens
            if request.prompt_exact is None and request.affinity.stored is None:
                model = request.asked_model or request.model.name
                self._prompts.learn(model, request.prompt_bytes // request.batch, result.prompt_tokens // request.batch)

    def close(self, state: RequestState, now: float) -> Record:
        """Settle the tenant's limits for an ended request. The forecaster and the promises learn from how it ended."""
        if state.use is not None:
            state.settle(now)
            if state.charged:
                self._correct(state, now)
        record = state.record()
        record.history = history_of(state)
        if state.forecast is not None:
            self._judge(state, record, now)
        self._promises.ended(state, record, now)
        return record

    # ---- within

    @staticmethod
    def _expect_cached(state: RequestState, offer: Offer) -> None:
        """Predict the cached prompt tokens, if the tier does not charge them."""
        request = state.request
        if request.tier.limits.count is CountedTokens.UNCACHED and request.batch == 1:
            state.cached_tokens = offer.prompt_tokens - offer.least_unread

    @staticmethod
    def _correct(state: RequestState, now: float) -> None:
        """Correct what a sent request was charged to its tenant's fair share, since its cost is known now. It is 0 if
        no engine worked on it.
        """
        cost = state.prompt_tokens + OUTPUT_WEIGHT * state.output_tokens if state.is_worked_on else 0.0
        more = cost - state.charged
        if state.use is not None:
            state.use.serve(more, now)
        if state.shares is not None:
            state.shares.offered(state.request.tenant, more, now)
            state.shares.served(more, now)

    def _judge(self, state: RequestState, record: Record, now: float) -> None:
        """Label the forecast by how the request ended. Outcomes that do not depend on latency give no label.

        A degraded answer never counts as good. Its label only says whether the answer was in time, because the forecast
        predicted only the time.
        """
        late = is_lost(record) or (record.outcome is Outcome.CUT and record.why is Reason.TOTAL_TIMEOUT)
        if record.outcome is Outcome.OK:
            met = record.good
            if state.degraded:
                met = state.slo.met(record.ttft_s, record.tpot_s, record.e2e_s, record.output_tokens)
            self._forecaster.judged(state, not met)
        elif late:
            self._forecaster.judged(state, True)
        else:
            self._forecaster.dropped(state)
