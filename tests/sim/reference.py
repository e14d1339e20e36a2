"""The same engine, written for readers: without counters and leaps; everything is counted anew in every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.sim.engine.profiles import Profile
from gateway.sim.engine.sequences import EngineRequest, ReplicaEvent, ReplicaEventKind


@dataclass(eq=False)
class Sequence:
    """One request; `cached`: its tokens in the KV cache. It `decodes` once its whole prompt is cached."""

    request: EngineRequest
    generated: int = 0
    cached: int = 0
    decodes: bool = False

    @property
    def length(self) -> int:
        return self.request.prompt_tokens + self.generated


@dataclass
class Reference:
    """Rules 1 to 5 of `gateway.sim.engine.replica`, one after the other."""

    profile: Profile
    now: float = 0.0
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    work: list[tuple[Sequence, int]] = field(default_factory=list)
    ends_at: float | None = None
    events: list[ReplicaEvent] = field(default_factory=list)

    def held(self, reading: set[int]) -> int:
        """Reserved tokens of the KV cache."""
        return sum(s.length if s.request.id in reading else s.cached for s in self.running)

    def begin(self) -> None:
        """Rules 2 to 5: the work of the next step."""
        profile = self.profile
        reading = {s.request.id for s in self.running if not s.decodes}
        while self.held(reading) + len([s for s in self.running if s.decodes]) > profile.kv_capacity_tokens:
            victim = self.running.pop()
            victim.cached, victim.decodes = 0, False
            self.waiting.insert(0, victim)
            self.events.append(ReplicaEvent(ReplicaEventKind.PREEMPTED, victim.request.id, self.now))
        decoders = [s for s in self.running if s.decodes]
        context = sum(s.cached * s.request.cost for s in self.running)
        budget = profile.max_batched_tokens - len(decoders)
        self.work = [(s, 1) for s in decoders]
        for sequence in self.running:
            if not sequence.decodes and budget:
                self.work.append((sequence, min(budget, sequence.length - sequence.cached)))
                budget -= self.work[-1][1]
        begun = 0
        while self.waiting and budget and len(self.running) < profile.max_num_seqs:
            head = self.waiting[0]
            reading = {s.request.id for s in self.running if not s.decodes}
            if self.held(reading) + len(decoders) + head.length > profile.kv_capacity_tokens:
                break
            self.running.append(self.waiting.pop(0))
            begun += 1
            self.work.append((head, min(budget, head.length)))
            budget -= self.work[-1][1]
        read = sum(tokens * s.request.cost for s, tokens in self.work if not s.decodes)
        self.ends_at = None
        if self.running:
            self.ends_at = self.now + (
                profile.step_base_s
                + profile.prefill_s_per_token * read
                + profile.prefill_s_per_sequence * begun
                + profile.decode_s_per_sequence * sum(s.request.cost for s in decoders)
                + profile.kv_s_per_token * context
            )

    def end(self) -> None:
        """Rule 1: the tokens of the step; decoding sequences come first."""
        assert self.ends_at is not None
        self.now = self.ends_at
        for sequence, tokens in self.work:
            if sequence not in self.running:
                continue
            sequence.cached += tokens
            if sequence.cached == sequence.length:
                sequence.decodes = True
                if sequence.request.output_tokens:
                    sequence.generated += 1
                    if sequence.generated == 1:
                        self.events.append(ReplicaEvent(ReplicaEventKind.FIRST_TOKEN, sequence.request.id, self.now))
                if sequence.generated == sequence.request.output_tokens:
                    self.running.remove(sequence)
                    self.events.append(ReplicaEvent(ReplicaEventKind.FINISHED, sequence.request.id, self.now))
        self.begin()

    def until(self, now: float) -> None:
        while self.ends_at is not None and self.ends_at <= now:
            self.end()

    def add(self, request: EngineRequest, now: float) -> None:
        self.waiting.append(Sequence(request))
        if self.ends_at is None:
            self.now = now
            self.begin()

    def abort(self, id: int) -> None:
        self.waiting = [s for s in self.waiting if s.request.id != id]
        self.running = [s for s in self.running if s.request.id != id]
