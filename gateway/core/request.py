"""Values about a request: the request itself, the results of its attempts, and its record.

Times are of `time.monotonic`, in seconds. docs/internals/architecture.md has the table of their anchors.

Values made for every request (requests, commands, records) never change, but are not frozen: that would take four times
as long. Their `__init__` is written out, because that of `dataclass` is not compiled and takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from gateway.core.history import UNKNOWN_ORIGIN, Origin
from gateway.core.policy import Model, Policy, Tier
from gateway.core.sessions import Session, StoredResponse
from gateway.core.slo import Slo


class Random(Protocol):
    """The caller's seeded source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """A float in [0, 1)."""


class Endpoint(StrEnum):
    """API calls that reach a replica. The value is the path."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    RERANK = "/v1/rerank"
    RERANK_BARE = "/rerank"
    RERANK_V2 = "/v2/rerank"
    SCORE = "/v1/score"
    SCORE_BARE = "/score"
    POOLING = "/pooling"
    CLASSIFY = "/classify"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"


GENERATING: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints that generate text, so their answers have an output cap."""
WEIGHTLESS: Final = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""Endpoints that an engine answers without its GPU. No latency is learned from them."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The leading blocks of a prompt. Each block is named by a hash of the prompt up to the block's end."""

    blocks: tuple[int, ...] = ()
    """Hashes (64 bits) of the blocks, from the beginning of the prompt."""
    ends: tuple[int, ...] = ()
    """Bytes of the prompt up to the end of each block, ascending."""
    size: int = 0  # bytes of the whole prompt in the form that is hashed
    has_media: bool = False  # whether the prompt has pictures or sound; their size is an estimate


NO_PREFIX: Final = Prefix()


@dataclass(slots=True, init=False)
class Affinity:
    """The reasons why some replicas suit a request better than others, or are the only ones that can serve it."""

    prefix: Prefix = NO_PREFIX
    """Hashes of the prompt's beginning. With them, replicas that have it cached are found."""
    session: Session | None = None
    stored: StoredResponse | None = None
    """The stored response that the request continues; None if none."""
    adapter: str = ""
    """LoRA adapter that the client asked for, under the name that replicas list; empty if none."""

    def __init__(
        self,
        prefix: Prefix = NO_PREFIX,
        session: Session | None = None,
        stored: StoredResponse | None = None,
        adapter: str = "",
    ) -> None:
        self.prefix = prefix
        self.session = session
        self.stored = stored
        self.adapter = adapter

    def for_other_model(self) -> Affinity:
        """The affinity of the same request at a fallback model, which has neither its adapter nor the response."""
        return Affinity(self.prefix, self.session)


NO_AFFINITY: Final = Affinity()


@dataclass(slots=True, init=False)
class Request:
    """A request that needs a replica. The caller fills it once; then it is only read."""

    id: int
    policy: Policy
    tier: Tier
    model: Model
    tenant: str
    endpoint: Endpoint
    stream: bool
    prompt_bytes: int
    """UTF-8 bytes of all parts that become prompt: messages, tools, instructions."""
    prompt_exact: int | None
    """Exact number of prompt tokens (from token ids); None if only an estimate is possible."""
    max_tokens: int | None
    """Output cap per choice that the client set; None if it set none."""
    choices: int
    """Number of sequences to generate: n (or best_of) times `batch`, >= 1."""
    body_bytes: int
    head_at: float
    body_at: float
    batch: int = 1  # number of prompts in the request; each has to fit a pool by itself
    asked_model: str = ""  # the model name that the client asked for, if `model` is the catch-all
    body_hash: int | None = None
    """64-bit hash of the body; None while the controller has no `suspects`."""
    slo: Slo | None = None
    """The tier's SLO, tightened as the request asks for; None if it is the tier's own."""
    assembled: bool = False
    """Whether the replica streams the answer to us, while the client gets it as a whole."""
    split: str = ""
    """Name of the split model that the client asked for, if `model` is an arm of it."""
    is_token_ids: bool = False
    """Whether the prompt consists of token ids, which have a meaning only for this model."""
    fallback_of: str = ""
    """Name of the model that the client asked for, if `model` is the fallback of its tier."""
    affinity: Affinity = field(default_factory=Affinity)
    comeback: bool = False
    """Whether the client says that this is a retry."""
    truncates: bool = False  # whether the engine is asked to cut a prompt that is too long
    origin: Origin = field(default=UNKNOWN_ORIGIN, repr=False, compare=False)

    def __init__(
        self,
        id: int,
        policy: Policy,
        tier: Tier,
        model: Model,
        tenant: str,
        endpoint: Endpoint,
        stream: bool,
        prompt_bytes: int,
        prompt_exact: int | None,
        max_tokens: int | None,
        choices: int,
        body_bytes: int,
        head_at: float,
        body_at: float,
        batch: int = 1,
        asked_model: str = "",
        body_hash: int | None = None,
        slo: Slo | None = None,
        assembled: bool = False,
        split: str = "",
        is_token_ids: bool = False,
        fallback_of: str = "",
        affinity: Affinity = NO_AFFINITY,
        comeback: bool = False,
        truncates: bool = False,
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> None:
        self.id = id
        self.policy = policy
        self.tier = tier
        self.model = model
        self.tenant = tenant
        self.endpoint = endpoint
        self.stream = stream
        self.prompt_bytes = prompt_bytes
        self.prompt_exact = prompt_exact
        self.max_tokens = max_tokens
        self.choices = choices
        self.body_bytes = body_bytes
        self.head_at = head_at
        self.body_at = body_at
        self.batch = batch
        self.asked_model = asked_model
        self.body_hash = body_hash
        self.slo = slo
        self.assembled = assembled
        self.split = split
        self.is_token_ids = is_token_ids
        self.fallback_of = fallback_of
        self.affinity = affinity
        self.comeback = comeback
        self.truncates = truncates
        self.origin = origin

    @property
    def visible(self) -> bool:
        """Whether the tokens of its answer can be seen one by one as they come."""
        return self.stream or self.assembled

    def for_model(self, model: Model) -> Request:
        """A copy that falls back to `model`, without that which only the present model or its engines understand."""
        return replace(
            self,
            model=model,
            fallback_of=self.model.name,
            asked_model="",
            is_token_ids=False,
            affinity=self.affinity.for_other_model(),
            truncates=False,
        )
