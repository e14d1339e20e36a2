"""A simulated engine with continuous batching, in virtual time.

The rules, after vLLM's v1 scheduler:

1. Time passes in steps. The batch of a step is decided when it begins; its tokens appear when it ends.
2. Every sequence whose prompt is computed decodes one token per step. The rest of the step's token budget goes to
   prompts, in order of arrival, in chunks. The step that ends a prompt yields its first token.
3. A waiting request is admitted, in order of arrival, once a slot is free and its whole prompt fits into the KV cache.
4. When the next token of every decoding sequence no longer fits, the latest arrival is preempted. It loses its KV
   cache, waits at the head of the queue, and computes its prompt and output so far again.
5. The duration of a step comes from `Profile`.

Steps that only decode differ only by the growth of the context. So a series of such steps is stored as one arithmetic
series. `advance` jumps over many of its steps, and `step` takes one. Counts are updated, never recounted. So a step
takes O(1) time, plus time for its prompts and ends, whatever the number of sequences. KV is counted in tokens. The
unused rest of a sequence's last block is ignored. Prompt tokens found in the prefix cache (prefix_cache.py) are not
computed again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from heapq import heappop, heappush

from gateway.sim.engine.prefix_cache import PrefixCache
from gateway.sim.engine.profiles import Profile
from gateway.sim.engine.sequences import EngineRequest, EngineSequence, ReplicaEvent, ReplicaEventKind, Step
from gateway.sim.engine.step_series import StepSeries
from gateway.sim.workload.arrivals import BLOCK_TOKENS


class SimulatedReplica:
    """A simulated engine. `now` must never decrease, and all events up to `now` must be taken (`advance`) before other
    calls.
    """

    def __init__(self, profile: Profile, block_tokens: int = BLOCK_TOKENS) -> None:
        """`block_tokens`: tokens per hash in `EngineRequest.prefix`."""
        self.profile = profile
        self.preemptions_total = 0
        self.slowdown = 1.0
        self.cache = PrefixCache(block_tokens)
        self._waiting: OrderedDict[int, EngineSequence] = OrderedDict()
        self._running: dict[int, EngineSequence] = {}  # by order of arrival, the latest last
        self._prefilling: dict[int, EngineSequence] = {}  # those of `_running` that do not decode yet
        self._finishes: list[tuple[int, int, EngineSequence]] = []
        self._pushed = 0
        self._tick = 0  # number of steps so far
        self._held = 0  # reserved tokens of KV cache: whole prompts of running sequences, and their output so far
        self._context = 0  # filled tokens of KV cache
        self._context_cost = 0.0  # `_context`, with each token multiplied by the cost factor of its sequence
        self._decoding_cost = 0.0  # sum of the cost factors of decoding sequences
        self.series = StepSeries()
        """The steps under way."""
        self._chunks: list[tuple[EngineSequence, int]] = []

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of requests that hold a slot."""
        return len(self._running)

    @property
    def held_tokens(self) -> int:
        """Reserved tokens of the KV cache: whole prompts of running requests, and their output so far."""
        return self._held

    @property
    def kv_fraction(self) -> float:
        """Share (0-1) of the KV cache that was filled at the last call."""
        return (self._context - self.cache.shared_tokens) / self.profile.kv_capacity_tokens

    def __contains__(self, id: int) -> bool:
        return id in self._running or id in self._waiting

    def next_at(self) -> float:
        """Time at which `advance` must be called next, if no request is added or aborted before; inf while idle."""
        return self.series.end_of(self.series.steps) if self.series.steps else math.inf

    def step_at(self) -> float:
        """End of the step under way; inf while idle."""
        return self.series.end_of(1) if self.series.steps else math.inf

    def generated(self, id: int, now: float) -> int:
        """Number of tokens that request `id` has got by `now`. Raises KeyError for an unknown request."""
        sequence = self._running[id] if id in self._running else self._waiting[id]
        return sequence.offset + self._tick + self.series.done(now) if sequence.decoding else sequence.generated

    def cached(self, now: float) -> int:
        """Tokens of KV cache filled by `now`."""
        filled = self._context - self.cache.shared_tokens
        done = self.series.done(now) if self.series.steps else 0
        return filled + done * (len(self._running) - len(self._prefilling))

    def decoding(self, now: float) -> list[tuple[int, int]]:
        """(id, number of tokens by `now`) of each decoding request, in order of arrival."""
        tick = self._tick + self.series.done(now)
        return [(id, sequence.offset + tick) for id, sequence in self._running.items() if sequence.decoding]

    def add(self, request: EngineRequest, now: float) -> None:
        """Queue a request, which may join a step that begins at `now`. Raises ValueError if it can never fit."""
        if request.id in self:
            raise ValueError(f"request {request.id} is already here")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a request needs at least 1 prompt token and at least 0 output tokens")
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(f"{request.prompt_tokens} + {request.output_tokens} tokens exceed max_model_len")
        if not self._waiting and len(self._running) < self.profile.max_num_seqs:
            self._interrupt(now)  # otherwise the request cannot join now, so the series under way is not affected
        self._waiting[request.id] = EngineSequence(request)
        if not self.series.steps or self.series.began_at == now:
            self._schedule(now, [])

    def abort(self, id: int, now: float) -> bool:
        """Abort a request at once, and free its slot and KV cache. Returns False for an unknown request."""
        if id not in self:
            return False
        self._interrupt(now)
        if id in self._waiting:
            del self._waiting[id]
        else:
            self._release(self._running.pop(id))
        return True

    def slow(self, factor: float, now: float) -> None:
        """Let every later step take `factor` (> 0) times as long as the profile says."""
        if factor <= 0:
            raise ValueError("factor must be above 0")
        self._interrupt(now)
        self.slowdown = factor

    def advance(self, now: float) -> list[ReplicaEvent]:
        """Simulate all steps that end at or before `now`. Returns the events in order."""
        events: list[ReplicaEvent] = []
        while self.series.steps and (end := self.series.end_of(self.series.steps)) <= now:
            self._pass(self.series.steps)
            self._finish(end, [], events)
            self._schedule(end, events)
        return events

    def step(self) -> Step:
        """End the step under way, at `step_at()`. Raises RuntimeError while idle."""
        if not self.series.steps:
            raise RuntimeError("no step in flight")
        at = self.series.end_of(1)
        step = Step(at, [id for id, sequence in self._running.items() if sequence.decoding], [])
        self._pass(1)
        if not self.series.steps:
            self._finish(at, step.tokens, step.events)
            self._schedule(at, step.events)
        return step

    # The series of steps under way:

    def _pass(self, steps: int) -> None:
        """Update the counts for the next `steps` steps of the series."""
        tokens = steps * (len(self._running) - len(self._prefilling))
        self._held += tokens
        self._context += tokens
        self._context_cost += steps * self._decoding_cost
        self._tick += steps
        self.series.skip(steps)

    def _interrupt(self, now: float) -> None:
        """Make the step that is under way at `now` the last step of its series."""
        if not self.series.steps:
            return
        done = self.series.done(now)
        if done == self.series.steps:
            raise ValueError("events are due before now: call advance first")
        self._pass(done)
        self.series.steps = 1

    # Begin and end of a series:

    def _schedule(self, now: float, events: list[ReplicaEvent]) -> None:
        """Begin the next series of steps at `now`, or become idle."""
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
            if sequence.began_at is None:
                sequence.began_at = now
            self._running[id] = self._prefilling[id] = sequence
            budget -= self._chunk(sequence, budget)
        if not self._running:
            self.series.steps = 0
            self._context_cost = 0.0  # exact, so rounding errors do not add up
            return
        if not decoders:
            self._decoding_cost = 0.0
        decoding = self._decoding_cost
        prefill = sum(tokens * sequence.request.cost for sequence, tokens in chunks)
        begun = len(chunks) - continued
        step_s = profile.step_base_s + profile.prefill_s_per_token * prefill + profile.decode_s_per_sequence * decoding
        step_s += profile.prefill_s_per_sequence * begun
        first_s = self.slowdown * (step_s + profile.kv_s_per_token * self._context_cost)
        growth_s = self.slowdown * profile.kv_s_per_token * decoding
        self.series.begin(now, first_s, growth_s, 1 if chunks else self._decode_steps(decoders))

    def _begin(self, sequence: EngineSequence, decoders: int) -> bool:
        """Reserve KV cache for a sequence, and use cached blocks. Returns False if it does not fit."""
        cache, request, profile = self.cache, sequence.request, self.profile
        prefix = request.prefix if profile.prefix_caching else ()
        room = self._free_tokens - decoders
        cache.shrink(room)  # the answers of running sequences have grown since the last admission
        found = prefix[: cache.match(prefix)]
        if sequence.target - cache.in_use(found) > room:
            return False
        cache.use(found)
        sequence.blocks = list(found)
        sequence.filled = len(found)
        # At least the last token of a prompt is computed again, together with its whole block.
        most = (request.prompt_tokens - 1) // profile.kv_block_tokens * profile.kv_block_tokens
        sequence.computed = min(len(found) * cache.block_tokens, most)
        if sequence.hit_tokens is None:  # counted at the first start only: vLLM counts preempted requests separately
            sequence.hit_tokens = sequence.computed
            cache.queried_tokens += request.prompt_tokens
            cache.hit_tokens += sequence.computed
        self._held += sequence.target
        self._context += sequence.computed
        self._context_cost += sequence.computed * request.cost
        cache.shrink(self._free_tokens)
        return True

    def _decode_steps(self, decoders: int) -> int:
        """Number of steps until a sequence finishes or the KV cache is full."""
        finishes = self._finishes
        while not self._is_current(finishes[0]):
            heappop(finishes)
        return min(finishes[0][0] - self._tick, self._free_tokens // decoders)

    @staticmethod
    def _is_current(entry: tuple[int, int, EngineSequence]) -> bool:
        """Whether the sequence of this entry still runs: it was neither aborted nor preempted."""
        tick, _, sequence = entry
        return sequence.decoding and sequence.finish_tick == tick

    def _chunk(self, sequence: EngineSequence, budget: int) -> int:
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
        """Preempt sequences until every decoding sequence can grow by a token. Returns the number of decoding
        sequences. The oldest sequence is never preempted, because it fits alone.
        """
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

    def _release(self, sequence: EngineSequence) -> None:
        """Free the KV cache of a sequence that has left `_running`. Its number of generated tokens is kept."""
        self.cache.shrink(self._free_tokens)  # its answer had used space of cached blocks
        if sequence.decoding:
            sequence.decoding = False
            sequence.generated = sequence.offset + self._tick
            cached = sequence.target - 1  # the newest token would enter the cache with the next step
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
        """End a series of steps: finished sequences leave, and prompts advance. `tokens`: list to which the ids of
        requests with a first token are added.
        """
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

    def _prefilled(self, sequence: EngineSequence, at: float, tokens: list[int], events: list[ReplicaEvent]) -> None:
        request = sequence.request
        if request.output_tokens:
            tokens.append(request.id)
            if not sequence.generated:
                began_at = sequence.began_at or 0.0
                first = ReplicaEvent(ReplicaEventKind.FIRST_TOKEN, request.id, at, sequence.hit_tokens or 0, began_at)
                events.append(first)
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

    def _leave(self, sequence: EngineSequence, at: float, events: list[ReplicaEvent]) -> None:
        request = sequence.request
        del self._running[request.id]
        if request.answer and self.profile.prefix_caching:
            sequence.blocks += self.cache.computed(request.answer)
        self._release(sequence)
        events.append(ReplicaEvent(ReplicaEventKind.FINISHED, request.id, at, sequence.hit_tokens or 0))
