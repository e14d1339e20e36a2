"""Decides whether a request is sent, queued or refused, and sets the limits of replicas that follow from objectives."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.adapters import goes_first
from gateway.core.admission.outlook import Outlook, reason
from gateway.core.admission.patience import Patience
from gateway.core.admission.promises import Promises
from gateway.core.admission.rules import RULES, Case
from gateway.core.decision import Decision, RuleName
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, Policy
from gateway.core.request import Random
from gateway.core.request_state import RequestState, offer_of

RECHECK_FROM: Final = 4.0
"""At its turn, a queued request is forecast again if its time left is below this multiple of its predicted engine TTFT.
"""
HOLD_SHARE: Final = 0.2
"""Prompts may wait unread inside an engine for at most this share of the tightest TTFT objective."""
MAX_TIGHTEST_S: Final = 5.0
"""If the tightest TTFT objective is looser than this, `HOLD_SHARE` is taken of this value instead."""
MIN_STEPS: Final = 5.0
"""An engine may always have unread prompts for this many steps of an idle engine.

With fewer, its batches of prompts would be too short.
"""
UNKNOWN_WINDOW_TOKENS: Final = 16384.0
"""Limit on an engine's unread prompt tokens before its prefill speed is known. A longer prompt is sent alone.

The six simulated engines read this many tokens in .3 to 8 s, 1.4 s in the geometric mean.
"""


class Admission:
    """Decides on new requests by the rules (rules.py), and again on queued requests when their turn comes."""

    def __init__(self, policy: Policy, fleet: Fleet, forecaster: Forecaster) -> None:
        self._fleet = fleet
        self._forecaster = forecaster
        self.promises = Promises(policy, forecaster)
        self.outlook = Outlook(forecaster, self.promises)
        self.patience = Patience(forecaster)
        self._hold_s = math.inf
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """Apply a policy."""
        self.promises.configure(policy)
        bounds_s = [objective.threshold_s for tier in policy.tiers.values() for objective in tier.slo.ttft]
        tightest_s = min(bounds_s, default=math.inf)
        self._hold_s = HOLD_SHARE * min(tightest_s, MAX_TIGHTEST_S)

    # ---- decisions

    def decide(self, offer: Offer, random: Random, now: float) -> Decision:
        """Decide on a new request. It overtakes waiting requests of its tier only if none of them can use the free
        slot. Nothing is changed.
        """
        replica = None
        if not self.waits_behind(offer):
            replica = offer.pool.pick(offer.request, offer.needs_tokens, random.random())
        case = Case(offer, replica, self.outlook, self.patience, self._fleet, random, now)
        for rule in RULES:
            decision = rule.decide(case)
            if decision is not None:
                decision.runner_up = case.runner_up
                return decision
        raise AssertionError("the last rule decides on every request")

    def waits_behind(self, offer: Offer) -> bool:
        """Whether a new request must wait behind queued requests of its tier."""
        tier, pool = offer.request.tier, offer.pool
        return pool.queue.holds(tier) and not goes_first(tier, pool) and not self.patience.passes(tier, pool)

    def is_hopeless(self, state: RequestState, replica: Replica, now: float) -> str:
        """Why a queued request would miss its objective if it were sent to `replica` now; empty if it would not."""
        pool, offer = replica.pool, offer_of(state)
        tier, before = offer.request.tier, state.forecast
        if before is None or state.rule is RuleName.EXPLORATION or tier.admission.mode is not AdmissionMode.ENFORCE:
            return ""
        left_s = state.deadline - now
        if left_s > RECHECK_FROM * before.engine_s(state.request.body_at):
            return ""
        forecast = self.outlook.forecast(offer, replica, now)
        if not self.outlook.trusted(pool):
            # The breach probability is not trusted here, but the TTFT estimate is. So a request is refused if the TTFT
            # alone breaks the bound. Otherwise, requests that wait until their deadlines would be sent just too late.
            bound_s = offer.slo.ttft_bound_s
            if not state.request.stream or forecast.ttft_s <= bound_s:
                return ""
            return f"The replicas are busy. This request's turn came too late for a first token within {bound_s:g} s."
        return reason(offer, forecast) if forecast.breach > offer.max_breach else ""

    def admitted(self, state: RequestState, decision: Decision, now: float) -> None:
        """Record that a request was sent or queued."""
        decision.offer.pool.queue.of_tier(state.request.tier).admitted(now)
        if decision.forecast is not None:
            self.promises.admitted(state, decision, decision.forecast)

    # ---- limits of replicas

    def price(self, replica: Replica, now: float) -> None:
        """Update the prices and the step limit of `replica`, and the step limit of its pool's typical replica."""
        pool, budget = replica.pool, replica.budget
        budget.prices = self._forecaster.step_prices(pool, replica, now)
        budget.limit_s = self.promises.step_limit_s(pool, budget.prices, now)
        typical = self._forecaster.step_prices(pool, None, now)
        limit_s, costs = self.promises.step_limit_s(pool, typical, now), self._forecaster.costs(pool)
        if costs.queued_limit_s != limit_s:  # never of an unknown pool: it has no prices, and so no limit
            costs.queued_limit_s = limit_s

    def prefill_limit(self, pool: Pool) -> float:
        """Limit on the unread prompt tokens of one engine of `pool`. An engine at the limit is sent nothing more.

        An engine serves its own queue in order of arrival, whatever the tier. So its unread prompts are limited to what
        it reads in `HOLD_SHARE` of the tightest TTFT objective. The limit is never so low that the engine would be
        idle. Slots alone do not limit unread prompts if prompts are long and answers short.
        """
        token_s = self._forecaster.prefill_s_per_token(pool.spec.name)
        if token_s is None:
            return UNKNOWN_WINDOW_TOKENS
        base_s = self._forecaster.costs(pool).step.coefficients[0]
        return max(MIN_STEPS * base_s, self._hold_s) / token_s
