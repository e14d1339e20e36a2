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
from gateway.core.queueing.limits import Left, LimitExceeded, Tenants
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptResult, Outcome, Reason, Record
from gateway.core.sample import LimitLease, LimitUse, QuotaWindow
from gateway.core.scheduling.histories import history_of
from gateway.core.snapshot import LimitView

OUTPUT_WEIGHT: Final = 2.0
"""Cost of an output token, in prompt tokens, when tenants share a queue fairly. The value is llm-d's default."""


class Accounting:
    """`reserve` opens the account of a request, `close` closes it once."""

    def __init__(self, prompts: PromptEstimator, forecaster: Forecaster, promises: Promises) -> None:
        self._tenants = Tenants()
        self._prompts = prompts
        self._forecaster = forecaster
        self._promises = promises

    def configure(self, tiers: Mapping[str, Tier], now: float) -> None:
        """Apply the limits of a policy. Usage so far stays counted."""
        self._tenants.configure(tiers, now)

    def left(self, tenant: str, tier: str, now: float) -> Left:
        """Requests and tokens that the tenant may still use in this minute."""
        return self._tenants.left(tenant, tier, now)

    def share(self, gateways: int, leases: Sequence[LimitLease], tiers: Mapping[str, Tier], now: float) -> None:
        """As many gateways share the limits. `leases`: parts of this one. Those of unknown tiers are ignored."""
        self._tenants.share(gateways, tiers, now)
        for lease in leases:
            tier = tiers.get(lease.tier)
            if tier is not None:
                self._tenants.of(lease.tenant, tier, now).lease(lease)

    def open_windows(self, windows: Sequence[QuotaWindow], tiers: Mapping[str, Tier], now: float) -> None:
        """Begin these days and months of quotas."""
        self._tenants.open_windows(windows, tiers, now)

    def memory(self) -> list[list[object]]:
        """Use of quotas, for the process after this one."""
        return self._tenants.memory()

    def recall(self, memory: object, tiers: Mapping[str, Tier], now: float) -> None:
        """Take over the use of quotas whose windows are still open."""
        self._tenants.recall(memory, tiers, now)

    def uses(self, tenant: str, tier: Tier, now: float) -> tuple[LimitUse, ...]:
        """Use of each limit of a tenant, for the other gateways."""
        return self._tenants.uses(tenant, tier, now)

    def exceeded_by(self, tenant: str, tier: Tier, tokens: int, now: float) -> LimitExceeded | None:
        """The limit that one more request of `tokens` would exceed; None if there is none."""
        return self._tenants.check(tenant, tier, tokens, now)

    def views(self, now: float) -> tuple[LimitView, ...]:
        """Usage of every tenant, for the admin pages."""
        return self._tenants.views(now)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """Number of requests under way by (tenant, tier); pairs with none are left out."""
        return self._tenants.in_flight()

    # ---- in the order in which they are called

    def exceeded(self, live: RequestState, offer: Offer, now: float) -> LimitExceeded | None:
        """The tenant's limit that the new request would exceed, or None. Changes only `live`."""
        request = live.request
        self._expect_cached(live, offer)
        return self._tenants.check(request.tenant, request.tier, live.most_tokens, now)

    def reserve(self, live: RequestState, offer: Offer, now: float) -> LimitExceeded | None:
        """Charge the request, its prompt tokens and its granted output tokens to its tenant's limits."""
        use = self._tenants.of(live.request.tenant, live.request.tier, now)
        self._expect_cached(live, offer)
        exceeded = use.check(live.most_tokens, now)
        if exceeded is not None:
            if exceeded.why in (Reason.LIMIT_TOKENS, Reason.LIMIT_QUOTA) and exceeded.wait_s < math.inf:
                use.refused_tokens = live.most_tokens
            return use.turn(exceeded, now)
        self.take(live, offer, now)
        return None

    def take(self, live: RequestState, offer: Offer, now: float) -> None:
        """Charge the request, even beyond the limits: it runs already, or `reserve` has looked."""
        use = self._tenants.of(live.request.tenant, live.request.tier, now)
        self._expect_cached(live, offer)
        live.use, live.reserved_tokens = use, live.most_tokens
        use.take(live.reserved_tokens, now)

    def offered(self, live: RequestState, offer: Offer, now: float) -> None:
        """Count what a request asks of its tenant's fair share in the pool that it has come to."""
        live.expected_output = self._forecaster.expected_output(offer)
        live.shares = offer.pool.queue.of_tier(live.request.tier).shares
        live.shares.offered(live.request.tenant, live.prompt_tokens + OUTPUT_WEIGHT * live.expected_output, now)

    def dispatched(self, live: RequestState, now: float) -> None:
        """Charge the expected output tokens to the tenant's fair share, at the first dispatch."""
        cost = live.prompt_tokens + OUTPUT_WEIGHT * live.expected_output
        live.charged = cost
        if live.use is not None:
            live.use.serve(cost, now)
        if live.shares is not None:
            live.shares.served(cost, now)

    def first_token(self, live: RequestState, now: float) -> None:
        """Label the forecast if the first token decides the label. A missed TTFT decides it. A kept TTFT decides it
        only if the request has no other objective.
        """
        self._promises.first_token(live, now)
        slo = live.slo
        if now - live.request.body_at > slo.ttft_bound_s:
            self._forecaster.judged(live, True)
        elif slo.tpot_bound_s == slo.e2e_bound_s == math.inf:
            self._forecaster.judged(live, False)

    def attempted(self, live: RequestState, attempt: Attempt, finish: AttemptResult) -> None:
        """Record the token counts of the engine's usage report, or else the number of tokens that were streamed."""
        if live.committed is not None and live.committed is not attempt:
            return
        request = live.request
        seen = max(attempt.tokens, finish.tokens_seen)
        live.output_tokens = seen if finish.output_tokens is None else finish.output_tokens
        live.tokens_exact = finish.output_tokens is not None
        if request.tier.limits.count is CountedTokens.UNCACHED and request.batch == 1:
            prompt = finish.prompt_tokens or live.prompt_tokens
            live.cached_tokens = min(prompt, attempt.predicted_of(prompt))
            if finish.cached_tokens is not None:
                live.cached_tokens = min(prompt, finish.cached_tokens)
        if finish.prompt_tokens is not None:
            live.prompt_tokens = finish.prompt_tokens
            if request.prompt_exact is None and request.affinity.stored is None:
                model = request.asked_model or request.model.name
                self._prompts.learn(model, request.prompt_bytes // request.batch, finish.prompt_tokens // request.batch)

    def close(self, live: RequestState, now: float) -> Record:
        """Settle the tenant's limits for an ended request. The forecaster and the promises learn from how it ended."""
        if live.use is not None:
            live.settle(now)
            if live.charged:
                self._correct(live, now)
        record = live.record()
        record.history = history_of(live)
        if live.forecast is not None:
            self._judge(live, record, now)
        self._promises.ended(live, record, now)
        return record

    # ---- within

    @staticmethod
    def _expect_cached(live: RequestState, offer: Offer) -> None:
        """Predict the cached prompt tokens, if the tier does not charge them."""
        request = live.request
        if request.tier.limits.count is CountedTokens.UNCACHED and request.batch == 1:
            live.cached_tokens = offer.prompt_tokens - offer.least_unread

    @staticmethod
    def _correct(live: RequestState, now: float) -> None:
        """Correct what a sent request was charged to its tenant's fair share, since its cost is known now. It is 0 if
        no engine worked on it.
        """
        cost = live.prompt_tokens + OUTPUT_WEIGHT * live.output_tokens if live.is_worked_on else 0.0
        more = cost - live.charged
        if live.use is not None:
            live.use.serve(more, now)
        if live.shares is not None:
            live.shares.offered(live.request.tenant, more, now)
            live.shares.served(more, now)

    def _judge(self, live: RequestState, record: Record, now: float) -> None:
        """Label the forecast by how the request ended. Outcomes that do not depend on latency give no label.

        A degraded answer never counts as good. Its label only says whether the answer was in time, because the forecast
        predicted only the time.
        """
        late = is_lost(record) or (record.outcome is Outcome.CUT and record.why is Reason.TOTAL_TIMEOUT)
        if record.outcome is Outcome.OK:
            met = record.good
            if live.degraded:
                met = live.slo.met(record.ttft_s, record.tpot_s, record.e2e_s, record.output_tokens)
            self._forecaster.judged(live, not met)
        elif late:
            self._forecaster.judged(live, True)
        else:
            self._forecaster.dropped(live)
