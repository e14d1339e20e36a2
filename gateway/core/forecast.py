"""What would become of a request if it were admitted now: its latencies, and the probability that they are too long.

    TTFT  = elapsed + wait in the gateway + speed x (t0 + t1 W + t2 p + t3 S)
    S     = c0 + c1 decodes + c2 context tokens             an engine's step without prompts
    TPOT  = speed x S / (1 - u),   u = c3 x prompt tokens per second that the replica is sent
    e2e   = TTFT + TPOT x (output tokens - 1)

W: prompt tokens sent whose request has no first token yet; p: the request's own. The coefficients t (per pool) are
learned from first tokens, c from finished answers: what a decode took per token, against the prompts that the engine
read meanwhile, since chunks of them share its steps. `speed` (per replica) is learned from decodes alone: learned from
TTFT it herds requests.

A metric's raw probability of being over its bound is that of a log-normal around the mean; e2e's is that of the output
length being too long for the time that is left. A logistic regression on top of it (calibrate.py) makes it honest.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.calibrate import Logistic, Scores, logistic
from gateway.core.learned import ForecastView, PoolFacts
from gateway.core.lengths import Bucket, Lengths
from gateway.core.model import End, Finish
from gateway.core.regress import NonNegative
from gateway.core.trust import COLD_LABELS, COLD_SAMPLES, PageHinkley, Trust

if TYPE_CHECKING:
    from gateway.core.ledger import Attempt, Live
    from gateway.core.pools import PoolNow, Replica

# Before anything is known, on the slow side: a small model on one card. The features' units are below.
TTFT_PRIOR = (0.05, 0.15, 0.15, 1.5)
STEP_PRIOR = (0.02, 0.15, 0.3, 0.01)
TOKENS = 1e-3
"""Prompt tokens are counted in thousands,"""
DECODES = 1e-3
"""decoding sequences too,"""
CONTEXT = 1e-5
"""and context in hundreds of thousands, so that coefficients are of one size."""
COLD_OFFSET = 0.5
"""Added to the logarithm of a latency (x 1.65) until COLD_SAMPLES were seen."""
SPEED_BOUND = math.log(2.0)
RATE_TAU_S = 5.0
MAX_LOGIT = 8.0
PROBIT = 1.702
"""The normal distribution function is about logistic(1.702 z)."""


@dataclass(slots=True)
class Ahead:
    """What stands before a request that would have to wait."""

    requests: int = 0
    """Waiting, of its own tier and above,"""
    tokens: int = 0
    """and their prompt tokens."""
    own: int = 0
    """Of these, those of its own tier,"""
    own_tokens: int = 0
    """and their prompt tokens."""
    higher_share: float = 0.0
    """Share (0-1) of what is dispatched while there is a backlog that higher tiers take."""
    floor: float = 0.0
    """Share (0-1) of service that its tier is guaranteed."""
    slots_free: bool = False


NOTHING_AHEAD = Ahead()


@dataclass(slots=True)
class Forecast:
    """Of one request, if it were admitted now. Seconds, none infinite."""

    wait_s: float
    """In the gateway, from now."""
    ttft_s: float
    """From body complete, what has passed included."""
    tpot_s: float
    e2e_s: float
    breach: float
    """P(not good | admitted), 0-1."""
    raw: float
    """The same before calibration."""
    features: list[float]
    """What `breach` was calibrated from."""
    pool: str
    judged: bool = False


class Facts:
    """What was learned of one pool."""

    __slots__ = (
        "drift",
        "logistic",
        "queued_backlog",
        "queued_context",
        "queued_decodes",
        "raw_scores",
        "scores",
        "service_s",
        "spread",
        "step",
        "tier_offsets",
        "ttft",
        "widen",
    )

    def __init__(self) -> None:
        self.ttft = NonNegative(TTFT_PRIOR)
        self.step = NonNegative(STEP_PRIOR)
        self.service_s = 0.0
        """Mean time from dispatch to end."""
        self.queued_backlog = 0.0
        self.queued_decodes = 0.0
        self.queued_context = 0.0
        """The load that requests which had to wait met at their replica."""
        self.spread = Spread()
        self.logistic = Logistic((0.0, 1.0, 0.0, 0.0, 0.0))
        self.tier_offsets: dict[str, float] = {}
        self.scores = Scores()
        self.raw_scores = Scores()
        self.drift = PageHinkley()
        self.widen = 0.0
        """Log-offset after an alarm, fading with every sample."""


class Spread:
    """How far latencies lie around their forecasts: standard deviations of the logarithm."""

    __slots__ = ("_squares", "_weights")

    def __init__(self) -> None:
        self._squares = [0.09] * 12
        self._weights = [1.0] * 12

    def read(self, kind: int) -> float:
        """Of kind 0 (TPOT), 1 (TTFT without a wait), 2 + log2 of the requests ahead (TTFT with one)."""
        return math.sqrt(self._squares[kind] / self._weights[kind]) + 0.02

    def add(self, kind: int, error: float) -> None:
        """A latency came out at exp(error) times its forecast."""
        error = max(-3.0, min(3.0, error))
        self._squares[kind] = self._squares[kind] * 0.995 + error * error
        self._weights[kind] = self._weights[kind] * 0.995 + 1.0


class EngineFacts:
    """What was learned of one replica, and the time integrals of its load."""

    __slots__ = (
        "at",
        "context",
        "context_s",
        "decodes",
        "decodes_s",
        "head_at",
        "prefilled",
        "rate",
        "reading",
        "speed",
    )

    def __init__(self, now: float) -> None:
        self.at = now
        self.decodes = 0
        self.context = 0
        self.decodes_s = 0.0
        self.context_s = 0.0
        self.prefilled = 0
        """Prompt tokens read so far."""
        self.rate = 0.0
        """Prompt tokens per second that it is sent, exponentially forgotten."""
        self.reading: dict[int, int] = {}
        """Prompt tokens of attempts that have no first token yet, oldest first."""
        self.head_at = now
        """When the engine turned to the oldest of these."""
        self.speed = 0.0
        """Logarithm of its time per token over its pool's; 0 is like the others."""

    def advance(self, replica: Replica, now: float) -> None:
        """Account for the time since the last change of its load, and take on the load it has now."""
        passed = now - self.at
        if passed > 0.0:
            self.decodes_s += self.decodes * passed
            self.context_s += self.context * passed
            self.rate *= math.exp(-passed / RATE_TAU_S)
            self.at = now
        self.decodes = max(0, replica.in_flight - len(self.reading))
        self.context = replica.held_tokens - replica.unprefilled_tokens


