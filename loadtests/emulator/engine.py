"""The replica model in real time: one timer, and a callback per token and per end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.sim.engine.profiles import Profile
from gateway.sim.engine.replica import SimulatedReplica
from gateway.sim.engine.sequences import EngineRequest, ReplicaEvent, ReplicaEventKind
from loadtests.emulator.metrics import E2E_BUCKETS, TTFT_BUCKETS, Histogram

STEPS_PER_TURN = 64
TIMER_S = 0.001  # uvloop rounds delays to milliseconds: with shorter ones it would spin


@dataclass(frozen=True, slots=True)
class Sequence:
    """One answer to be generated. `on_end` is called after the last token."""

    prompt_tokens: int
    output_tokens: int
    on_token: Callable[[], None] | None
    on_end: Callable[[int], None]
    """Called with the number of prompt tokens that were found in the prefix cache."""
    prefix: tuple[int, ...] = ()
    """Hashes of the whole blocks of its prompt."""
    answer: tuple[int, ...] = ()
    """Hashes of the blocks that its answer fills."""


class Engine:
    """Generates answers in virtual time, which runs `time_scale` times as fast as real time; inf: as fast as the event
    loop turns.

    While anybody listens to tokens, time advances step by step; otherwise the model leaps ahead. A late call counts as
    made just before the model's next event, so no event is skipped.
    """

    def __init__(self, profile: Profile, time_scale: float = 1.0) -> None:
        if not time_scale > 0:
            raise ValueError("time_scale must be above 0")
        self.model = SimulatedReplica(profile, profile.kv_block_tokens)
        self.time_scale = time_scale
        self.paused = False
        self.prompt_tokens_total = 0
        self._generated = 0
        self.aborted_total = 0
        self.ttft = Histogram(TTFT_BUCKETS)
        self.queue_time = Histogram(E2E_BUCKETS)
        self.prefill_time = Histogram(E2E_BUCKETS)
        self.e2e = Histogram(E2E_BUCKETS)
        self.on_turn: Callable[[], None] | None = None
        """Called after steps have been taken."""
        self._inside: dict[int, tuple[Sequence, float]] = {}  # with the virtual time of submission
        self._streams = 0
        self._ids = 0
        self._at = 0.0  # virtual time never runs backwards
        self._origin = time.monotonic()
        self._timer: asyncio.Handle | None = None

    def submit(self, sequences: Iterable[Sequence]) -> list[int]:
        """Queue sequences that arrive together; the ids that are returned cancel them."""
        now, ids = self._now(), []
        for sequence in sequences:
            self._ids += 1
            ids.append(self._ids)
            self._inside[self._ids] = (sequence, now)
            self._streams += sequence.on_token is not None
            request = EngineRequest(
                self._ids, sequence.prompt_tokens, sequence.output_tokens, sequence.prefix, sequence.answer
            )
            self.model.add(request, now)
        self._arm()
        return ids

    @property
    def generation_tokens_total(self) -> int:
        """Tokens generated so far, those of running sequences included, as vLLM counts them at each step."""
        now = self._now()
        running = (self.model.generated(id, now) for id in self._inside if id in self.model)
        return self._generated + sum(running)

    def cancel(self, id: int) -> bool:
        """Cancel a sequence. False if it is over already."""
        if id not in self._inside:
            return False
        sequence, _ = self._inside[id]
        now = self._now()
        ended = id not in self.model  # it ended in this very step, and `on_end` was not called yet
        self._generated += sequence.output_tokens if ended else self.model.generated(id, now)
        self.model.abort(id, now)
        self._forget(id)
        self.aborted_total += 1
        self._arm()
        return True

    def slow(self, factor: float) -> None:
        """Let every later step take `factor` times as long."""
        self.model.slow(factor, self._now())
        self._arm()

    def pause(self, paused: bool) -> None:
        """Stop virtual time, or let it continue."""
        if paused == self.paused:
            return
        if paused:
            self._at = self._now()
        self.paused = paused
        self._origin = time.monotonic() - self._at / self.time_scale
        self._arm()

    def close(self) -> None:
        """Forget everything; there are no more callbacks."""
        for id in list(self._inside):
            self.cancel(id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> float:
        if not self.paused and self.time_scale != math.inf:
            self._at = max(self._at, (time.monotonic() - self._origin) * self.time_scale)
        due = self._due_at()
        return self._at if self._at < due else math.nextafter(due, -math.inf)

    def _due_at(self) -> float:
        return self.model.step_at() if self._streams else self.model.next_at()

    def _arm(self) -> None:
        """Set the one timer, for the next event of the model."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._due_at()
        if self.paused or due == math.inf:
            return
        loop = asyncio.get_running_loop()
        delay_s = 0.0
        if self.time_scale != math.inf:
            delay_s = self._origin + due / self.time_scale - time.monotonic()
        if delay_s > 0:
            self._timer = loop.call_later(max(delay_s, TIMER_S), self._turn)
        else:
            self._timer = loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run the events that are due; after many steps let the loop read its sockets first."""
        self._timer = None
        free_running = self.time_scale == math.inf
        until = math.inf if free_running else (time.monotonic() - self._origin) * self.time_scale
        for _ in range(1 if free_running else STEPS_PER_TURN):
            due = self._due_at()
            if due > until or due == math.inf:
                break
            self._at = max(self._at, due)
            if self._streams:
                step = self.model.step()
                for id in step.tokens:
                    if id in self._inside and (on_token := self._inside[id][0].on_token) is not None:
                        on_token()
                events = step.events
            else:
                events = self.model.advance(due)
            for event in events:
                self._happened(event)
        self._arm()
        if self.on_turn is not None:
            self.on_turn()

    def _happened(self, event: ReplicaEvent) -> None:
        if event.id not in self._inside:
            return
        sequence, submitted_at = self._inside[event.id]
        match event.kind:
            case ReplicaEventKind.FIRST_TOKEN:
                self.prompt_tokens_total += sequence.prompt_tokens
                self.ttft.add(event.at - submitted_at)
                self.queue_time.add(event.began_at - submitted_at)
                self.prefill_time.add(event.at - event.began_at)
            case ReplicaEventKind.FINISHED:
                if not sequence.output_tokens:
                    self.prompt_tokens_total += sequence.prompt_tokens
                self._generated += sequence.output_tokens
                self.e2e.add(event.at - submitted_at)
                self._forget(event.id)
                sequence.on_end(event.hit_tokens)
            case ReplicaEventKind.PREEMPTED:
                pass

    def _forget(self, id: int) -> None:
        sequence, _ = self._inside.pop(id)
        self._streams -= sequence.on_token is not None
