"""Replica model: the unread prompts of one engine, the time integrals of its load, and its own speed.

Costs are those of the pool's typical replica (latency_model.py). The `factor` of a replica multiplies them.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.forecast.latency_model import CONTEXT, DECODES, TOKENS, LatencyModel
from gateway.core.forecast.output_length import Bucket
from gateway.core.forecast.severity import Severity
from gateway.core.stats import Pace

FIRST_STEPS: Final = 8
"""Steps of an answer before the first lesson on costs: waiting for its end may take minutes."""
SPEED_BOUND: Final = math.log(8.0)
"""A part of a card, or a throttled one, is up to eight times slower than its neighbours."""
SPEED_SPREAD: Final = 0.1
"""Differences of log-speed below this are mostly chance, and are shrunk. Larger ones stand."""
SPEED_PRIOR: Final = 4.0
"""Lessons that the prior speed counts as: a cold replica's first answers under way show its speed within seconds."""
SLOWNESS_STEPS: Final = 2.0
"""Steps of slowness to a factor of two. With four, chance made like replicas unlike: half of an overload was shed."""
SCRAPE_TAU_S: Final = 5.0
REPLICA_SAMPLES_PER_S: Final = 5.0
HEAD_SHARE: Final = 0.9
"""Largest share of a prompt that counts as read before its first token comes."""


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
        """Time per token of the replica over that of its pool."""
        self.lessons = 0.0
        """Weight of the samples of its speed."""
        self.residual = 0.0
        """Mean logarithm of its time per token over expected."""
        self.pace = Pace(REPLICA_SAMPLES_PER_S)
        self.decodes = 0
        self.context = 0
        self.decodes_s = 0.0
        self.context_s = 0.0
        self._at = now
        self.prefilled = 0.0
        """Prompt tokens of all prompts read so far."""
        self._reading: dict[int, tuple[int, float]] = {}
        """Unread prompts by attempt, oldest first: tokens, and the time at which they count as read."""
        self.unread = 0
        """Tokens of these prompts."""
        self._head_at = now
        """When the engine began to read the oldest of these."""
        self._foreign = 0.0
        """Requests in a scrape beyond our own, from other gateways."""
        self._foreign_at = now
        self._most = self._full = 0
        """Seats of the engine: the same number ran in two scrapes in a row while others waited in it.

        After a single scrape, a waiting request may just have been waiting for the next step. 0: not known.
        """

    @property
    def slowness(self) -> float:
        """`factor` in steps, for the router: replicas that are about equally fast tie."""
        return math.exp2(round(SLOWNESS_STEPS * math.log2(self.factor)) / SLOWNESS_STEPS)

    def advance(self, in_flight: int, held_tokens: int, now: float) -> None:
        """Integrate the load since its last change, and take on the present load, by our own counts."""
        passed = now - self._at
        if passed > 0.0:
            self.decodes_s += self.decodes * passed
            self.context_s += self.context * passed
            self._at = now
        self.decodes = max(0, in_flight - len(self._reading))
        self.context = max(0, held_tokens - self.unread)

    def scraped(self, waiting: int, running: int, in_flight: int, now: float) -> None:
        """A scrape gave the requests that wait and run in the engine, of which `in_flight` were ours."""
        self._foreign += 0.5 * (waiting + running - in_flight - self._foreign)
        self._foreign_at = now
        if running > self._most:
            self._most = 0
        if waiting > 0 and running == self._full:
            self._most = running
        self._full = running if waiting > 0 else 0

    def foreign(self, now: float) -> float:
        """Requests of others, discounted by the age of the scrape that saw them."""
        if self._foreign < 1.0:
            return 0.0
        return self._foreign * math.exp((self._foreign_at - now) / SCRAPE_TAU_S)

    def slot_s(self, in_flight: float) -> float:
        """Seconds that a newcomer waits inside the engine for a seat."""
        if self._most == 0 or in_flight < self._most:
            return 0.0
        return (in_flight + 1.0 - self._most) * self.costs.decode_s / self._most

    def backlog(self, now: float) -> float:
        """Unread prompt tokens ahead of a newcomer, less the part of the first prompt that is probably read."""
        unread, since = self.unread, self._head_at
        for tokens, read_by in self._reading.values():
            if read_by > now:
                done = (now - since) / (self.costs.prompt_token_s() * self.factor)
                most = HEAD_SHARE * tokens
                return unread - (done if done < most else most)
            unread -= tokens
            since = read_by
        return 0.0

    def begin(self, attempt_id: int, prompt_tokens: int, read_by: float, now: float) -> None:
        """An attempt was sent. `read_by`: when its prompt counts as read; inf if a first token will show it."""
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
        """The prompt of an attempt is read, and so are all earlier ones: engines read in order of arrival."""
        if attempt_id in self._reading:
            while self._pop(now) != attempt_id:
                pass

    def forget(self, attempt_id: int, now: float) -> None:
        """An attempt is over."""
        found = self._reading.pop(attempt_id, None)
        if found is not None:
            self.unread -= found[0]
            self._head_at = now

    def _pop(self, now: float) -> int:
        for attempt_id, (tokens, _) in self._reading.items():
            del self._reading[attempt_id]
            self.unread -= tokens
            self.prefilled += tokens
            self._head_at = now
            return attempt_id
        raise ValueError("no unread prompt is left to mark as read")


class LoadMark:
    """The time integrals of an engine's load, as they stood at the time `at`."""

    __slots__ = ("at", "context_s", "decodes_s", "prefilled")

    def __init__(self, engine: ReplicaModel, now: float) -> None:
        self.at = now
        self.decodes_s = engine.decodes_s
        self.context_s = engine.context_s
        self.prefilled = engine.prefilled + engine.unread - engine.backlog(now)


