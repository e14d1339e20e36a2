"""Decides whether a request is sent, queued or shed.

    fits now -> waits, with a deadline -> spills into a longer pool -> gets a shorter answer -> is shed

A request is doubtful if its forecast probability of missing an objective is above its tier's threshold, or if it would
break a percentile of its tier (ttft_guard.py). A request that is not doubtful takes a slot, or waits for one.
A small share of the doubtful requests is admitted as exploration: only admitted requests show whether the forecast was
right. Other doubtful requests are admitted because too few prompts of similar length were admitted (fairness.py). While
the forecast is untrusted, breach probabilities make no request doubtful. Then the limits of slots and queue decide, and
a queued request is refused at its turn if too little time is left for a first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from gateway.core.admission.adapters import goes_first
from gateway.core.admission.patience import Patience
from gateway.core.admission.promises import Promises
from gateway.core.admission.wording import above_bound, above_limit
from gateway.core.estimators.ttft_guard import TtftGuard
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.wait import drain_per_s
from gateway.core.policy import AdmissionMode, Policy, Tier
from gateway.core.prediction import NOTHING_AHEAD, Ahead, Forecast
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.request import Random
from gateway.core.request_state import RequestState
from gateway.core.results import Reason
from gateway.core.snapshot import Trust

LOOKED_AT: Final = 4
"""At most this many replicas with a free slot, least loaded first, are tried before a request is shed."""
PROBE_EVERY_S: Final = 1.0
"""If a tier admitted no request for this long, its next doubtful request is admitted."""
MAX_HIGHER_SHARE: Final = 0.9
SPILL_HEADROOM: Final = 0.3
"""A pool takes requests that another pool would shed only if this share of its slots is free."""
SPILL_BREACH: Final = 0.05
"""Largest P(breach) at which a pool takes a request that another pool would shed."""
CONTESTED_BREACH: Final = 0.1
"""Largest P(breach) at which the head of a queue is still sent while others wait. The others have more time left, so
they gain more from the slot.
"""
RECHECK_FROM: Final = 4.0
"""At its turn, a queued request is forecast again if its time left is below this multiple of its predicted engine TTFT.
"""
DEGRADE_MARGIN: Final = 0.8
"""A degraded answer is capped to fill this share of the time left."""
MIN_DEGRADED_TOKENS: Final = 16
"""A request is not degraded if its answer would be capped below this many tokens."""
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


class Verdict(Enum):
    """Decision on a new request."""

    SEND = auto()
    WAIT = auto()
    SHED = auto()


class Decision:
    """The verdict on a new request, with the queued requests that it displaces, or the reason to shed it.

    `replica`: where the request is sent, or would be sent if it were not shed. `detail`: the error text for the client
    of a shed or displaced request.
    """

    __slots__ = ("detail", "replica", "verdict", "victims", "why")

    def __init__(
        self,
        verdict: Verdict,
        replica: Replica | None = None,
        victims: Sequence[QueuedRequest] = (),
        why: Reason = Reason.QUEUE_FULL,
        detail: str = "",
    ) -> None:
        self.verdict = verdict
        self.replica = replica
        self.victims = victims
        self.why = why
        self.detail = detail


class Admission:
    """Decides on new requests, and again on queued requests when their turn comes."""

    def __init__(self, policy: Policy, fleet: Fleet, forecaster: Forecaster) -> None:
        self._fleet = fleet
        self._forecaster = forecaster
        self.promises = Promises(policy, forecaster)
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

    def arrives(self, live: RequestState, pool: Pool, random: Random, now: float) -> Decision:
        """Decide on a new request of `pool`. It overtakes waiting requests of its tier only if none of them can use the
        free slot.

        Changes `live`, and advances a round-robin router.
        """
        tier = live.request.tier
        replica = None if self.waits_behind(tier, pool) else pool.pick(live, None, random.random())
        if pool.knows_caches:
            self.patience.arrives(live, pool)
            if replica is not None and self._waits_for_own(live, replica, now):
                return Decision(Verdict.WAIT)
        if tier.admission.mode is not AdmissionMode.OFF and live.slo.bounded:
            live.forecast = forecast = self.forecast(live, pool, replica, now)
            if self.is_doubtful(live, pool, forecast):
                faster = (
                    None if replica is None or pool.is_bound(live.request) else self._faster(live, pool, replica, now)
                )
                if faster is not None:
                    return Decision(Verdict.SEND, faster)
                if not self._is_owed(live, pool, forecast, now) and not self._is_let_in(live, pool, random, now):
                    other = self._spill(live, pool, random, now)
                    if other is not None:
                        return Decision(Verdict.SEND, other)
                    if not self._degrade(live, pool, replica, forecast, now):
                        detail = self.why(live, pool, forecast)
                        return Decision(Verdict.SHED, replica, why=Reason.PREDICTED, detail=detail)
        if replica is not None:
            return Decision(Verdict.SEND, replica)
        return waits(live, pool)

    def waits_behind(self, tier: Tier, pool: Pool) -> bool:
        """Whether a new request of `tier` must wait behind queued requests of its tier."""
        return pool.queue.holds(tier) and not goes_first(tier, pool) and not self.patience.passes(tier, pool)

    def _waits_for_own(self, live: RequestState, replica: Replica, now: float) -> bool:
        """Whether a new request waits for the replica that has its prompt cached. It waits only if it is still expected
        to be in time.
        """
        pool = replica.pool
        if not self.patience.waits_for_own(live, replica, now):
            return False
        decision = waits(live, pool)
        if decision.verdict is not Verdict.WAIT or decision.victims:
            return False
        forecast = self.forecast(live, pool, None, now)
        if live.slo.bounded:
            live.forecast = forecast
        return not self.is_doubtful(live, pool, forecast)

    def is_hopeless(self, live: RequestState, replica: Replica, now: float) -> str:
        """Why a queued request would miss its objective if it were sent to `replica` now; empty if it would not."""
        pool = replica.pool
        before = live.forecast
        if before is None or live.explored or live.request.tier.admission.mode is not AdmissionMode.ENFORCE:
            return ""
        left_s = live.deadline - now
        if left_s > RECHECK_FROM * before.engine_s(live.request.body_at):
            return ""
        forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
        if not self.trusted(pool):
            # The breach probability is not trusted here, but the TTFT estimate is. So a request is refused if the TTFT
            # alone breaks the bound. Otherwise, requests that wait until their deadlines would be sent just too late.
            bound_s = live.slo.ttft_bound_s
            if not live.request.stream or forecast.ttft_s <= bound_s:
                return ""
            return f"The replicas are busy. This request's turn came too late for a first token within {bound_s:g} s."
        limit = self.promises.threshold(live.request.tier)
        if pool.queue.of_tier(live.request.tier).count > 1 and not (live.owed or is_within_share(live, pool, now)):
            limit = min(limit, CONTESTED_BREACH)
        return self.reason(live, forecast, limit) if forecast.breach > limit else ""

    def is_doubtful(self, live: RequestState, pool: Pool, forecast: Forecast) -> bool:
        """Whether a trusted forecast is above the threshold, or a constraint of the tier would break."""
        if forecast.breach > self.promises.threshold(live.request.tier) and self.trusted(pool):
            return True
        return self.promises.broken(live, pool, forecast) is not None

    # ---- inputs of decisions

    def forecast(self, live: RequestState, pool: Pool, replica: Replica | None, now: float) -> Forecast:
        """The forecast for a new request that is sent to `replica`, or queued if `replica` is None."""
        ahead = NOTHING_AHEAD if replica is not None else self.ahead(live, pool, now)
        return self._forecaster.forecast(live, pool, replica, ahead, now)

    def trust(self, pool: Pool) -> Trust:
        """Whether forecasts for this pool are trusted, or why not."""
        return self._forecaster.trust(pool.spec.name)

    def trusted(self, pool: Pool) -> bool:
        """Whether forecasts decide on requests of this pool. If not, only the limits of slots and queue decide."""
        return self._forecaster.trust(pool.spec.name) is Trust.TRUSTED

    def admitted(self, live: RequestState, pool: Pool, now: float) -> None:
        """Record that a request was sent or queued."""
        pool.queue.of_tier(live.request.tier).admitted(now)
        if live.forecast is not None:
            self._forecaster.watch(live, now)
            self.promises.admitted(live, pool, live.forecast)

    def ahead(self, live: RequestState, pool: Pool, now: float, start_by: float = math.inf) -> Ahead:
        """The requests that would be served before `live` if it were queued now. Requests of its own tier count if
        their latest start is before `start_by`.
        """
        request, queue = live.request, pool.queue
        own, own_per_s = 0, None
        if queue:
            tier_queue = queue.of_tier(request.tier)
            own_per_s = tier_queue.turns.per_s(now)
            if tier_queue.count:
                own = tier_queue.ahead_of(request.tenant, start_by)
        above, per_s = queue.above(request.tier, now)
        # Before any backlog, the drain rate is the rate of arrivals. Higher tiers may have nearly all arrivals.
        drain = None if pool.drain.per_s() is None else self.drain_per_s(pool)
        share = min(MAX_HIGHER_SHARE, per_s / drain) if drain else 0.0
        return Ahead(above + own, own, share, request.tier.floor, own_per_s)

    def price(self, replica: Replica, now: float) -> None:
        """Update the prices and the step limit of `replica`, and the step limit of its pool's typical replica."""
        pool, budget = replica.pool, replica.budget
        budget.prices = self._forecaster.step_prices(pool, replica, now)
        budget.limit_s = self.promises.step_limit_s(pool, budget.prices, now)
        typical = self._forecaster.step_prices(pool, None, now)
        limit_s, costs = self.promises.step_limit_s(pool, typical, now), self._forecaster.costs(pool)
        if costs.queued_limit_s != limit_s:  # never of an unknown pool: it has no prices, and so no limit
            costs.queued_limit_s = limit_s

    def drain_per_s(self, pool: Pool) -> float | None:
        """Drain rate of `pool` in requests per second, as decisions use it; None if it is unknown."""
        return drain_per_s(self._forecaster.costs(pool), pool)

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

    def why(self, live: RequestState, pool: Pool, forecast: Forecast) -> str:
        """The error text for a request that is refused because of this forecast."""
        limit = self.promises.threshold(live.request.tier)
        is_breach = forecast.breach > limit and self.trusted(pool)
        broken = None if is_breach else self.promises.broken(live, pool, forecast)
        if broken is None:
            return self.reason(live, forecast, limit)
        if not isinstance(broken, TtftGuard):
            vain, allowed = above_limit(broken.corrected(forecast.in_vain), broken.allowed)
            return (
                f"The replicas are busy. Predicted: a wait of {forecast.wait_s:.3g} s, and a refusal after it with "
                f"a probability of {vain}; at most {allowed} of the admitted are to wait in vain."
            )
        bound_s = broken.objective.threshold_s
        late, allowed = above_limit(broken.corrected(forecast.doubted), broken.allowed)
        early = (
            f" While many requests wait, those that wait must begin within {forecast.part * bound_s:.3g} s."
            if forecast.part < 1.0
            else ""
        )
        return (
            f"The replicas are busy. Predicted: the first token comes later than {forecast.part * bound_s:.3g} s with "
            f"a probability of {late}; at most {allowed} of the answers may be late, so that the "
            f"{broken.objective.percentile} stays within {bound_s:g} s.{early}"
        )

    def reason(self, live: RequestState, forecast: Forecast, limit: float) -> str:
        """The error text for a request whose P(breach) is above `limit`."""
        slo, is_streamed = live.slo, live.request.stream
        latencies = (
            ("time to first token", forecast.ttft_s, slo.ttft_bound_s if is_streamed else math.inf),
            ("time per token", forecast.tpot_s, slo.tpot_bound_s if is_streamed else math.inf),
            ("time to the end", forecast.e2e_s, slo.e2e_bound_s),
        )
        name, predicted_s, bound_s = max(latencies, key=_nearness)
        missed = f"an objective, most likely the {name}, is missed"
        if predicted_s > bound_s:
            shown, bound = above_bound(predicted_s, bound_s)
            missed = f"{name} {shown} s, more than {bound} s; an objective is missed"
        chance, allowed = above_limit(forecast.breach, limit)
        return f"The replicas are busy. Predicted: {missed} with a probability of {chance}, above {allowed}."

    # ---- doubtful requests

    def _is_owed(self, live: RequestState, pool: Pool, doubtful: Forecast, now: float) -> bool:
        """Whether a doubtful request is admitted all the same. Either too few requests with prompts of similar length
        were admitted lately. Or its tenant is within its share, and the request is likely to be in time.

        A queued request overtakes requests with a later latest start. So its forecast is made again without them.
        """
        is_timely = doubtful.breach <= self.promises.threshold(live.request.tier) or not self.trusted(pool)
        if not (is_timely and is_within_share(live, pool, now)) and not self.promises.is_owed(live, now):
            return False
        live.owed = True
        if doubtful.wait_s > 0.0:
            start_by = live.deadline - doubtful.engine_s(live.request.body_at)
            live.forecast = self._forecaster.forecast(live, pool, None, self.ahead(live, pool, now, start_by), now)
        return True

    def _is_let_in(self, live: RequestState, pool: Pool, random: Random, now: float) -> bool:
        """Whether a doubtful request is admitted because its tier's admission mode is `shadow`, or as exploration."""
        admission = live.request.tier.admission
        if admission.mode is AdmissionMode.SHADOW:
            live.would_shed = True
            return True
        if admission.exploration <= 0.0:
            return False
        idle_s = now - pool.queue.admitted_at(live.request.tier)
        live.explored = idle_s >= PROBE_EVERY_S or random.random() < admission.exploration
        return live.explored

    def _faster(self, live: RequestState, pool: Pool, doubtful: Replica, now: float) -> Replica | None:
        """Another replica at which the request is not doubtful; None if there is none.

        The router's choice may be a slow one, since routers ignore how fast replicas are.
        """
        for replica in pool.candidates(live.request)[:LOOKED_AT]:
            if replica is doubtful or not pool.contexts.fits(live, replica):
                continue
            forecast = self._forecaster.forecast(live, pool, replica, NOTHING_AHEAD, now)
            if not self.is_doubtful(live, pool, forecast):
                live.forecast = forecast
                return replica
        return None

    def _spill(self, live: RequestState, pool: Pool, random: Random, now: float) -> Replica | None:
        """A replica of another pool whose `spill_from` names `pool`, if that pool has room to spare."""
        request = live.request
        if pool.is_bound(request):
            return None
        for spec in request.policy.route(request.model, request.tier):
            if pool.spec.name not in spec.spill_from:
                continue
            other = self._fleet.pool(spec.name)
            fits = spec.takes(live.prompt_tokens, request.batch)
            if other is None or not fits or other.queue or other.headroom < SPILL_HEADROOM or not self.trusted(other):
                continue
            replica = other.pick(live, None, random.random())
            if replica is None:
                continue
            forecast = self._forecaster.forecast(live, other, replica, NOTHING_AHEAD, now)
            if forecast.breach < SPILL_BREACH:
                live.forecast = forecast
                return replica
        return None

    def _degrade(self, live: RequestState, pool: Pool, replica: Replica | None, forecast: Forecast, now: float) -> bool:
        """Cap the answer so that it is complete in time. Returns False if the tier allows no cap, or if a cap would not
        help.
        """
        bound_s = live.slo.e2e_bound_s
        if not live.request.tier.caps.degrade or bound_s == math.inf or live.request.choices > 1:
            return False  # with several choices, a client could not tell which of them were cut short
        asked = live.max_tokens
        live.max_tokens = min(asked, int(DEGRADE_MARGIN * (bound_s - forecast.ttft_s) / max(forecast.tpot_s, 1e-6)))
        if MIN_DEGRADED_TOKENS <= live.max_tokens < asked:
            shorter = self.forecast(live, pool, replica, now)
            if shorter.breach <= self.promises.threshold(live.request.tier):
                live.forecast, live.degraded = shorter, True
                return True
        live.max_tokens = asked
        return False


