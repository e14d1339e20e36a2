"""A continuous-batching engine in virtual time, with the requests that it holds.

The rules, after vLLM's v1 scheduler:

1. Time passes in steps. The batch of a step is decided when it begins; its tokens appear when it ends.
2. Every sequence whose prompt is computed decodes one token per step. The rest of the step's token budget goes to
   prompts, in order of arrival, in chunks. The step that ends a prompt yields its first token.
3. A waiting request is admitted, in order of arrival, once a slot is free and its whole prompt fits into the KV cache.
4. When the next token of every decoding sequence no longer fits, the latest arrival is preempted. It loses its KV
   cache, waits at the head of the queue, and computes its prompt and output so far again.
5. The duration of a step comes from `Profile`.

Steps that only decode differ only by the growth of the context. A run of them is therefore kept as one arithmetic
series: `advance` leaps over it, `step` walks it. Counts are kept, never recounted: a step costs O(1) plus its prompts
and ends, whatever the number of sequences. KV is counted in tokens; the rest of each sequence's last block (less than
kv_block_tokens) is not. Prompt tokens found in the prefix cache (prefix_cache.py) are not computed again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush

from gateway.sim.run.prefix_cache import PrefixCache
from gateway.sim.run.profiles import Profile
from gateway.sim.workload.arrivals import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to be generated. `output_tokens`: the length at which it ends; 0: the prompt is only read."""

    id: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    """Hashes of the blocks that the prompt begins with."""
    answer: tuple[int, ...] = ()
    """Hashes of the blocks that the answer fills. The first may begin in the prompt."""
    cost: float = 1.0
    """Factor on its part of a step (prompt, decode, context)."""


class ReplicaEventKind(StrEnum):
    """An event of a request."""

    FIRST_TOKEN = "first-token"
    FINISHED = "finished"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class ReplicaEvent:
    """Something that happened to request `id` at virtual time `at`."""

    kind: ReplicaEventKind
    id: int
    at: float
    hit_tokens: int = 0
    """Prompt tokens that it found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Step:
    """One ended step: which requests got a token (each exactly one), and other events."""

    at: float
    tokens: list[int]
    events: list[ReplicaEvent]


@dataclass(slots=True, eq=False)
class _Sequence:
    request: EngineRequest
    generated: int = 0
    """Tokens generated, while it does not decode."""
    computed: int = 0
    """Tokens in the KV cache, while it does not decode."""
    decoding: bool = False
    offset: int = 0
    """Tokens generated, less the engine's tick, while it decodes: both grow by one per step."""
    finish_tick: int = 0
    blocks: list[int] = field(default_factory=list)
    """Blocks of the prefix cache that it uses, leading ones first."""
    filled: int = 0
    """Blocks of its prompt that are in the cache, by it or by another."""
    hit_tokens: int | None = None
    """Prompt tokens that it found in the cache when it first began; None before."""

    @property
    def target(self) -> int:
        """Tokens that must be in the KV cache before it decodes."""
        return self.request.prompt_tokens + self.generated


