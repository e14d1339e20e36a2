"""One engine: its slots, its unread prompts, its context and its health. This layer does not know pools."""

from __future__ import annotations

import math

from gateway.core.estimators.attempt_prediction import AttemptPrediction
from gateway.core.fleet.adapters import Adapters
from gateway.core.fleet.concurrency_limit import ConcurrencyLimit
from gateway.core.fleet.health.replica_health import CAPPED, ReplicaHealth
from gateway.core.fleet.kv_cache import KvCache
from gateway.core.fleet.routing import RoutingTarget
from gateway.core.fleet.step_budget import StepBudget
from gateway.core.pool_spec import ReplicaSpec
from gateway.core.request import Request
from gateway.core.sample import NO_LOAD, Sample
from gateway.core.sessions import key_of
from gateway.core.snapshot import CacheView, CapacityBound, ReplicaState, ReplicaView


class UnreadPrompt:
    """A prompt that was sent to a replica, with the facts that decide whether it counts as read."""

    __slots__ = ("first_token", "number", "opened_at", "prediction", "unread_tokens", "visible")

    def __init__(self, number: int, unread_tokens: int, visible: bool, now: float) -> None:
        self.number = number
        """Serial number of the slot in its pool, in the order of acquisition."""
        self.unread_tokens = unread_tokens
        """Prompt tokens that the engine has to compute. Those in its prefix cache are left out."""
        self.visible = visible
        """Whether a first token will show that the prompt was read."""
        self.opened_at = now
        self.first_token = False
        """Whether the first token has come."""
        self.prediction: AttemptPrediction | None = None
        """Predicted latencies; None without a prediction."""


