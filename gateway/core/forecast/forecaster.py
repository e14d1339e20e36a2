"""Forecast of a request admitted now: its latencies, and the probability that they miss an objective.

    TTFT = elapsed + wait in the gateway + engine TTFT       engine TTFT and TPOT: estimators/latency_model.py
    e2e  = TTFT + TPOT x (output tokens - 1)                 output tokens: estimators/output_length.py

The probability that a metric breaks its bound comes from a log-normal distribution around the forecast, with a learned
width. For e2e, the probability that the answer is too long for the time left counts too. All metrics together give
P(breach), which the outcomes of earlier requests calibrate (estimators/logistic.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from gateway.core.estimators.attempt_prediction import AttemptPrediction
from gateway.core.estimators.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.estimators.output_length import OutputLengths
from gateway.core.estimators.regression import BLOCK, FIRST
from gateway.core.estimators.replica_model import ReplicaModel
from gateway.core.estimators.spread import DIRECT, queued_kind, tpot_kind
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.slot import UNREAD
from gateway.core.fleet.step_budget import StepPrices
from gateway.core.forecast.learned import UNKNOWN, PoolLearned
from gateway.core.forecast.learner import Learner
from gateway.core.forecast.wait import is_step_kept, p_breach, wait_in_gateway_s
from gateway.core.offer import Offer
from gateway.core.policy import Policy
from gateway.core.prediction import Ahead, Forecast
from gateway.core.request import WEIGHTLESS, Request
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.snapshot import ForecastView, Trust

EARLY_STEPS: Final = 31
"""An answer under way is compared with its forecast after this many steps."""
MERGED: Final = 1.5
"""An answer with more tokens per event than this has several steps per event. So its events do not count steps."""
EXPECT_EVERY: Final = 1.25
"""The expected number of tokens still to come is updated each time an answer has grown by this factor."""
IDLE: Final = ReplicaModel(LatencyModel(), 0.0)
"""Model of a replica that never got a request."""


class Forecaster(Learner):
    """Forecasts the latencies of each request, and learns from those measured. There is one per controller.

    Learned facts are keyed by pool, replica and route. A reload forgets only those whose key is gone.
    """

    def __init__(self) -> None:
        self.pools: dict[str, PoolLearned] = {}
        self.engines: dict[str, ReplicaModel] = {}
        self.lengths = OutputLengths()

    def keep(self, policy: Policy, attempts: Iterable[Attempt]) -> None:
        """Forget pools and replicas that are not in `policy` and have no attempt under way."""
        pools = set(policy.pools)
        replicas = {replica.name for pool in policy.pools.values() for replica in pool.replicas}
        for attempt in attempts:
            pools.add(attempt.replica.pool.spec.name)
            replicas.add(attempt.replica.spec.name)
        self.pools = {name: learned for name, learned in self.pools.items() if name in pools}
        self.engines = {name: engine for name, engine in self.engines.items() if name in replicas}

    def slowness(self, replica: Replica) -> float:
        """Learned time per token, divided by that of the pool, rounded to steps; 1 if unknown."""
        learned, engine = self.pools.get(replica.pool.spec.name), self.engines.get(replica.spec.name)
        return engine.slowness if learned is not None and engine is not None and engine.costs is learned.costs else 1.0

    # ---- the forecast

    def forecast(self, offer: Offer, replica: Replica | None, ahead: Ahead, now: float) -> Forecast:
        """The forecast for a request that is sent to `replica` now, or queued behind `ahead` if None. Changes
        nothing.
        """
        request, pool = offer.request, offer.pool
        learned = self.pools.get(pool.spec.name, UNKNOWN)
        costs = learned.costs
        wait_s = slot_s = 0.0
        if replica is not None:
            engine = self.engines.get(replica.spec.name) or IDLE
            foreign = engine.foreign(now)
            step_s = costs.step_s(engine.decodes + foreign, engine.context)
            scale, drift = engine.factor, replica.budget.drift
            unread = replica.unread_of(offer.prompt_tokens, request)
            engine_s = costs.ttft_s(engine.total_backlog(now), unread, step_s)
            slot_s = engine.slot_s(replica.total_in_flight + foreign)
            kind, limit_s = DIRECT, replica.budget.limit_s
            prompt_tokens_per_s = scale * replica.budget.prompt_tokens_per_s(now)
        else:
            wait_s = wait_in_gateway_s(costs, pool, ahead)
            step_s = costs.step_s(costs.queued_decodes, costs.queued_context)
            scale, drift = 1.0, costs.queued_drift
            slot_s = costs.queued_slot_s
            engine_s = costs.ttft_s(costs.queued_backlog, offer.least_unread, step_s)
            kind, limit_s = queued_kind(ahead.requests), costs.queued_limit_s
            prompt_tokens_per_s = pool.prompts.per_s(now) / max(1, len(pool.replicas))
        more_s = wait_s + slot_s + scale * engine_s
        ttft_s, tpot_s = now - request.body_at + more_s, drift * scale * costs.tpot_s(step_s, prompt_tokens_per_s)
        made = Forecast(pool.spec.name, now, wait_s, ttft_s, tpot_s)
        made.kind, made.is_untried = kind, ahead.requests > 0 and ahead.own_per_s is None
        made.keeps_step = is_step_kept(offer, drift * scale * step_s, limit_s)
        bucket = self.lengths.known(request.model.name, request.tier.name, offer.prompt_tokens)
        output = min(bucket.median, float(offer.max_tokens))
        made.e2e_s = made.ttft_s + made.tpot_s * max(0.0, output - 1.0)
        made.tpot_kind = tpot_kind(output, made.tpot_s, offer.slo.tpot_bound_s)
        learned.calibrate(request.tier, made, p_breach(offer, learned.spread, bucket, made, more_s), ahead)
        return made

    def is_late(self, request: Request, forecast: Forecast, bound_s: float) -> float:
        """P(the first token comes later than `bound_s` after body complete), 0-1. The pool must have known costs."""
        spread = self.pools[forecast.pool].spread
        elapsed_s = forecast.at - request.body_at
        return spread.over(forecast.kind, forecast.ttft_s - elapsed_s, bound_s - elapsed_s)

    def alone_s(self, offer: Offer) -> float:
        """Expected TTFT at an idle replica. The pool must have known costs."""
        costs = self.pools[offer.pool.spec.name].costs
        return costs.ttft_s(0.0, offer.least_unread, costs.step.coefficients[0])

    def is_late_alone(self, pool: Pool, alone_s: float, bound_s: float) -> float:
        """P(TTFT exceeds `bound_s`), 0-1, if the expected TTFT is `alone_s`. The pool must have known costs."""
        return self.pools[pool.spec.name].spread.over(DIRECT, alone_s, bound_s)

    def expected_output(self, offer: Offer) -> float:
        """Expected output tokens of all choices together: the median of one answer, times the number of choices."""
        request = offer.request
        bucket = self.lengths.bucket(request.model.name, request.tier.name, offer.prompt_tokens)
        return min(bucket.median, float(offer.max_tokens)) * request.choices

    def prefill_s_per_token(self, pool: str) -> float | None:
        """Seconds in which a replica of this pool reads one prompt token; None until known."""
        return self.pools[pool].costs.prompt_token_s() if self.has_costs(pool) else None

    def has_costs(self, pool: str) -> bool:
        """Whether this pool has enough latency samples for its costs to count as known."""
        return self.pools.get(pool, UNKNOWN).has_costs

    def step_prices(self, pool: Pool, replica: Replica | None, now: float) -> StepPrices | None:
        """Prices at `replica`, or at the pool's typical replica if None. None until enough answers were measured."""
        learned = self.pools.get(pool.spec.name)
        engine = IDLE if replica is None else self.engines.get(replica.spec.name)
        if learned is None or engine is None or learned.costs.step.samples < FIRST:
            return None
        c0, c1, c2, c3 = learned.costs.step.coefficients
        factor = engine.factor
        base_s = factor * (c0 + c1 * DECODES * engine.foreign(now))
        return StepPrices(base_s, factor * c1 * DECODES, factor * c2 * CONTEXT, factor * c3 * TOKENS)

    def costs(self, pool: Pool) -> LatencyModel:
        """The costs of the typical replica of this pool, for reading: those of all unknown pools are one object."""
        learned = self.pools.get(pool.spec.name)
        return IDLE.costs if learned is None else learned.costs

    # ---- events: called after the counts of pool and replica have changed

    def opened(self, attempt: Attempt, now: float) -> None:
        """Predict the attempt's load and latencies at its dispatch."""
        state, replica = attempt.state, attempt.replica
        request = state.request
        if request.endpoint in WEIGHTLESS:
            return
        costs = self.of(replica.pool).costs
        engine = self.engine(replica, now)
        scores, choices = (replica.health.ttft, replica.health.itl), request.choices
        bucket = self.lengths.bucket(request.model.name, request.tier.name, state.prompt_tokens)
        unread, others = attempt.slot.unread_tokens, replica.total_in_flight - 1
        attempt.prediction = prediction = AttemptPrediction(engine, bucket, scores, choices, unread, others, now)
        read_by = math.inf if state.visible else now + prediction.ttft_s
        engine.begin(attempt.id, unread, read_by, now)
        engine.advance(replica.in_flight, replica.held_tokens, now)
        attempt.slot.expect(choices, min(prediction.bucket.mean, float(state.max_tokens)) * choices)
        if now > request.body_at and attempt.sent_at is None:  # else it met its load at another time
            backlog, decodes, context = prediction.backlog, prediction.decodes, prediction.context
            costs.met(backlog, decodes, context, prediction.slot_s, replica.budget.drift)

    def first_token(self, attempt: Attempt, now: float) -> None:
        """Learn from the first token of a streamed answer."""
        prediction = attempt.prediction
        if prediction is None:
            return
        engine = prediction.engine
        replica = attempt.replica
        learned = self.of(replica.pool)
        engine.read(attempt.id, now)
        engine.advance(replica.in_flight, replica.held_tokens, now)
        prediction.begin(now)
        seen_s = now - attempt.opened_at
        if seen_s <= 0.0:
            return
        if attempt.state.visible and prediction.counts:
            prediction.ttft.add(math.log(seen_s / prediction.expected_s))
        if not (prediction.teaches and attempt.replica.health.is_typical):
            return
        error = prediction.learn_ttft(learned.costs, attempt.slot.unread_tokens, seen_s)
        learned.spread.add(DIRECT, error)
        learned.sampled(error)
        forecast = attempt.state.forecast
        if forecast is not None and forecast.wait_s > 0.0 and now > forecast.at:
            elapsed_s = forecast.at - attempt.state.request.body_at
            expected_s = max(forecast.ttft_s - elapsed_s, 1e-6)
            learned.spread.add(forecast.kind, math.log((now - forecast.at) / expected_s))

    def observed(self, replica: Replica, now: float) -> None:
        """Take the engine's queue and batch sizes from a new scrape of the replica."""
        sample = replica.sample
        if sample is not None and sample.waiting is not None and sample.running is not None:
            self.engine(replica, now).scraped(sample.waiting, sample.running, replica.total_in_flight, now)

    def shared(self, replica: Replica, now: float) -> None:
        """Take the load of other gateways at the replica."""
        engine = self.engines.get(replica.spec.name)
        if engine is not None:
            engine.share(replica.others, replica.in_flight, replica.held_tokens, now)

    def progress(self, attempt: Attempt, tokens: int, now: float) -> None:
        """A stream has `tokens` so far. After enough steps, the replica's speed is learned from it."""
        prediction = attempt.prediction
        if prediction is None or attempt.first_at is None:
            return
        each = tokens // prediction.choices
        if prediction.teaches:
            prediction.edges = prediction.bucket.passes(each, prediction.edges)
        if each >= prediction.expects_at:
            prediction.expects_at = int(EXPECT_EVERY * each) + 1
            more = min(prediction.bucket.more(each), float(max(0, attempt.state.max_tokens - each)))
            attempt.slot.expect_more(more * prediction.choices)
        steps = each - 1
        is_lesson = prediction.teaches and steps >= prediction.lesson_at and prediction.engine.costs.has_single_steps
        if not is_lesson and (prediction.shown or steps < EARLY_STEPS):
            return
        replica, engine = attempt.replica, prediction.engine
        costs = self.of(replica.pool).costs
        engine.advance(replica.in_flight, replica.held_tokens, now)
        if is_lesson and replica.health.is_typical and (costs.step.samples < BLOCK or engine.pace.due(now)):
            prediction.learn_speed(costs, steps, now)
            replica.slowness = engine.slowness
            prediction.teach(costs, steps, now)
        if steps >= EARLY_STEPS and not prediction.shown and prediction.counts:
            prediction.show(costs, steps, now)

    def closed(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """An attempt ended."""
        prediction = attempt.prediction
        if prediction is None:
            return
        attempt.prediction = None
        engine = prediction.engine
        replica = attempt.replica
        learned, took_s = self.of(replica.pool), now - attempt.opened_at
        engine.advance(replica.in_flight, replica.held_tokens, now)
        if result.end is not AttemptOutcome.COMPLETE:
            engine.forget(attempt.id, now)
            is_told = attempt.first_at is None and attempt.state.visible and result.end not in UNREAD
            if is_told and prediction.counts and took_s > prediction.expected_s:
                prediction.ttft.add_overdue(math.log(took_s / prediction.expected_s))
            return
        engine.read(attempt.id, now)
        state = attempt.state
        tokens = result.output_tokens if result.output_tokens is not None else max(attempt.tokens, result.tokens_seen)
        each = tokens // state.request.choices
        if each < 1:
            # An answer without tokens gives no time per token. An embedding or score still gives a time to first token.
            if not result.empty and not state.visible and prediction.counts and now > attempt.opened_at:
                prediction.ttft.add(math.log(took_s / prediction.expected_s))
                learned.sampled(prediction.learn_ttft(learned.costs, attempt.slot.unread_tokens, took_s))
            return
        costs = learned.costs
        costs.stay_s += 0.02 * (took_s - costs.stay_s) if costs.stay_s else took_s
        if attempt.first_at is not None:
            decode_s = now - attempt.first_at
            costs.decode_s += 0.02 * (decode_s - costs.decode_s) if costs.decode_s else decode_s
        steps = each - 1 if attempt.first_at is not None else each
        if prediction.teaches and each < state.max_tokens:
            prediction.bucket.add(each, prediction.edges)
        elif prediction.teaches:
            prediction.bucket.passes(each, prediction.edges)
        prediction.teaches = prediction.teaches and replica.health.is_typical
        if result.tokens_seen > 0:
            is_merged = tokens > MERGED * result.tokens_seen
            costs.merged += 0.1 * ((1.0 if is_merged else 0.0) - costs.merged)
            if is_merged:
                prediction.begin_anew()
        if result.empty:
            # a broken replica that answers at once with nothing must not seem fast, so its times are not learned
            return
        if steps >= 1 and prediction.counts and engine.pace.due(now):
            prediction.learn_step(costs, steps, now)
            replica.slowness = engine.slowness
            if prediction.teaches:
                prediction.teach(costs, steps, now)
        if not prediction.teaches:
            return
        forecast = state.forecast
        if not state.visible and forecast is not None and took_s > 0.0:
            expected_s = prediction.ttft_s + forecast.tpot_s * (each - 1)
            learned.sampled(math.log(took_s / max(expected_s, 1e-6)))
        if state.was_overfilled:
            return
        if forecast is not None and attempt.first_at is not None and steps >= 1 and now > attempt.first_at:
            error = math.log((now - attempt.first_at) / steps / max(forecast.tpot_s, 1e-9))
            learned.spread.add(forecast.tpot_kind, error)

    # ---- labels

    def judged(self, state: RequestState, breached: bool) -> None:
        """Label the forecast of an admitted request: `breached` if it missed an objective. The first label stands."""
        forecast = state.forecast
        if forecast is None or forecast.judged:
            return
        forecast.judged = True
        learned = self.pools.get(forecast.pool)
        if learned is not None:  # else the pool is gone
            learned.label(state.request.tier, forecast, breached)

    def dropped(self, state: RequestState) -> None:
        """Give the forecast no label: the outcome shows nothing about it, since the client left, say."""
        if state.forecast is not None:
            state.forecast.judged = True

    # ---- reading

    def trust(self, pool: str) -> Trust:
        """The state of the forecasts of this pool."""
        return self.pools.get(pool, UNKNOWN).trust

    def view(self) -> ForecastView:
        """A copy of the learned prediction."""
        return ForecastView(
            pools=tuple(learned.view(name) for name, learned in self.pools.items()),
            speeds=tuple((name, engine.factor) for name, engine in self.engines.items()),
        )

    # ---- finding

    def of(self, pool: Pool) -> PoolLearned:
        learned = self.pools.get(pool.spec.name)
        if learned is None:
            learned = self.pools[pool.spec.name] = PoolLearned()
        return learned

    def engine(self, replica: Replica, now: float) -> ReplicaModel:
        engine = self.engines.get(replica.spec.name)
        if engine is None or engine.costs is not self.of(replica.pool).costs:
            engine = self.engines[replica.spec.name] = ReplicaModel(self.of(replica.pool).costs, now)
            engine.others = replica.others
        return engine