class SimulatedReplica:
    """One engine. Every method with `now` needs it at or after the last one, and every due event taken first."""

    def __init__(self, profile: Profile, block_tokens: int = BLOCK_TOKENS) -> None:
        """`block_tokens`: tokens under one hash of `EngineRequest.prefix`."""
        self.profile = profile
        self.preemptions_total = 0
        self.slowdown = 1.0
        self.cache = PrefixCache(block_tokens)
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: dict[int, _Sequence] = {}  # in order of arrival, so the latest is the last
        self._prefilling: dict[int, _Sequence] = {}  # the part of `_running` that does not decode yet
        self._finishes: list[tuple[int, int, _Sequence]] = []
        self._pushed = 0
        self._tick = 0  # steps so far
        self._held = 0  # tokens of KV cache spoken for: whole prompts of all that run, and what they decoded
        self._context = 0  # tokens of KV cache filled
        self._context_cost = 0.0  # the same, each token as many times as its sequence costs
        self._decoding_cost = 0.0  # sequences that decode, likewise
        # The run in flight: `_steps` steps, the first of which began at `_began`; 0 steps: idle.
        self._began = 0.0
        self._steps = 0
        self._step_s = 0.0
        self._growth_s = 0.0
        self._chunks: list[tuple[_Sequence, int]] = []

    @property
    def waiting(self) -> int:
        """Requests that hold no slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def held_tokens(self) -> int:
        """Reserved tokens of the KV cache: whole prompts of running requests, and their output so far."""
        return self._held

    @property
    def kv_fraction(self) -> float:
        """Share of the KV cache that is filled (0-1), as of the last call."""
        return (self._context - self.cache.shared_tokens) / self.profile.kv_capacity_tokens

    def __contains__(self, id: int) -> bool:
        return id in self._running or id in self._waiting

    def next_at(self) -> float:
        """Time of the next needed call of `advance`, if nothing is added or aborted before; inf while idle."""
        return self.end_of(self._steps) if self._steps else math.inf

    def step_at(self) -> float:
        """End of the step in flight; inf while idle."""
        return self.end_of(1) if self._steps else math.inf

    def generated(self, id: int, now: float) -> int:
        """Tokens that request `id` has got by `now`. Raises KeyError for an unknown request."""
        sequence = self._running[id] if id in self._running else self._waiting[id]
        return sequence.offset + self._tick + self._done(now) if sequence.decoding else sequence.generated

    def cached(self, now: float) -> int:
        """Tokens of KV cache filled by `now`."""
        filled = self._context - self.cache.shared_tokens
        return filled + (self._done(now) * (len(self._running) - len(self._prefilling)) if self._steps else 0)

    def decoding(self, now: float) -> list[tuple[int, int]]:
        """Every decoding request, in order of arrival, and its tokens by `now`."""
        tick = self._tick + self._done(now)
        return [(id, sequence.offset + tick) for id, sequence in self._running.items() if sequence.decoding]

    def add(self, request: EngineRequest, now: float) -> None:
        """Queue a request; it may join the step that begins at `now`. Raises ValueError if it can never fit."""
        if request.id in self:
            raise ValueError(f"request {request.id} is already here")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a request needs at least 1 prompt token and at least 0 output tokens")
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(f"{request.prompt_tokens} + {request.output_tokens} tokens exceed max_model_len")
        if not self._waiting and len(self._running) < self.profile.max_num_seqs:
            self._interrupt(now)  # otherwise the current run is not affected
        self._waiting[request.id] = _Sequence(request)
        if not self._steps or self._began == now:
            self._schedule(now, [])

    def abort(self, id: int, now: float) -> bool:
        """Forget a request at once, slot and KV cache included. False for an unknown request."""
        if id not in self:
            return False
        self._interrupt(now)
        if id in self._waiting:
            del self._waiting[id]
        else:
            self._release(self._running.pop(id))
        return True

    def slow(self, factor: float, now: float) -> None:
        """Let every later step take `factor` times as long as the profile says (> 0)."""
        if factor <= 0:
            raise ValueError("factor must be above 0")
        self._interrupt(now)
        self.slowdown = factor

    def advance(self, now: float) -> list[ReplicaEvent]:
        """Run everything that ends at or before `now` and return the events in order."""
        events: list[ReplicaEvent] = []
        while self._steps and (end := self.end_of(self._steps)) <= now:
            self._pass(self._steps)
            self._finish(end, [], events)
            self._schedule(end, events)
        return events

    def step(self) -> Step:
        """End the step in flight, at `step_at()`. Raises RuntimeError while idle."""
        if not self._steps:
            raise RuntimeError("no step in flight")
        at = self.end_of(1)
        step = Step(at, [id for id, sequence in self._running.items() if sequence.decoding], [])
        self._pass(1)
        if not self._steps:
            self._finish(at, step.tokens, step.events)
            self._schedule(at, step.events)
        return step

    # The run in flight.

    def end_of(self, steps: int) -> float:
        """End of the first `steps` steps of the run: each takes `_growth_s` longer than the one before."""
        return self._began + steps * self._step_s + self._growth_s * (steps * (steps - 1) / 2)

    def _done(self, now: float) -> int:
        """Steps of the run that are over by `now`: `end_of` inverted, then corrected for rounding."""
        if now < self.end_of(1):
            return 0
        elapsed = now - self._began
        half = self._step_s - self._growth_s / 2
        root = 2 * elapsed / (half + math.sqrt(half * half + 2 * self._growth_s * elapsed))
        steps = min(int(root), self._steps)
        while steps < self._steps and self.end_of(steps + 1) <= now:
            steps += 1
        while steps and self.end_of(steps) > now:
            steps -= 1
        return steps

    def _pass(self, steps: int) -> None:
        """Account for the next `steps` steps of the run."""
        tokens = steps * (len(self._running) - len(self._prefilling))
        self._held += tokens
        self._context += tokens
        self._context_cost += steps * self._decoding_cost
        self._tick += steps
        self._began = self.end_of(steps)
        self._step_s += steps * self._growth_s
        self._steps -= steps

    def _interrupt(self, now: float) -> None:
        """Make the step that is in flight at `now` the last one of its run."""
        if not self._steps:
            return
        done = self._done(now)
        if done == self._steps:
            raise ValueError("events are due before now: call advance first")
        self._pass(done)
        self._steps = 1

    # Begin and end of a step.

    def _schedule(self, now: float, events: list[ReplicaEvent]) -> None:
        """Begin the next run at `now`, or go idle."""
        profile = self.profile
        decoders = self._make_room(now, events)
        budget = profile.max_batched_tokens - decoders
        chunks = self._chunks = []
        for sequence in self._prefilling.values():
            if not budget:
                break
            budget -= self._chunk(sequence, budget)
        continued = len(chunks)
        while self._waiting and budget and len(self._running) < profile.max_num_seqs:
            id, sequence = next(iter(self._waiting.items()))
            if not self._begin(sequence, decoders):
                break
            del self._waiting[id]
            self._running[id] = self._prefilling[id] = sequence
            budget -= self._chunk(sequence, budget)
        if not self._running:
            self._steps = 0
            self._context_cost = 0.0  # resets rounding errors
            return
        if not decoders:
            self._decoding_cost = 0.0
        decoding = self._decoding_cost
        prefill = sum(tokens * sequence.request.cost for sequence, tokens in chunks)
        begun = len(chunks) - continued
        step_s = profile.step_base_s + profile.prefill_s_per_token * prefill + profile.decode_s_per_sequence * decoding
        step_s += profile.prefill_s_per_sequence * begun
        self._began = now
        self._step_s = self.slowdown * (step_s + profile.kv_s_per_token * self._context_cost)
        self._growth_s = self.slowdown * profile.kv_s_per_token * decoding
        self._steps = 1 if chunks else self._decode_steps(decoders)

    def _begin(self, sequence: _Sequence, decoders: int) -> bool:
        """Give a sequence its KV cache, including cached blocks; False if it does not fit."""
        cache, request, profile = self.cache, sequence.request, self.profile
        prefix = request.prefix if profile.prefix_caching else ()
        room = self._free_tokens - decoders
        cache.shrink(room)  # `answer_tokens` has grown since the last admission
        found = prefix[: cache.match(prefix)]
        if sequence.target - cache.in_use(found) > room:
            return False
        cache.use(found)
        sequence.blocks = list(found)
        sequence.filled = len(found)
        # At least one token is computed, and with it all of its block.
        most = (request.prompt_tokens - 1) // profile.kv_block_tokens * profile.kv_block_tokens
        sequence.computed = min(len(found) * cache.block_tokens, most)
        if sequence.hit_tokens is None:  # vLLM counts preempted requests apart
            sequence.hit_tokens = sequence.computed
            cache.queried_tokens += request.prompt_tokens
            cache.hit_tokens += sequence.computed
        self._held += sequence.target
        self._context += sequence.computed
        self._context_cost += sequence.computed * request.cost
        cache.shrink(self._free_tokens)
        return True

    def _decode_steps(self, decoders: int) -> int:
        """Steps until a sequence finishes or the KV cache is full."""
        finishes = self._finishes
        while not self._is_current(finishes[0]):
            heappop(finishes)
        return min(finishes[0][0] - self._tick, self._free_tokens // decoders)

    @staticmethod
    def _is_current(entry: tuple[int, int, _Sequence]) -> bool:
        """Whether the sequence is still running: neither aborted nor preempted."""
        tick, _, sequence = entry
        return sequence.decoding and sequence.finish_tick == tick

    def _chunk(self, sequence: _Sequence, budget: int) -> int:
        tokens = min(budget, sequence.target - sequence.computed)
        self._chunks.append((sequence, tokens))
        prefix = sequence.request.prefix
        if prefix and self.profile.prefix_caching:
            filled = min(len(prefix), (sequence.computed + tokens) // self.cache.block_tokens)
            if filled > sequence.filled:
                sequence.blocks += self.cache.computed(prefix[sequence.filled : filled])
                sequence.filled = filled
        return tokens

    @property
    def _free_tokens(self) -> int:
        """Tokens of KV cache that no running sequence holds."""
        return self.profile.kv_capacity_tokens - self._held + self.cache.shared_tokens

    def _make_room(self, now: float, events: list[ReplicaEvent]) -> int:
        """Preempt until every decoding sequence can grow by one, and count them. The oldest stays: alone it fits."""
        decoders = len(self._running) - len(self._prefilling)
        while decoders > self._free_tokens:
            id, victim = self._running.popitem()
            decoders -= victim.decoding
            self._release(victim)
            self._waiting[id] = victim
            self._waiting.move_to_end(id, last=False)
            self.preemptions_total += 1
            events.append(ReplicaEvent(ReplicaEventKind.PREEMPTED, id, now))
        return decoders

    def _release(self, sequence: _Sequence) -> None:
        """Free the KV cache of a sequence that has left `_running`, keeping what it has generated."""
        self.cache.shrink(self._free_tokens)  # its answer took the room of cached blocks
        if sequence.decoding:
            sequence.decoding = False
            sequence.generated = sequence.offset + self._tick
            cached = sequence.target - 1  # the newest token enters the cache with the next step
            self._held -= cached
            self._context -= cached
            self._context_cost -= cached * sequence.request.cost
            self._decoding_cost -= sequence.request.cost
        else:
            del self._prefilling[sequence.request.id]
            self._held -= sequence.target
            self._context -= sequence.computed
            self._context_cost -= sequence.computed * sequence.request.cost
        sequence.computed = 0
        self.cache.release(sequence.blocks)
        sequence.blocks = []

    def _finish(self, at: float, tokens: list[int], events: list[ReplicaEvent]) -> None:
        """End a run: finished sequences leave, prompts move on. `tokens` gets the ids that a prompt gave a token."""
        finishes = self._finishes
        while finishes and finishes[0][0] <= self._tick:
            entry = heappop(finishes)
            if self._is_current(entry):
                self._leave(entry[2], at, events)
        for sequence, computed in self._chunks:
            if self._prefilling.get(sequence.request.id) is sequence:
                sequence.computed += computed
                self._context += computed
                self._context_cost += computed * sequence.request.cost
                if sequence.computed == sequence.target:
                    self._prefilled(sequence, at, tokens, events)
        self._chunks = []

    def _prefilled(self, sequence: _Sequence, at: float, tokens: list[int], events: list[ReplicaEvent]) -> None:
        request = sequence.request
        if request.output_tokens:
            tokens.append(request.id)
            if not sequence.generated:
                events.append(ReplicaEvent(ReplicaEventKind.FIRST_TOKEN, request.id, at, sequence.hit_tokens or 0))
        if sequence.generated + 1 >= request.output_tokens:
            self._leave(sequence, at, events)
            return
        del self._prefilling[request.id]
        sequence.decoding = True
        self._decoding_cost += request.cost
        sequence.offset = sequence.generated + 1 - self._tick
        sequence.finish_tick = request.output_tokens - sequence.offset
        self._pushed += 1
        heappush(self._finishes, (sequence.finish_tick, self._pushed, sequence))

    def _leave(self, sequence: _Sequence, at: float, events: list[ReplicaEvent]) -> None:
        request = sequence.request
        del self._running[request.id]
        if request.answer and self.profile.prefix_caching:
            sequence.blocks += self.cache.computed(request.answer)
        self._release(sequence)
        events.append(ReplicaEvent(ReplicaEventKind.FINISHED, request.id, at, sequence.hit_tokens or 0))