def _nearness(latency: tuple[str, float, float]) -> float:
    """A predicted latency divided by its bound; 0 without a bound."""
    _, predicted_s, bound_s = latency
    return predicted_s / bound_s


def is_within_share(live: RequestState, pool: Pool, now: float) -> bool:
    """Whether a tenant is within its fair share while others of its tier are not, so that these have to give way."""
    tier = live.request.tier
    is_enforced = tier.admission.mode is AdmissionMode.ENFORCE
    return is_enforced and pool.queue.of_tier(tier).shares.is_within(live.request.tenant, now)


def waits(live: RequestState, pool: Pool) -> Decision:
    """Queue a new request, displacing others if necessary, or shed it. The queue is limited in requests and in body
    bytes.

    A more urgent tier displaces a less urgent one, and a heavier tier a lighter one of its priority. Within a tier, a
    tenant with less than its share displaces one with more. Requests of tiers whose admission mode is not `enforce` are
    always queued: only their deadline ends the wait.
    """
    request, queue, spec = live.request, pool.queue, pool.spec
    count, held = queue.shared_with(request.tier)
    fits = count < spec.queue_limit and held + request.body_bytes <= spec.queue_bytes
    if fits or request.tier.admission.mode is not AdmissionMode.ENFORCE:
        return Decision(Verdict.WAIT)
    victim = queue.last_below(request.tier)
    if victim is not None and held - victim.request.body_bytes + request.body_bytes <= spec.queue_bytes:
        return Decision(
            Verdict.WAIT, victims=(victim,), detail="The queue was full: a request of a higher tier took this place."
        )
    if queue.holds(request.tier):
        by_count, spare_bytes = count >= spec.queue_limit, spec.queue_bytes - held
        victims = queue.of_tier(request.tier).yield_to(request.tenant, request.body_bytes, by_count, spare_bytes)
        if victims:
            return Decision(
                Verdict.WAIT, victims=victims, detail="The queue was full: this tenant held more than its share."
            )
    return Decision(Verdict.SHED)
