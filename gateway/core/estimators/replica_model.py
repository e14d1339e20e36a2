"""Replica model: the unread prompts of one engine, the time integrals of its load, and its own speed.

The costs are learned for the pool's typical replica (latency_model.py). The `factor` of each replica multiplies them.
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.estimators.histograms import Pace
from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.estimators.memory import Remembering
from gateway.core.sample import NO_LOAD, ReplicaLoad

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


class ReplicaModel(Remembering):
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
        "others",
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
        self.others = NO_LOAD
        """Load by requests of other gateways, as they told it."""
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
        """Running mean of the requests in scrapes that nobody told of: they come from other users of the engine."""
        self._foreign_at = now
        self._most = self._full = 0
        """`_most`: seats of the engine (requests in its batch), 0 until known. The number is known once two scrapes in
        a row show the same number of running requests while others wait.

        One scrape is not enough, because a request may wait only for the next step.
        """

    def remembered(self) -> tuple[str, ...]:
        return "factor", "lessons", "residual", "_most"

    @property
    def slowness(self) -> float:
        """`factor`, rounded to coarse steps, so that routing treats replicas of about equal speed as equal."""
        return math.exp2(round(SLOWNESS_STEPS * math.log2(self.factor)) / SLOWNESS_STEPS)

    def advance(self, in_flight: int, held_tokens: int, now: float) -> None:
        """Add the load since its last change to the time integrals. Then set the present load: our own
        counts, and what other gateways told.
        """
        passed = now - self._at
        if passed > 0.0:
            self.decodes_s += self.decodes * passed
            self.context_s += self.context * passed
            self.prefilled += self.others.prompt_tokens_per_s * passed
            self._at = now
        others = self.others
        self.decodes = max(0, in_flight - len(self._reading) + others.in_flight - others.unread_prompts)
        self.context = max(0, held_tokens - self.unread + others.held_tokens - others.unread_tokens)

    def share(self, others: ReplicaLoad, in_flight: int, held_tokens: int, now: float) -> None:
        """Set the load by other gateways from now on. `in_flight` and `held_tokens` are own counts."""
        self.advance(in_flight, held_tokens, now)
        self.others = others
        self.advance(in_flight, held_tokens, now)

    def scraped(self, waiting: int, running: int, in_flight: int, now: float) -> None:
        """Learn from a scrape how many requests wait and run in the engine. `in_flight`: how many of them this gateway
        sent, or others told.
        """
        self._foreign += 0.5 * (waiting + running - in_flight - self._foreign)
        self._foreign_at = now
        if running > self._most:
            self._most = 0
        if waiting > 0 and running == self._full:
            self._most = running
        self._full = running if waiting > 0 else 0

    def foreign(self, now: float) -> float:
        """Requests that nobody told of, discounted by the age of the last scrape."""
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

    def total_backlog(self, now: float) -> float:
        """The same with prompts of other gateways."""
        return self.backlog(now) + self.others.unread_tokens

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
