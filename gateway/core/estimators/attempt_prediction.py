"""Prediction of one attempt, compared with what was seen."""

from __future__ import annotations

import math

from gateway.core.estimators.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.estimators.output_length import Bucket
from gateway.core.estimators.replica_model import (
    FIRST_STEPS,
    SPEED_BOUND,
    SPEED_PRIOR,
    SPEED_SPREAD,
    LoadMark,
    ReplicaModel,
)
from gateway.core.estimators.severity import Severity


class AttemptPrediction:
    """The load that an attempt met, its predicted latencies, and the load integrals at the start of its answer."""

    __slots__ = (
        "backlog",
        "began",
        "bucket",
        "choices",
        "context",
        "counts",
        "decodes",
        "edges",
        "engine",
        "expected_s",
        "expects_at",
        "itl",
        "lesson",
        "lesson_at",
        "lesson_steps",
        "shown",
        "slot_s",
        "step_s",
        "teaches",
        "ttft",
        "ttft_s",
    )

    def __init__(
        self,
        engine: ReplicaModel,
        bucket: Bucket,
        scores: tuple[Severity, Severity],
        choices: int,
        prompt_tokens: int,
        in_flight: int,
        now: float,
    ) -> None:
        """`scores`: severities of TTFT and ITL. `in_flight`: known requests at the replica, without this one."""
        costs = engine.costs
        self.engine = engine
        self.bucket = bucket
        self.choices = choices
        """Number of choices of the request. It is kept here too, so that a report of progress need not read the
        request.
        """
        self.ttft, self.itl = scores
        """Outlier scores that this attempt adds to. An ejection gives the replica new scores, so later samples of this
        attempt do not count there.
        """
        self.teaches = costs.pace.due(now)
        """Whether the pool learns from this attempt. The choice is made before the outcome is known, so the sample is
        unbiased.
        """
        self.counts = True
        """Whether the replica's outlier scores and speed are updated by this attempt."""
        self.expects_at = 1
        """The expected rest of the answer is next updated when the answer has this many tokens."""
        self.edges = 0
        """Number of length edges that the bucket has already counted as passed by the answer."""
        backlog = engine.backlog(now)
        self.backlog = backlog + engine.others.unread_tokens
        self.decodes = engine.decodes
        self.context = engine.context
        self.step_s = costs.step_s(engine.decodes, engine.context)
        foreign = engine.foreign(now)
        self.slot_s = engine.slot_s(in_flight + foreign)
        engine_s = costs.ttft_s(self.backlog, prompt_tokens, self.step_s)
        self.ttft_s = engine_s * engine.factor + self.slot_s
        self.expected_s = max(engine_s + self.slot_s, 1e-6)
        """Expected seconds to the first token at the pool's typical replica."""
        self.shown = False
        """Whether the answer was scored before its end."""
        self.lesson_at = FIRST_STEPS
        """Number of steps at which the pool next learns from the answer."""
        self.lesson_steps = 0
        """Number of steps that the pool has already learned from."""
        self.began = self.lesson = LoadMark(engine, backlog, now)  # a visible first token marks another start

    def teach_nothing(self) -> None:
        """Leave the attempt out of all that is learned, because its times are not those of the replica."""
        self.teaches = self.counts = False

    def begin(self, now: float) -> None:
        """Mark now as the start of the answer."""
        self.began = self.lesson = LoadMark(self.engine, self.engine.backlog(now), now)

    def learn_ttft(self, costs: LatencyModel, prompt_tokens: int, seen_s: float) -> float:
        """Learn that the first token came `seen_s` (> 0) seconds after sent. Returns log(seen / predicted)."""
        read_s = max(seen_s - self.slot_s, 0.1 * seen_s) / self.engine.factor
        costs.ttft.add(self.backlog * TOKENS, prompt_tokens * TOKENS, self.step_s, read_s, 1.0)
        return math.log(seen_s / max(self.ttft_s, 1e-6))

    def learn_step(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Score the replica and learn its speed from a whole answer of `steps` (>= 1) steps."""
        span_s = now - self.began.at
        if span_s <= 0.0:
            return
        decodes, context, prefill = self._met(self.began, steps, now)
        seen_s = span_s / steps
        error = math.log(seen_s / costs.typical_step_s(decodes, context, prefill))
        weight = _weight(steps)
        self.itl.add(error, weight)
        self._learn_speed(costs, error, weight)

    def learn_speed(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Learn the replica's speed from an answer under way, by the steps since the last lesson."""
        fresh, span_s = steps - self.lesson_steps, now - self.lesson.at
        if fresh > 0 and span_s > 0.0:
            decodes, context, prefill = self._met(self.lesson, fresh, now)
            error = math.log(span_s / fresh / costs.typical_step_s(decodes, context, prefill))
            self._learn_speed(costs, error, _weight(fresh))

    def _learn_speed(self, costs: LatencyModel, error: float, weight: float) -> None:
        """`error`: log(step / step of the pool's typical replica)."""
        engine = self.engine
        engine.lessons += weight
        costs.lessons += weight
        engine.residual += max(0.05, 1.0 / (SPEED_PRIOR + engine.lessons)) * weight * (error - engine.residual)
        costs.residual += max(0.02, 1.0 / (SPEED_PRIOR + costs.lessons)) * weight * (error - costs.residual)
        apart = engine.residual - costs.residual
        apart *= apart * apart / (apart * apart + SPEED_SPREAD * SPEED_SPREAD)
        engine.factor = math.exp(max(-SPEED_BOUND, min(SPEED_BOUND, apart)))

    def begin_anew(self) -> None:
        """Let the next lesson cover the whole answer. Earlier lessons were wrong, because they counted each event as
        one step.
        """
        self.lesson, self.lesson_steps = self.began, 0

    def teach(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Let the pool learn from the steps since the last lesson. `steps`: steps of the answer so far.

        Each lesson is twice as long as the one before. So the costs under a load are known long before its answers end.
        """
        fresh, span_s = steps - self.lesson_steps, now - self.lesson.at
        if fresh > 0 and span_s > 0.0:
            decodes, context, prefill = self._met(self.lesson, fresh, now)
            costs.learn_step(decodes, context, prefill, span_s / fresh / self.engine.factor, _weight(fresh))
        mark = LoadMark(self.engine, self.engine.backlog(now), now)
        self.lesson, self.lesson_steps, self.lesson_at = mark, steps, 2 * steps

    def show(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Score the replica by the first `steps` of an answer under way, because a long answer ends much later."""
        self.shown = True
        span_s = now - self.began.at
        if span_s > 0.0:
            decodes, context, prefill = self._met(self.began, steps, now)
            self.itl.add(math.log(span_s / steps / costs.typical_step_s(decodes, context, prefill)), _weight(steps))

    def _met(self, since: LoadMark, steps: int, now: float) -> tuple[float, float, float]:
        """Mean load of the engine since `since`, in units of the latency model: decodes, context, prompt tokens per
        step.

        `steps`: steps of the answer in that time.
        """
        engine = self.engine
        span_s = now - since.at
        decodes = (engine.decodes_s - since.decodes_s) / span_s * DECODES
        context = (engine.context_s - since.context_s) / span_s * CONTEXT
        read = engine.prefilled + engine.unread - engine.backlog(now)
        return decodes, context, (read - since.prefilled) / steps * TOKENS


def _weight(steps: int) -> float:
    """Weight (0-1) of a sample with this many steps. In a short answer, one chunk of another prompt has a large
    effect.
    """
    return steps / (steps + 32.0)
