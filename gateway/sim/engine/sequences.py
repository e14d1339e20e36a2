"""Requests that a simulated engine serves, and the events that it reports of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A sequence to be generated. `output_tokens`: length of its answer; with 0, only the prompt is read."""

    id: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    """Hashes of the leading blocks of the prompt."""
    answer: tuple[int, ...] = ()
    """Hashes of the blocks that the answer fills. The first block may start within the prompt."""
    cost: float = 1.0
    """Factor on the time that this sequence adds to a step (prompt, decode, context)."""


class ReplicaEventKind(StrEnum):
    """Kind of event of a request."""

    FIRST_TOKEN = "first-token"
    FINISHED = "finished"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class ReplicaEvent:
    """An event of request `id` at the virtual time `at`."""

    kind: ReplicaEventKind
    id: int
    at: float
    hit_tokens: int = 0
    """Prompt tokens that the request found in the prefix cache."""
    began_at: float = 0.0
    """Of a first token: when the request left the queue."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has ended: the requests that got a token (one each), and other events."""

    at: float
    tokens: list[int]
    events: list[ReplicaEvent]


@dataclass(slots=True, eq=False)
class EngineSequence:
    """A request in an engine, and its progress there."""

    request: EngineRequest
    generated: int = 0
    """Tokens generated so far, while the sequence does not decode."""
    computed: int = 0
    """Tokens in the KV cache, while the sequence does not decode."""
    decoding: bool = False
    offset: int = 0
    """While the sequence decodes: tokens generated minus the engine's tick. The value stays constant, because both grow
    by one per step.
    """
    finish_tick: int = 0
    blocks: list[int] = field(default_factory=list)
    """Blocks of the prefix cache that the sequence uses, from the beginning of the prompt."""
    filled: int = 0
    """Number of blocks of its prompt that are in the cache, computed by this or another sequence."""
    began_at: float | None = None
    """When the sequence left the queue for the first time; None before."""
    hit_tokens: int | None = None
    """Prompt tokens that the sequence found in the cache when it first started; None before the start."""

    @property
    def target(self) -> int:
        """Tokens that must be in the KV cache before the sequence can decode."""
        return self.request.prompt_tokens + self.generated
