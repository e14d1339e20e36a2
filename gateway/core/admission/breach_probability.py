"""From what engines take to how long a request waits, and how probable it is that it misses an objective."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.fleet.pool import Pool
from gateway.core.forecast.ahead import Ahead, Forecast
from gateway.core.forecast.calibrator import Calibrator, over, tpot_kind
from gateway.core.forecast.latency_model import LatencyModel
from gateway.core.forecast.output_length import Bucket
from gateway.core.request_state import RequestState

BURST_S: Final = 10.0
"""For how long higher tiers are expected to go on as in the last seconds; then as in the last minute."""
SLOW_TAU_S: Final = 60.0


class HigherTierShare:
    """The share of higher tiers, as of the last minute, for one tier."""

    __slots__ = ("at", "share")

    def __init__(self, share: float, now: float) -> None:
        self.share = share
        self.at = now

    def add(self, share: float, now: float) -> None:
        """It is `share` now."""
        self.share += (share - self.share) * (1.0 - math.exp((self.at - now) / SLOW_TAU_S))
        self.at = now


def wait_in_gateway_s(costs: LatencyModel, pool: Pool, ahead: Ahead, slow_share: float) -> float:
    """Those before it at the rate at which the pool drains, less what higher tiers that are still to come will take.

    Before there ever was a backlog that rate is Little's: those in flight over how long each stays.
    """
    rate = pool.drain.per_s
    if rate is None:
        rate = max(1, pool.in_flight) / costs.stay_s if costs.stay_s > 0.0 else 1.0
    alone_s = (ahead.requests + 1) / rate
    long_s = alone_s / (1.0 - slow_share)
    share = slow_share + (ahead.higher_share - slow_share) * BURST_S / (BURST_S + long_s)
    strict_s = alone_s / (1.0 - share)
    if ahead.floor > 0.0:
        return min(strict_s, (ahead.own + 1) / (ahead.floor * rate))
    return strict_s


def raw_breach(
    live: RequestState, labels: Calibrator, bucket: Bucket, made: Forecast, more_s: float, output: float
) -> float:
    """P(any objective is missed), before calibration. Who waits for longer than `timeouts.queue` misses them all.

    `made`: the forecast, as far as it is known; `more_s`: from then to the first token; `output`: tokens of the answer.
    """
    slo, spread = live.slo, labels.spread.of[made.kind]
    elapsed_s, wait_s, tpot_s = made.at - live.ask.body_at, made.wait_s, made.tpot_s
    has_first = live.ask.stream and slo.ttft_bound_s < math.inf
    good = 1.0
    if wait_s > 0.0 and live.timeouts.queue_s < math.inf:
        good = 1.0 - over(wait_s, live.timeouts.queue_s - elapsed_s, spread)
    if has_first:
        # It is the same wait that makes it late for both.
        good = min(good, 1.0 - over(more_s, slo.ttft_bound_s - elapsed_s, spread))
    if slo.e2e_bound_s < math.inf:
        left_s = slo.e2e_bound_s - elapsed_s
        too_long = _too_long(bucket, left_s - more_s, tpot_s, live.max_tokens, slo.e2e_up_to_tokens)
        in_time = 1.0 - max(over(more_s, left_s, spread), too_long)
        good = good * in_time if has_first else min(good, in_time)
    if live.ask.stream and slo.tpot_bound_s < math.inf:
        good *= 1.0 - over(tpot_s, slo.tpot_bound_s, labels.spread.of[tpot_kind(output)])
    return 1.0 - good


def _too_long(bucket: Bucket, left_s: float, tpot_s: float, cap: int, up_to: int | None) -> float:
    """P(the answer takes more than `left_s`), of answers that the objective counts."""
    if left_s <= 0.0:
        return 1.0
    if left_s >= (cap - 1) * tpot_s:
        return 0.0  # also where a token is forecast to take no time at all
    tokens = left_s / tpot_s + 1.0
    longer = bucket.exceeds(tokens)
    return longer if up_to is None else max(0.0, longer - bucket.exceeds(float(up_to)))
