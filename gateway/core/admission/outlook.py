"""The forecast of a request, the requests ahead of it, and whether it is doubtful."""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.promises import Doubt, Promises
from gateway.core.admission.wording import above_bound, above_limit, probability
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.forecast.wait import drain_per_s, own_drain_per_s
from gateway.core.offer import Offer
from gateway.core.prediction import NOTHING_AHEAD, Ahead, Forecast
from gateway.core.snapshot import Trust

MAX_HIGHER_SHARE: Final = 0.9


class Outlook:
    """Reads forecasts and promises. It changes nothing."""

    def __init__(self, forecaster: Forecaster, promises: Promises) -> None:
        self._forecaster = forecaster
        self._promises = promises

    def forecast(self, offer: Offer, replica: Replica | None, now: float, start_by: float = math.inf) -> Forecast:
        """The forecast for a new request that is sent to `replica`, or queued if `replica` is None. `start_by`: see
        `ahead`.
        """
        ahead = NOTHING_AHEAD if replica is not None else self.ahead(offer, now, start_by)
        return self._forecaster.forecast(offer, replica, ahead, now)

    def ahead(self, offer: Offer, now: float, start_by: float = math.inf) -> Ahead:
        """The requests that would be served before this one if it were queued now. Requests of its own tier count if
        their latest start is before `start_by`.
        """
        request, pool = offer.request, offer.pool
        queue = pool.queue
        own, own_per_s = 0, None
        if queue:
            tier_queue = queue.of_tier(request.tier)
            own_per_s = tier_queue.turns.per_s(now)
            if tier_queue.count:
                own = tier_queue.ahead_of(request.tenant, start_by)
        above, per_s = queue.above(request.tier, now)
        # Before any backlog, the drain rate is the rate of arrivals. Higher tiers may have nearly all arrivals.
        drain = None if pool.drain.per_s() is None else own_drain_per_s(self._forecaster.costs(pool), pool)
        share = min(MAX_HIGHER_SHARE, per_s / drain) if drain else 0.0
        for priority, count in pool.others_waiting.items():
            above += count if priority <= request.tier.priority else 0
        return Ahead(above + own, own, share, request.tier.floor, own_per_s)

    def drain_per_s(self, pool: Pool) -> float | None:
        """Drain rate of `pool` in requests per second, as decisions use it; None if it is unknown."""
        return drain_per_s(self._forecaster.costs(pool), pool)

    def trust(self, pool: Pool) -> Trust:
        """The state of the forecasts of this pool."""
        return self._forecaster.trust(pool.spec.name)

    def trusted(self, pool: Pool) -> bool:
        """Whether P(breach) decides on requests of this pool. If not, slots, queue and the judges of TTFT decide."""
        return self.trust(pool) is Trust.TRUSTED

    def doubt(self, offer: Offer, forecast: Forecast) -> Doubt:
        """Whether a trusted forecast is above the threshold, or a constraint of the tier would break."""
        return self._promises.doubt(offer, forecast)

    def is_length_owed(self, offer: Offer, now: float) -> bool:
        """Whether too few requests with prompts of this length were admitted lately."""
        return self._promises.is_owed(offer, now)

    # ---- texts

    def why(self, offer: Offer, forecast: Forecast, doubt: Doubt) -> str:
        """The error text for a request that is refused because of this doubt."""
        broken = doubt.broken
        if broken is None:
            return reason(offer, forecast)
        bound_s = broken.objective.threshold_s
        late = doubt.late[-1]
        share, allowed = above_limit(broken.late_share(late, forecast.at), broken.allowed)
        return (
            f"The replicas are busy. Predicted: the first token comes later than {bound_s:g} s with a probability of "
            f"{probability(late)}. With it, {share} of the latest answers would be late; at most {allowed} may be, so "
            f"that the {broken.objective.percentile} stays within {bound_s:g} s."
        )


def reason(offer: Offer, forecast: Forecast) -> str:
    """The error text for a request whose P(breach) is too large."""
    slo, is_streamed = offer.slo, offer.request.stream
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
    chance, allowed = above_limit(forecast.breach, offer.max_breach)
    return f"The replicas are busy. Predicted: {missed} with a probability of {chance}, above {allowed}."


def _nearness(latency: tuple[str, float, float]) -> float:
    """A predicted latency divided by its bound; 0 without a bound."""
    _, predicted_s, bound_s = latency
    return predicted_s / bound_s
