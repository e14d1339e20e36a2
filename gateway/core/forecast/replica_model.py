"""Replica model: the unread prompts of one engine, the time integrals of its load, and its own speed.

The costs are learned for the pool's typical replica (latency_model.py). The `factor` of each replica multiplies them.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.forecast.output_length import Bucket
from gateway.core.forecast.severity import Severity
from gateway.core.stats import Pace

FIRST_STEPS: Final = 8
"""The pool first learns from an answer under way after this many steps, because its end may be minutes away."""
SPEED_BOUND: Final = math.log(8.0)
"""Learned log-speeds are clamped to this. A part of a GPU, or a throttled GPU, is up to eight times slower than other
GPUs.
"""
SPEED_SPREAD: Final = 0.1
"""Log-speed differences below this are mostly chance, and are shrunk towards 0. Larger differences are kept."""
SPEED_PRIOR: Final = 4.0
"""The prior speed counts as this many samples. The number is small, so that a cold replica's speed is known after
seconds.
"""
SLOWNESS_STEPS: Final = 2.0
"""Slowness is rounded to this many steps per factor of two. With four steps, equal replicas differed by chance, and
half of the requests of an overload were shed.
"""
SCRAPE_TAU_S: Final = 5.0
REPLICA_SAMPLES_PER_S: Final = 5.0
HEAD_SHARE: Final = 0.9
"""At most this share of a prompt counts as read before the first token of its answer."""


class ReplicaModel:
    """Learned speed of one replica, its unread prompts, and the time integrals of its load."""

    __slots__ = (
        "_at",
        "_foreign",
        "_foreign_at",
        "_full",
        "_head_at",
        "_most",
        "_reading",
        "context",
        "context_s",
        "costs",
        "decodes",
        "decodes_s",
        "factor",
        "lessons",
        "pace",
        "prefilled",
        "residual",
        "unread",
    )

    def __init__(self, costs: LatencyModel, now: float) -> None:
        self.costs = costs
        self.factor = 1.0
        """Time per token of this replica divided by that of its pool's typical replica."""
        self.lessons = 0.0
        """Total weight of the samples in `residual`."""
        self.residual = 0.0
        """Mean log(time per token / time expected at the pool's typical replica)."""
        self.pace = Pace(REPLICA_SAMPLES_PER_S)
        self.decodes = 0
        self.context = 0
        self.decodes_s = 0.0
        self.context_s = 0.0
        self._at = now
        self.prefilled = 0.0
        """Sum of the tokens of all prompts that the engine has read."""
        self._reading: dict[int, tuple[int, float]] = {}
        """Unread prompts by attempt id, oldest first: (tokens, time at which the prompt counts as read)."""
        self.unread = 0
        """Sum of the tokens in `_reading`."""
        self._head_at = now
        """Time at which the engine began to read the oldest unread prompt."""
        self._foreign = 0.0
        """Running mean of the requests in scrapes that this gateway did not send: they come from other gateways."""
        self._foreign_at = now
        self._most = self._full = 0
        """`_most`: seats of the engine (requests in its batch), 0 until known. The number is known once two scrapes in
        a row show the same number of running requests while others wait.

        One scrape is not enough, because a request may wait only for the next step.
        """

    @property
    def slowness(self) -> float:
        """`factor`, rounded to coarse steps, so that routing treats replicas of about equal speed as equal."""
        return math.exp2(round(SLOWNESS_STEPS * math.log2(self.factor)) / SLOWNESS_STEPS)

    def advance(self, in_flight: int, held_tokens: int, now: float) -> None:
        """Add the load since its last change to the time integrals. Then set the present load from our own counts."""
        passed = now - self._at
        if passed > 0.0:
            self.decodes_s += self.decodes * passed
            self.context_s += self.context * passed
            self._at = now
        self.decodes = max(0, in_flight - len(self._reading))
        self.context = max(0, held_tokens - self.unread)

    def scraped(self, waiting: int, running: int, in_flight: int, now: float) -> None:
        """Learn from a scrape how many requests wait and run in the engine. `in_flight`: how many of them this gateway
        sent.
        """
        self._foreign += 0.5 * (waiting + running - in_flight - self._foreign)
        self._foreign_at = now
        if running > self._most:
            self._most = 0
        if waiting > 0 and running == self._full:
            self._most = running
        self._full = running if waiting > 0 else 0

    def foreign(self, now: float) -> float:
        """Requests of other gateways, discounted by the age of the last scrape."""
        if self._foreign < 1.0:
            return 0.0
        return self._foreign * math.exp((self._foreign_at - now) / SCRAPE_TAU_S)

    def slot_s(self, in_flight: float) -> float:
        """Expected seconds that a new request waits inside the engine for a seat in the batch."""
        if self._most == 0 or in_flight < self._most:
            return 0.0
        return (in_flight + 1.0 - self._most) * self.costs.decode_s / self._most

    def backlog(self, now: float) -> float:
        """Unread prompt tokens ahead of a new request. The estimated part of the oldest prompt that is already read is
        subtracted.
        """
        unread, since = self.unread, self._head_at
        for tokens, read_by in self._reading.values():
            if read_by > now:
                return unread - self._done(tokens, now - since)
            unread -= tokens
            since = read_by
        return 0.0

    def left_of(self, attempt_id: int, now: float) -> float:
        """Tokens of the prompt of an attempt that the engine has not read yet, by the same estimate as `backlog`."""
        since = self._head_at
        for other, (tokens, read_by) in self._reading.items():
            if read_by > now:
                return tokens - self._done(tokens, now - since) if other == attempt_id else self._whole(attempt_id)
            if other == attempt_id:
                return 0.0
            since = read_by
        return 0.0

    def _whole(self, attempt_id: int) -> int:
        found = self._reading.get(attempt_id)
        return 0 if found is None else found[0]

    def _done(self, tokens: int, seconds: float) -> float:
        """Tokens read in `seconds` of the oldest unread prompt, which has `tokens`."""
        done = seconds / (self.costs.prompt_token_s() * self.factor)
        most = HEAD_SHARE * tokens
        return done if done < most else most

    def begin(self, attempt_id: int, prompt_tokens: int, read_by: float, now: float) -> None:
        """Add the prompt of an attempt that was sent. `read_by`: time at which the prompt counts as read; inf if the
        first token will show that it is read.
        """
        due = []
        for _, until in self._reading.values():
            if until > now:
                break
            due.append(until)
        for until in due:
            self._pop(until)
        if not self._reading:
            self._head_at = now
        self._reading[attempt_id] = (prompt_tokens, read_by)
        self.unread += prompt_tokens

    def read(self, attempt_id: int, now: float) -> None:
        """Mark the prompt of an attempt, and all earlier prompts, as read: engines read in order of arrival."""
        if attempt_id in self._reading:
            while self._pop(now) != attempt_id:
                pass

    def forget(self, attempt_id: int, now: float) -> None:
        """Drop the prompt of an attempt that ended without a complete answer."""
        found = self._reading.get(attempt_id)
        if found is not None:
            if next(iter(self._reading)) == attempt_id:
                self._head_at = now
            del self._reading[attempt_id]
            self.unread -= found[0]

    def _pop(self, now: float) -> int:
        for attempt_id, (tokens, _) in self._reading.items():
            del self._reading[attempt_id]
            self.unread -= tokens
            self.prefilled += tokens
            self._head_at = now
            return attempt_id
        raise ValueError("no unread prompt is left to mark as read")


class LoadMark:
    """The values of an engine's load integrals at the time `at`."""

    __slots__ = ("at", "context_s", "decodes_s", "prefilled")

    def __init__(self, engine: ReplicaModel, backlog: float, now: float) -> None:
        """`backlog`: that of the engine at `now`."""
        self.at = now
        self.decodes_s = engine.decodes_s
        self.context_s = engine.context_s
        self.prefilled = engine.prefilled + engine.unread - backlog


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
        """`scores`: severities of TTFT and ITL. `in_flight`: our requests at the replica, without this one."""
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
        self.backlog = engine.backlog(now)
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
        self.began = self.lesson = LoadMark(engine, self.backlog, now)  # a visible first token marks another start

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