class BaseReplica(RoutingTarget):
    """One engine, without its pool. Decisions use the gateway's own counts; the last scrape is kept beside them."""

    __slots__ = (
        "adapters",
        "began_at",
        "below_max",
        "bound",
        "budget",
        "by_tier",
        "context_tokens",
        "drained",
        "health",
        "held_tokens",
        "is_free",
        "kv",
        "kv_headroom",
        "learned",
        "longest_tokens",
        "max_slots",
        "models",
        "others",
        "paused",
        "places",
        "proven_tokens",
        "reading",
        "refusals",
        "restarts",
        "sample",
        "sample_at",
        "session_key",
        "share",
        "slots",
        "spare",
        "spec",
        "streams",
        "told_context",
        "was_alive",
    )

    def __init__(self, spec: ReplicaSpec) -> None:
        super().__init__()
        self.spec = spec
        self.session_key = key_of(spec.name)
        """Hash key of the replica. From it, the home replica of each session is computed."""
        self.health = ReplicaHealth()
        self.was_alive = False
        """Whether it has passed a check, or answered anything else, since it was added."""
        self.drained = False
        """Whether an operator drained it."""
        self.began_at = -math.inf
        """Start of the slow start: the time when the replica was added or came back."""
        self.share = 1.0
        """Share (0-1) of the slots that slow start allows; 1 after the slow start."""
        self.slots = 0
        """Slots that apply now: configured or learned; 1 while the breaker is half-open, 0 while the replica is not
        used.
        """
        self.max_slots = 0
        """Slots by configured bounds alone, without slow start. Practically unlimited if the pool has no `slots`."""
        self.refusals = 0
        """Number of 429 and 503 answers in a row."""
        self.restarts = 0
        """How often the engine's counters restarted from zero."""
        self.paused = 0
        """Number of attempts whose answer this gateway has stopped reading, because the client is slow."""
        self.streams = 0
        """Number of attempts whose tokens can be seen as they come, and are read. Only their silence is one."""
        self.spare = 0
        """Free slots, as counted in `Slots.spare`."""
        self.others = NO_LOAD
        """Load by requests of other gateways, as they told it."""
        self.by_tier: dict[str, int] = {}
        self.held_tokens = 0
        """Tokens of context of the attempts under way: their prompts, and their answers so far."""
        self.reading: dict[int, UnreadPrompt] = {}
        """Unread prompts by slot number, oldest first. Engines read them in this order."""
        self.adapters = Adapters()
        self.models: frozenset[str] = frozenset()
        """Names that the replica lists. It takes no others. Empty if its list is unknown: then it takes any name."""
        self.kv = KvCache()
        self.kv_headroom: float | None = None
        """Share (0-1) of the KV cache to leave free. None leaves room for the expected growth instead."""
        self.learned = ConcurrencyLimit()
        self.budget = StepBudget()
        self.bound: CapacityBound | None = CapacityBound.SLOTS
        """The bound that kept requests away when the counts last changed; None if the replica has room."""
        self.is_free = False
        """Whether the replica is in `Slots.free_replicas`."""
        self.below_max = False
        """Whether the replica is in `Slots.below_max`."""
        self.places = 0
        """How many more requests like the present ones would have fitted when the counts last changed."""
        self.context_tokens: int | None = None
        """Context (prompt and answer) that every model of the replica has; None if it is not known."""
        self.longest_tokens: int | None = None
        """Context that none of its models exceeds; None if it is not known."""
        self.told_context = False
        """Whether the contexts come from the replica's list of models."""
        self.proven_tokens = 0
        """The longest prompt with its answer that the replica has completed."""
        self.sample: Sample | None = None
        self.sample_at: float | None = None

    def __repr__(self) -> str:
        unread = f"{self.unprefilled_tokens} tokens unread"
        return f"<Replica {self.spec.name}, {self.state}, {self.in_flight} in flight of {self.slots} slots, {unread}>"

    def takes_name(self, name: str) -> bool:
        """Whether requests under this model name may be sent here."""
        return not self.models or name in self.models

    def read(self, prompt: UnreadPrompt) -> None:
        """Mark `prompt` as read by the engine. Does nothing if it is marked already."""
        if prompt.number in self.reading:
            del self.reading[prompt.number]
            self.unprefilled_tokens -= prompt.unread_tokens

    def expire_unread(self, now: float) -> None:
        """Mark prompts of unstreamed answers as read once their predicted TTFT has passed, because no first token will
        show it.
        """
        due: list[UnreadPrompt] = []
        for oldest in self.reading.values():
            if oldest.visible or oldest.prediction is None or now < oldest.opened_at + oldest.prediction.ttft_s:
                break
            due.append(oldest)
        for prompt in due:
            self.read(prompt)

    def learn_context(self, tokens: int) -> bool:
        """Learn the context from a refusal that named it. Returns whether that is news. A list of models is believed
        rather than refusals, and an answer that was longer is believed rather than either.
        """
        if self.told_context or tokens < self.proven_tokens or tokens == self.longest_tokens:
            return False
        self.context_tokens = self.longest_tokens = tokens
        return True

    def prove_context(self, tokens: int) -> bool:
        """Learn that the replica has completed a prompt and its answer of `tokens` together. Returns whether the
        context was believed to be shorter; it is unknown then.
        """
        self.proven_tokens = max(self.proven_tokens, tokens)
        if self.longest_tokens is None or tokens <= self.longest_tokens:
            return False
        self.longest_tokens = None
        return True

    def forget_context(self) -> None:
        """Forget what refusals and answers have shown: the replica may be another process now."""
        self.proven_tokens = 0
        if not self.told_context:
            self.context_tokens = self.longest_tokens = None

    @property
    def has_kv_room(self) -> bool:
        """Whether the KV cache has room for one more request."""
        growth_tokens = self.budget.total_growth_tokens
        return self.kv.has_room(self.total_in_flight, self.total_held_tokens, growth_tokens, self.kv_headroom)

    @property
    def total_in_flight(self) -> int:
        """Requests of this gateway and of all others that told theirs."""
        return self.in_flight + self.others.in_flight

    @property
    def total_held_tokens(self) -> int:
        """Tokens of context that these requests use."""
        return self.held_tokens + self.others.held_tokens

    @property
    def total_unread_tokens(self) -> int:
        """Prompt tokens of these requests that the engine has not read."""
        return self.unprefilled_tokens + self.others.unread_tokens

    def places_left(self, now: float) -> int:
        """How many more requests like the present ones fit by slots, KV cache and step budget."""
        if self.bound is not None:
            return 0
        growth_tokens, held_tokens = self.budget.total_growth_tokens, self.total_held_tokens
        by_kv = self.kv.places(self.total_in_flight, held_tokens, growth_tokens, self.kv_headroom)
        left = min(float(self.slots - self.total_in_flight), min(by_kv, self.budget.places(held_tokens, now)))
        return max(1, int(left))  # no bound is reached, so at least one fits

    def unread_of(self, prompt_tokens: int, request: Request) -> int:
        """Tokens of a prompt that the engine would have to compute, at least 1."""
        indexed = self.indexed_of(prompt_tokens, request)
        return prompt_tokens - self.expected_of(prompt_tokens, indexed) if indexed else prompt_tokens

    def expected_of(self, prompt_tokens: int, indexed_tokens: int) -> int:
        """Tokens of a prompt that the engine is expected to have cached. The engine always has to compute at least one
        token.
        """
        kept = self.cache.evidence.kept
        return min(prompt_tokens - 1, indexed_tokens if kept == 1.0 else int(kept * indexed_tokens))

    def indexed_of(self, prompt_tokens: int, request: Request) -> int:
        """Tokens of a prompt that are in the replica's prefix index."""
        prefix = request.affinity.prefix
        known = self.cache.matched(prefix)
        return prompt_tokens * known // prefix.size if known else 0

    def saw_load(self) -> None:
        """Tell the concurrency limit how many requests run and how many prompts are unread."""
        unread = len(self.reading) + self.others.unread_prompts
        self.learned.saw(max(0, self.total_in_flight - unread), unread)

    def await_stream(self, awaited: bool, now: float) -> None:
        """Record that the tokens of one more stream are awaited, or of one less."""
        if awaited:
            if not self.streams:
                self.health.silence.asked(now)
            self.streams += 1
        else:
            self.streams -= 1
            if not self.streams:
                self.health.silence.has_no_work(now)

    @property
    def state(self) -> ReplicaState:
        """Whether the replica gets requests, or why not."""
        if self.drained:
            return ReplicaState.DRAINED
        if not self.was_alive and self.health.state is not ReplicaState.UP:
            return ReplicaState.ABSENT
        return self.health.state

    @property
    def severity(self) -> int:
        """0: healthy, 1: slow or with odd answers, 2: silent or failing."""
        out = self.health.out
        return 0 if out is None else 1 if out in CAPPED else 2

    @property
    def keeps_state(self) -> bool:
        """Whether requests that no other replica may serve are sent here. They are sent even while the replica is
        ejected for slowness.
        """
        is_slow = self.severity == 1 and not self.drained
        return self.slots > 0 or is_slow

    def begin(self, now: float) -> None:
        """Begin a slow start."""
        self.began_at = now

    def view(self, pool: str, rests_s: float, bound: CapacityBound | None, now: float) -> ReplicaView:
        """A copy for the admin pages and metrics. `rests_s`: seconds of backoff left."""
        limit_s, told = self.budget.limit_s, self.cache.evidence
        return ReplicaView(
            name=self.spec.name,
            url=self.spec.url,
            pool=pool,
            state=self.state,
            in_flight=self.in_flight,
            unprefilled_tokens=self.unprefilled_tokens,
            failures=self.health.failures,
            sample=self.sample,
            sample_age_s=None if self.sample_at is None else now - self.sample_at,
            slots=self.slots,
            held_tokens=self.held_tokens,
            kv_capacity_tokens=self.kv.capacity_tokens,
            preemption_ratio=self.kv.preemption_ratio,
            health=self.health.view(now, self.share),
            refusals=self.refusals,
            rests_s=rests_s,
            step_s=self.budget.step_s(self.total_held_tokens, now),
            step_limit_s=None if limit_s == math.inf else limit_s,
            bound=bound,
            cache=CacheView(told.hit_rate, told.kept, told.predicted_tokens, told.reported_tokens),
            adapters=self.adapters.loaded(),
            others_in_flight=self.others.in_flight,
        )