class AttemptFacts:
    """The load that an attempt met, kept until it ends."""

    __slots__ = ("bucket", "context_s", "decodes_s", "engine", "features", "prefilled", "ttft_s")

    def __init__(self, engine: EngineFacts, bucket: Bucket, features: tuple[float, float, float, float]) -> None:
        self.engine = engine
        self.bucket = bucket
        self.features = features
        self.ttft_s = 0.0
        """The engine's, as it was forecast at dispatch."""
        self.decodes_s = 0.0
        self.context_s = 0.0
        self.prefilled = 0


class Forecaster:
    """One per controller. What it learns is keyed by pool, replica and route, and outlives reloads."""

    def __init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._engines: dict[str, EngineFacts] = {}
        self._lengths = Lengths()
        self._due: dict[str, deque[tuple[float, Live, Forecast]]] = {}

    # ---- the forecast

    def forecast(self, live: Live, pool: PoolNow, replica: Replica | None, ahead: Ahead, now: float) -> Forecast:
        """Of `live`, sent to `replica` now; None: it would wait in the gateway, behind `ahead`."""
        ask = live.ask
        slo = ask.tier.slo
        facts = self._of(pool)
        self._mature(now)
        wait_s = 0.0
        speed = 1.0
        if replica is not None:
            engine = self._engine(replica, now)
            backlog = self._backlog(engine, facts, replica.unprefilled_tokens, now)
            decodes, context = float(engine.decodes), float(engine.context)
            rate = engine.rate
            speed = math.exp(engine.speed)
        else:
            wait_s = self._wait_s(facts, pool, ahead)
            backlog, decodes, context = facts.queued_backlog, facts.queued_decodes, facts.queued_context
            rate = self._rate(pool)
        offset = facts.widen + (COLD_OFFSET if facts.ttft.samples < COLD_SAMPLES else 0.0)
        step = facts.step.coefficients
        step_s = step[0] + step[1] * decodes * DECODES + step[2] * context * CONTEXT
        t = facts.ttft.coefficients
        engine_s = t[0] + t[1] * backlog * TOKENS + t[2] * live.prompt_tokens * TOKENS + t[3] * step_s
        scale = speed * math.exp(offset)
        elapsed_s = now - ask.body_at
        more_s = wait_s + scale * engine_s
        tpot_s = scale * step_s / (1.0 - min(0.8, step[3] * TOKENS * rate))
        bucket = self._lengths.bucket(ask.model.name, ask.tier.name, live.prompt_tokens)
        cap = live.max_tokens
        output = min(bucket.quantile(0.5), cap)
        e2e_s = elapsed_s + more_s + tpot_s * max(0.0, output - 1.0)

        queued = 0.0 if replica is not None else 1.0
        kind = 1 if replica is not None else min(11, 2 + (ahead.requests + 1).bit_length())
        good = 1.0
        if ask.stream:
            if slo.ttft_bound_s < math.inf:
                good *= 1.0 - _over(more_s, slo.ttft_bound_s - elapsed_s, facts.spread.read(kind))
            if slo.tpot_bound_s < math.inf:
                good *= 1.0 - _over(tpot_s, slo.tpot_bound_s, facts.spread.read(0))
        if slo.e2e_bound_s < math.inf:
            left_s = slo.e2e_bound_s - elapsed_s - more_s
            good *= 1.0 - self._too_long(bucket, left_s, tpot_s, cap, slo.e2e_up_to_tokens)
        raw = 1.0 - good
        logit = _logit(raw)
        features = [1.0, logit, max(0.0, logit), queued * math.log1p(ahead.requests), ahead.higher_share]
        offset_of_tier = facts.tier_offsets.get(ask.tier.name, 0.0)
        breach = _shifted(facts.logistic.read(features), offset_of_tier)
        return Forecast(wait_s, elapsed_s + more_s, tpot_s, e2e_s, breach, raw, features, pool.spec.name)

    def expected_output(self, live: Live) -> float:
        """Tokens that the answer is likely to have (P50), of all choices together."""
        return self._output(live, 0.5)

    def kv_output(self, live: Live) -> float:
        """Tokens to keep KV cache for (P90), of all choices together."""
        return self._output(live, 0.9)

    def _output(self, live: Live, quantile: float) -> float:
        ask = live.ask
        bucket = self._lengths.bucket(ask.model.name, ask.tier.name, live.prompt_tokens)
        return min(bucket.quantile(quantile), float(live.max_tokens)) * ask.choices

    def _backlog(self, engine: EngineFacts, facts: Facts, unprefilled: int, now: float) -> float:
        """Prompt tokens before a newcomer, less what the engine has done of the first of them since it began."""
        if not engine.reading:
            return 0.0
        head = next(iter(engine.reading.values()))
        done = (now - engine.head_at) / (max(facts.ttft.coefficients[2], 1e-3) * TOKENS)
        return max(0.0, unprefilled - min(done, 0.9 * head))

    def _wait_s(self, facts: Facts, pool: PoolNow, ahead: Ahead) -> float:
        """By the rate at which the pool drains while it has a backlog; by Little's law before it ever had one."""
        rate = pool.drain.per_s
        if rate is None:
            rate = max(1, pool.in_flight) / facts.service_s if facts.service_s else 1.0
        strict_s = (ahead.requests + 1) / rate / (1.0 - min(0.9, ahead.higher_share))
        if ahead.floor > 0.0:
            return min(strict_s, (ahead.own + 1) / (ahead.floor * rate))
        return strict_s

    def _rate(self, pool: PoolNow) -> float:
        """Prompt tokens per second and replica."""
        total = 0.0
        known = 0
        for name in pool.replicas:
            engine = self._engines.get(name)
            if engine is not None:
                total += engine.rate
                known += 1
        return total / known if known else 0.0

    @staticmethod
    def _too_long(bucket: Bucket, left_s: float, tpot_s: float, cap: int, up_to: int | None) -> float:
        """P(the answer takes more than `left_s`), of answers that the objective counts."""
        if left_s <= 0.0:
            return 1.0
        tokens = left_s / tpot_s + 1.0
        if tokens >= cap:
            return 0.0
        over = bucket.exceeds(tokens)
        return over if up_to is None else max(0.0, over - bucket.exceeds(float(up_to)))

    # ---- what happened: called after the counts of pool and replica have changed

    def opened(self, attempt: Attempt, now: float) -> None:
        """An attempt was dispatched."""
        live, replica = attempt.live, attempt.replica
        facts = self._of(replica.pool)
        engine = self._engine(replica, now)
        backlog = self._backlog(engine, facts, replica.unprefilled_tokens - attempt.prompt_tokens, now)
        if not engine.reading:
            engine.head_at = now
        decodes, context = engine.decodes, engine.context
        engine.reading[attempt.id] = attempt.prompt_tokens
        engine.advance(replica, now)
        engine.rate += attempt.prompt_tokens / RATE_TAU_S
        if now > live.ask.body_at:
            facts.queued_backlog += 0.05 * (backlog - facts.queued_backlog)
            facts.queued_decodes += 0.05 * (decodes - facts.queued_decodes)
            facts.queued_context += 0.05 * (context - facts.queued_context)
        step = facts.step.coefficients
        step_s = step[0] + step[1] * decodes * DECODES + step[2] * context * CONTEXT
        features = (1.0, backlog * TOKENS, attempt.prompt_tokens * TOKENS, step_s)
        bucket = self._lengths.bucket(live.ask.model.name, live.ask.tier.name, live.prompt_tokens)
        attempt.facts = known = AttemptFacts(engine, bucket, features)
        known.ttft_s = facts.ttft.predict(features)

    def first_token(self, attempt: Attempt, now: float) -> None:
        """An attempt has shown its first token."""
        known = attempt.facts
        if known is None:
            return
        replica, engine = attempt.replica, known.engine
        facts = self._of(replica.pool)
        self._read(engine, attempt, now)
        engine.prefilled += attempt.prompt_tokens
        engine.advance(replica, now)
        known.decodes_s, known.context_s, known.prefilled = engine.decodes_s, engine.context_s, engine.prefilled
        seen_s = now - attempt.opened_at
        if seen_s > 0.0 and attempt.live.ask.stream:
            facts.ttft.add(known.features, seen_s / math.exp(engine.speed))
            error = math.log(seen_s / max(known.ttft_s, 1e-6)) - engine.speed
            facts.spread.add(1, error)
            self._watch_drift(facts, error)

    def progress(self, attempt: Attempt, tokens: int, now: float) -> None:
        """An attempt has shown `tokens` so far."""
        if attempt.facts is not None:
            attempt.facts.engine.advance(attempt.replica, now)

    def closed(self, attempt: Attempt, finish: Finish, now: float) -> None:
        """An attempt ended."""
        known = attempt.facts
        if known is None:
            return
        attempt.facts = None
        engine, replica = known.engine, attempt.replica
        if attempt.first_at is None:
            self._read(engine, attempt, now)
        engine.advance(replica, now)
        tokens = finish.output_tokens if finish.output_tokens is not None else max(attempt.tokens, finish.tokens_seen)
        live = attempt.live
        if finish.end is not End.COMPLETE or tokens < 1:
            return
        facts = self._of(replica.pool)
        each = max(1, tokens // live.ask.choices)
        self._lengths.learn(live.ask.model.name, live.ask.tier.name, attempt.prompt_tokens, each)
        took_s = now - attempt.opened_at
        facts.service_s += (took_s - facts.service_s) * 0.02 if facts.service_s else took_s
        if attempt.first_at is not None and each > 1 and now > attempt.first_at:
            self._learn_step(facts, engine, known, (now - attempt.first_at) / (each - 1), each, now - attempt.first_at)

    def _learn_step(
        self, facts: Facts, engine: EngineFacts, known: AttemptFacts, gap_s: float, tokens: int, span_s: float
    ) -> None:
        """What a token took, against the mean load of the time in which it was made."""
        features = (
            1.0,
            (engine.decodes_s - known.decodes_s) / span_s * DECODES,
            (engine.context_s - known.context_s) / span_s * CONTEXT,
            (engine.prefilled - known.prefilled) / (tokens - 1) * TOKENS,
        )
        error = math.log(gap_s / max(facts.step.predict(features), 1e-9))
        weight = tokens / (tokens + 16.0)
        engine.speed = max(-SPEED_BOUND, min(SPEED_BOUND, engine.speed + 0.05 * weight * (error - engine.speed)))
        facts.step.add(features, gap_s / math.exp(engine.speed), weight)

    def _read(self, engine: EngineFacts, attempt: Attempt, now: float) -> None:
        """The engine has done with the prompt of an attempt."""
        if attempt.id in engine.reading:
            del engine.reading[attempt.id]
            engine.head_at = now

    def _watch_drift(self, facts: Facts, error: float) -> None:
        facts.widen *= 0.97
        if facts.ttft.samples > COLD_SAMPLES and facts.drift.add(error):
            facts.ttft.halve()
            facts.step.halve()
            facts.widen = COLD_OFFSET

    # ---- labels

    def watch(self, live: Live, now: float) -> None:
        """`live` was admitted on `live.forecast`: what becomes of it is a label."""
        forecast = live.forecast
        if forecast is None or not live.ask.stream:
            return
        bound_s = live.ask.tier.slo.ttft_bound_s
        if bound_s < math.inf:
            due = self._due.setdefault(live.ask.tier.name, deque())
            due.append((live.ask.body_at + bound_s, live, forecast))

    def judged(self, live: Live, breached: bool, now: float, weight: float = 1.0) -> None:
        """Whether an admitted request missed an objective. The first judgement of a forecast stands."""
        forecast = live.forecast
        if forecast is not None:
            self._judge(live, forecast, breached, weight)

    def dropped(self, live: Live) -> None:
        """Nobody will know: the client left, or a replica failed."""
        if live.forecast is not None:
            live.forecast.judged = True

    def _judge(self, live: Live, forecast: Forecast, breached: bool, weight: float = 1.0) -> None:
        if forecast.judged:
            return
        forecast.judged = True
        facts = self._facts[forecast.pool]
        facts.scores.add(forecast.breach, breached)
        facts.raw_scores.add(forecast.raw, breached)
        tier = live.ask.tier.name
        offset = facts.tier_offsets.get(tier, 0.0)
        p = _shifted(facts.logistic.read(forecast.features), offset)
        offset += 0.02 * ((1.0 if breached else 0.0) - p)
        facts.tier_offsets[tier] = max(-2.0, min(2.0, offset))
        facts.logistic.add(forecast.features, breached, weight)

    def _mature(self, now: float) -> None:
        """A bound that has passed without a first token is a breach."""
        for due in self._due.values():
            while due and due[0][0] <= now:
                _, live, forecast = due.popleft()
                if live.first_at is None:
                    self._judge(live, forecast, True)

    # ---- reading

    def trust(self, pool: str) -> Trust:
        """Whether forecasts for this pool may be acted upon."""
        facts = self._facts.get(pool)
        if facts is None or facts.ttft.samples < COLD_SAMPLES or facts.logistic.labels < COLD_LABELS:
            return Trust.COLD
        return Trust.DRIFTED if facts.widen > 0.1 else Trust.TRUSTED

    def view(self, now: float) -> ForecastView:
        """A copy of what was learned."""
        return ForecastView(
            pools=tuple(
                PoolFacts(
                    pool=name,
                    trust=self.trust(name),
                    ttft_coefficients=tuple(facts.ttft.coefficients),
                    step_coefficients=tuple(facts.step.coefficients),
                    samples=facts.ttft.samples,
                    labels=facts.logistic.labels,
                    drift_alarms=facts.drift.alarms,
                    reliability=facts.scores.read(),
                    uncalibrated=facts.raw_scores.read(),
                )
                for name, facts in self._facts.items()
            ),
            speeds=tuple((name, math.exp(engine.speed)) for name, engine in self._engines.items()),
        )

    # ---- finding

    def _of(self, pool: PoolNow) -> Facts:
        facts = self._facts.get(pool.spec.name)
        if facts is None:
            facts = self._facts[pool.spec.name] = Facts()
        return facts

    def _engine(self, replica: Replica, now: float) -> EngineFacts:
        engine = self._engines.get(replica.spec.name)
        if engine is None:
            engine = self._engines[replica.spec.name] = EngineFacts(now)
        return engine


def _over(expected_s: float, bound_s: float, spread: float) -> float:
    """P(a latency is over `bound_s`), log-normal around `expected_s`."""
    if bound_s <= 0.0:
        return 1.0
    return logistic(PROBIT * math.log(max(expected_s, 1e-6) / bound_s) / spread)


def _logit(p: float) -> float:
    if p <= 0.0:
        return -MAX_LOGIT
    if p >= 1.0:
        return MAX_LOGIT
    return max(-MAX_LOGIT, min(MAX_LOGIT, math.log(p / (1.0 - p))))


def _shifted(p: float, offset: float) -> float:
    """`p` with its logit moved by `offset`."""
    return p if offset == 0.0 else logistic(_logit(p) + offset)