class AttemptPrediction:
    """The load that an attempt met, and the load integrals at the start of its answer."""

    __slots__ = (
        "backlog",
        "began",
        "bucket",
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
        prompt_tokens: int,
        in_flight: int,
        now: float,
    ) -> None:
        """`scores` of TTFT and ITL; `in_flight`: own requests at the replica, without this one."""
        costs = engine.costs
        self.engine = engine
        self.bucket = bucket
        self.ttft, self.itl = scores
        """The scores that it counts for. An ejection replaces them, and later samples of earlier attempts are lost."""
        self.teaches = costs.pace.due(now)
        """Whether its pool learns from it, which is decided in advance, so the selection is unbiased."""
        self.counts = True
        """Whether its replica is scored by it, and its speed learned."""
        self.expects_at = 1
        """Length of its answer at which the expected rest is updated next."""
        self.edges = 0
        """Edges of lengths that its bucket has already counted as passed."""
        self.backlog = engine.backlog(now)
        self.decodes = engine.decodes
        self.context = engine.context
        self.step_s = costs.step_s(engine.decodes, engine.context)
        foreign = engine.foreign(now)
        self.slot_s = engine.slot_s(in_flight + foreign)
        engine_s = costs.ttft_s(self.backlog, prompt_tokens, self.step_s)
        self.ttft_s = engine_s * engine.factor + self.slot_s
        self.expected_s = max(engine_s + self.slot_s, 1e-6)
        """Seconds to the first token at the pool's typical replica."""
        self.shown = False
        """Whether its speed was scored before its end."""
        self.lesson_at = FIRST_STEPS
        """Steps of its answer from which its pool learns next."""
        self.lesson_steps = 0
        """Steps of its answer that its pool has learned from."""
        self.begin(now)  # without a visible first token, the answer counts as begun now

    def begin(self, now: float) -> None:
        """The answer begins."""
        self.began = self.lesson = LoadMark(self.engine, now)

    def learn_ttft(self, costs: LatencyModel, prompt_tokens: int, seen_s: float) -> float:
        """The first token came `seen_s` (> 0) after it was sent. Returns the logarithm of seen over expected."""
        read_s = max(seen_s - self.slot_s, 0.1 * seen_s) / self.engine.factor
        costs.ttft.add(self.backlog * TOKENS, prompt_tokens * TOKENS, self.step_s, read_s, 1.0)
        return math.log(seen_s / max(self.ttft_s, 1e-6))

    def learn_step(self, costs: LatencyModel, steps: int, now: float) -> None:
        """The answer took `steps` (>= 1) steps since it began."""
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
        """The speed of its replica, from the steps since the last lesson of an answer under way."""
        fresh, span_s = steps - self.lesson_steps, now - self.lesson.at
        if fresh > 0 and span_s > 0.0:
            decodes, context, prefill = self._met(self.lesson, fresh, now)
            error = math.log(span_s / fresh / costs.typical_step_s(decodes, context, prefill))
            self._learn_speed(costs, error, _weight(fresh))

    def _learn_speed(self, costs: LatencyModel, error: float, weight: float) -> None:
        """`error`: logarithm of a step over that of the pool's typical replica."""
        engine = self.engine
        engine.lessons += weight
        costs.lessons += weight
        engine.residual += max(0.05, 1.0 / (SPEED_PRIOR + engine.lessons)) * weight * (error - engine.residual)
        costs.residual += max(0.02, 1.0 / (SPEED_PRIOR + costs.lessons)) * weight * (error - costs.residual)
        apart = engine.residual - costs.residual
        apart *= apart * apart / (apart * apart + SPEED_SPREAD * SPEED_SPREAD)
        engine.factor = math.exp(max(-SPEED_BOUND, min(SPEED_BOUND, apart)))

    def begin_anew(self) -> None:
        """Its next lesson covers the whole answer: lessons under way took events for steps."""
        self.lesson, self.lesson_steps = self.began, 0

    def teach(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Its pool learns from the steps since the last lesson, of `steps` so far.

        Lessons double in length. So a load's costs are known long before the answers under that load end.
        """
        fresh, span_s = steps - self.lesson_steps, now - self.lesson.at
        if fresh > 0 and span_s > 0.0:
            decodes, context, prefill = self._met(self.lesson, fresh, now)
            costs.learn_step(decodes, context, prefill, span_s / fresh / self.engine.factor, _weight(fresh))
        self.lesson, self.lesson_steps, self.lesson_at = LoadMark(self.engine, now), steps, 2 * steps

    def show(self, costs: LatencyModel, steps: int, now: float) -> None:
        """Score the replica by the first `steps` of an open answer, since a long answer ends much later."""
        self.shown = True
        span_s = now - self.began.at
        if span_s > 0.0:
            decodes, context, prefill = self._met(self.began, steps, now)
            self.itl.add(math.log(span_s / steps / costs.typical_step_s(decodes, context, prefill)), _weight(steps))

    def _met(self, since: LoadMark, steps: int, now: float) -> tuple[float, float, float]:
        """Mean load of its engine since then, as regressors of a step. `steps`: those of its answer meanwhile."""
        engine = self.engine
        span_s = now - since.at
        decodes = (engine.decodes_s - since.decodes_s) / span_s * DECODES
        context = (engine.context_s - since.context_s) / span_s * CONTEXT
        read = engine.prefilled + engine.unread - engine.backlog(now)
        return decodes, context, (read - since.prefilled) / steps * TOKENS


def _weight(steps: int) -> float:
    """Weight of a sample with this many steps. In a short answer one chunk of another prompt has a large effect."""
    return steps / (steps + 32.0)
