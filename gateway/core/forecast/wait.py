"""Computes, from the learned costs of engines, how long a request will wait and how probably it will miss an
objective.
"""

from __future__ import annotations

import math

from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.estimators.output_length import Bucket
from gateway.core.estimators.spread import Spread
from gateway.core.estimators.step_margin import MAX_MARGIN, planned_late
from gateway.core.fleet.pool import Pool
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, Tier
from gateway.core.prediction import Ahead, Forecast


def drain_per_s(costs: LatencyModel, pool: Pool) -> float | None:
    """Drain rate in requests per second; None before any backlog and any answer. Requests of other gateways make room
    too when they end.
    """
    own_per_s = own_drain_per_s(costs, pool)
    others = sum(pool.others_by_tier.values()) if pool.others_by_tier else 0
    return own_per_s + others / costs.stay_s if own_per_s and others and costs.stay_s > 0.0 else own_per_s


def own_drain_per_s(costs: LatencyModel, pool: Pool) -> float | None:
    """Drain rate by requests of this gateway alone.

    After a short backlog, most of the estimate comes from Little's law: requests in flight / mean time in the engine.
    """
    typical_per_s = max(1, pool.in_flight) / costs.stay_s if costs.stay_s > 0.0 else 0.0
    return pool.drain.per_s(typical_per_s) or typical_per_s or None


def wait_in_gateway_s(costs: LatencyModel, pool: Pool, ahead: Ahead) -> float:
    """Expected wait in seconds: the requests ahead, divided by a part of the pool's drain rate. Later requests of
    higher tiers take the other part.

    If there are higher tiers and this one was lately served faster than that, its own rate counts. In an overload the
    higher tiers are refused while their queue is long, so they take less than their share of the last seconds says.
    """
    rate = drain_per_s(costs, pool) or 1.0
    strict_s = (ahead.requests + 1) / rate / (1.0 - ahead.higher_share)
    if ahead.own_per_s is not None and ahead.higher_share > 0.0:
        own_per_s = min(ahead.own_per_s, rate)
        strict_s = min(strict_s, (ahead.own + 1) / own_per_s + (ahead.requests - ahead.own) / rate)
    if ahead.floor > 0.0:
        return min(strict_s, (ahead.own + 1) / (ahead.floor * rate))
    return strict_s


def p_breach(offer: Offer, spread: Spread, bucket: Bucket, made: Forecast, more_s: float) -> float:
    """P(any objective is missed). A wait beyond `timeouts.queue` counts as missing them all.

    `made`: the forecast so far. `more_s`: seconds from `made.at` to the first token.
    """
    slo, kind = offer.slo, made.kind
    elapsed_s, wait_s, tpot_s = made.at - offer.request.body_at, made.wait_s, made.tpot_s
    has_first = offer.request.stream and slo.ttft_bound_s < math.inf
    good = 1.0
    if wait_s > 0.0 and offer.timeouts.queue_s < math.inf:
        good = 1.0 - spread.over(kind, wait_s, offer.timeouts.queue_s - elapsed_s)
    if has_first:
        # Not a product of probabilities: the same wait causes both misses.
        good = min(good, 1.0 - spread.over(kind, more_s, slo.ttft_bound_s - elapsed_s))
    if slo.e2e_bound_s < math.inf:
        left_s = slo.e2e_bound_s - elapsed_s
        too_long = _too_long(bucket, left_s - more_s, tpot_s, offer.max_tokens, slo.e2e_up_to_tokens)
        in_time = 1.0 - max(spread.over(kind, more_s, left_s), too_long)
        good = good * in_time if has_first else min(good, in_time)
    if offer.request.stream and slo.tpot_bound_s < math.inf:
        slow = spread.over(made.tpot_kind, tpot_s, slo.tpot_bound_s)
        if made.keeps_step:
            slow = min(slow, planned_late(max(objective.quantile for objective in slo.tpot)))
        good *= 1.0 - slow
    return 1.0 - good


def is_step_kept(offer: Offer, step_s: float, limit_s: float) -> bool:
    """Whether the step budget keeps the request's TPOT bound. `step_s`: the present step (seconds). `limit_s`: the
    longest mean step.

    If it does, at most a share `planned_late` of the answers is late, whatever their forecasts are: the step margin
    sees to it (step_margin.py). Every TPOT is then near the limit, so forecasts hardly tell which answers will be late.
    Measured on a 70B model and 8 H100 at 1.5x: correlation with the TPOT -.1, mean P(late) .24, late answers .01.
    """
    tier, bound_s = offer.request.tier, offer.slo.tpot_bound_s
    if bound_s != tier.slo.tpot_bound_s or tier.admission.mode is not AdmissionMode.ENFORCE:
        return False  # the budget does not know bounds of single requests, and `shadow` exceeds it
    return step_s <= min(limit_s, bound_s) and limit_s <= MAX_MARGIN * bound_s


def head_waited_s(pool: Pool, tier: Tier, now: float) -> float:
    """Seconds that the head of a tier's queue has waited since body complete. A new request is expected to wait at
    least as long.
    """
    head = pool.queue.of_tier(tier).first() if pool.queue.holds(tier) else None
    return 0.0 if head is None else now - head.request.body_at


def _too_long(bucket: Bucket, left_s: float, tpot_s: float, cap: int, up_to: int | None) -> float:
    """P(the answer takes more than `left_s` seconds and has at most `up_to` tokens). The objective does not apply to
    longer answers.
    """
    if left_s <= 0.0:
        return 1.0
    if left_s >= (cap - 1) * tpot_s:
        return 0.0  # this also covers `tpot_s` of 0
    tokens = left_s / tpot_s + 1.0
    longer = bucket.exceeds(tokens)
    return longer if up_to is None else max(0.0, longer - bucket.exceeds(float(up_to)))
