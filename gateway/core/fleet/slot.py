"""A slot is the right to have one request at a replica. It is acquired once and released once.

The counts that slots change are kept here as well, so that pools need not know attempts or requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Final, Generic, TypeVar

from gateway.core.estimators.rates import Rate
from gateway.core.fleet.replica import BaseReplica, UnreadPrompt
from gateway.core.fleet.routing import RANK
from gateway.core.fleet.step_budget import PROMPTS_TAU_S
from gateway.core.results import AttemptOutcome
from gateway.core.sample import ReplicaLoad
from gateway.core.snapshot import CapacityBound

R = TypeVar("R", bound=BaseReplica)

ENDS_TAU_S: Final = 5.0
UNREAD: Final = frozenset(
    {
        AttemptOutcome.REJECTED,
        AttemptOutcome.BUSY,
        AttemptOutcome.CLOSING,
        AttemptOutcome.UNREACHABLE,
        AttemptOutcome.CONNECT_TIMEOUT,
        AttemptOutcome.GATEWAY_LATE,
        AttemptOutcome.IDLE_CLOSED,
    }
)
"""Outcomes after which no engine has read any of the prompt."""


class Slots(Generic[R]):
    """The slots in use of one pool, and its replicas that have a free one."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.acquired = 0
        """Number of slots acquired since the start."""
        self.prefill_limit = math.inf
        """Limit on a replica's unread prompt tokens: at the limit, it is sent nothing more."""
        # The next three counts cover only replicas that get requests. They are recounted when a replica comes or goes.
        self.spare = 0
        self.others_by_tier: dict[str, int] = {}
        """Requests of other gateways under way at the pool, by tier, as they told it."""
        self.others_waiting: dict[int, int] = {}
        """Requests that wait for the pool at other gateways, by priority, as they told it."""
        self.by_tier: dict[str, int] = {}
        self.places = 0
        """How many more requests like the present ones fit at all replicas together."""
        self.ends = Rate(ENDS_TAU_S)
        """Rate at which requests end. Requests that no engine has read took no room, and do not count."""
        self.prompts = Rate(PROMPTS_TAU_S)
        """Unread prompt tokens that were sent, per second."""
        self.free_replicas: list[R] = []
        """Replicas that have room under all bounds, sorted by rank."""
        self.below_max: list[R] = []
        """Replicas that have room under the configured bounds alone, sorted by rank. Tiers whose admission mode is not
        `enforce` use them.
        """

    def acquire(
        self, replica: R, tier: str, prompt_tokens: int, unread_tokens: int, visible: bool, now: float
    ) -> Slot[R]:
        """Take a slot of `replica` for a request of `tier`, even if all `replica.slots` are in use, e.g. for a probe.

        `visible`: whether the first token of the answer will be seen.
        """
        self.in_flight += 1
        self.acquired += 1
        slot = Slot(self, replica, tier, prompt_tokens, unread_tokens, visible, now)
        if replica.slots:
            self.by_tier[tier] = self.by_tier.get(tier, 0) + 1
        if visible:
            replica.await_stream(True, now)
        replica.in_flight += 1
        self.count_spare(replica)
        replica.by_tier[tier] = replica.by_tier.get(tier, 0) + 1
        replica.kv.sent(now)
        replica.reading[slot.number] = slot
        replica.unprefilled_tokens += unread_tokens
        replica.held_tokens += prompt_tokens
        self.recount(replica, now)
        self.sync_max(replica)
        return slot

    def bound(self, replica: R, now: float) -> CapacityBound | None:
        """The bound that keeps `replica` from taking one more request; None if it has room. The size of the request is
        ignored.
        """
        if replica.total_in_flight >= replica.slots:
            return CapacityBound.SLOTS
        if not replica.has_kv_room:
            return CapacityBound.KV
        if not replica.budget.has_room(replica.total_held_tokens, now):
            return CapacityBound.TPOT
        return CapacityBound.PROMPTS if replica.total_unread_tokens >= self.prefill_limit else None

    def sync(self, replica: R, now: float) -> bool:
        """Update `free_replicas` after the counts of `replica` have changed. If it changes, `places` is updated too,
        and the result is True.
        """
        replica.bound = self.bound(replica, now)
        is_free = replica.bound is None
        if is_free is replica.is_free:
            return False
        replica.is_free = is_free
        if is_free:
            _insert(self.free_replicas, replica)
        else:
            del self.free_replicas[bisect_left(self.free_replicas, replica.rank, key=RANK)]
        self._count_places(replica, now)
        return True

    def recount(self, replica: R, now: float) -> None:
        """Update `free_replicas` and `places` after `replica` got or lost a request, or its limits moved."""
        if not self.sync(replica, now):
            self._count_places(replica, now)

    def count_spare(self, replica: R) -> None:
        """Update `spare` after the requests or slots of `replica` have changed."""
        spare = max(0, replica.slots - replica.total_in_flight)
        self.spare += spare - replica.spare
        replica.spare = spare

    def share_replica(self, replica: R, others: ReplicaLoad, now: float) -> None:
        """Set the load of `replica` by other gateways. Own counts stay as they are."""
        replica.imputed += others.in_flight - replica.others.in_flight
        replica.imputed_tokens += others.unread_tokens - replica.others.unread_tokens
        replica.others = replica.budget.others = others
        self.count_spare(replica)
        self.recount(replica, now)
        self.sync_max(replica)

    def _count_places(self, replica: R, now: float) -> None:
        places = replica.places_left(now)
        self.places += places - replica.places
        replica.places = places

    def sync_max(self, replica: R) -> None:
        """Update `below_max` after `replica.in_flight` has changed."""
        is_below = replica.total_in_flight < replica.max_slots
        if is_below is replica.below_max:
            return
        replica.below_max = is_below
        if is_below:
            _insert(self.below_max, replica)
        else:
            del self.below_max[bisect_left(self.below_max, replica.rank, key=RANK)]


def _insert(ranked: list[R], replica: R) -> None:
    # A recount of a whole pool adds each replica at the end, where no search is needed.
    at = bisect_left(ranked, replica.rank, key=RANK) if ranked and ranked[-1].rank > replica.rank else len(ranked)
    ranked.insert(at, replica)


class Slot(UnreadPrompt, Generic[R]):
    """The right to have one request at one replica, until its release."""

    __slots__ = ("_growth", "_resumed", "_sequences", "_slots", "paused", "prompt_tokens", "replica", "tier", "tokens")

    def __init__(
        self,
        slots: Slots[R],
        replica: R,
        tier: str,
        prompt_tokens: int,
        unread_tokens: int,
        visible: bool,
        now: float,
    ) -> None:
        super().__init__(slots.acquired, unread_tokens, visible, now)
        self.prompt_tokens = prompt_tokens
        self._slots = slots
        self.replica = replica
        self.tier = tier
        self.tokens = 0
        """Tokens of the answer so far."""
        self._sequences = 0
        """Number of sequences that the request adds to the replica's step budget; 0 before `expect`."""
        self._growth = 0.0
        self.paused = self._resumed = False
        """Whether the answer is paused, because its client is too slow; whether it was resumed since the last
        report.
        """

    def __repr__(self) -> str:
        state = "paused" if self.paused else "answering" if self.first_token else "open"
        return f"<Slot {self.number} of {self.replica.spec.name}, {self.tier}, {state}>"

    def prompt_read(self, now: float) -> None:
        """Record the first token. It shows that the prompt is read, and also the prompts of unstreamed answers that
        were sent there earlier.
        """
        replica = self.replica
        self.first_token = True
        read: list[UnreadPrompt] = []
        for earlier in replica.reading.values():
            if earlier is self:
                break
            if not earlier.visible:
                read.append(earlier)
        for earlier in read:
            replica.read(earlier)
        replica.read(self)
        replica.saw_load()
        self._slots.sync(replica, now)

    def progress(self, tokens: int, seconds: float, now: float) -> None:
        """Record that the answer has `tokens` so far. `seconds`: since its last report, or its first token."""
        replica, prediction = self.replica, self.prediction
        replica.held_tokens += tokens - self.tokens
        if self._resumed:
            self._resumed = False  # the tokens of the pause came at once
        elif self.first_token and prediction is not None and prediction.engine.costs.has_single_steps:
            steps = (tokens - (self.tokens or self._sequences)) // self._sequences
            if steps > 0 and seconds > 0.0:
                replica.budget.saw(steps, seconds, replica.total_held_tokens, now)
        self.tokens = tokens
        self._slots.sync(replica, now)

    def expect(self, sequences: int, output_tokens: float) -> None:
        """Expect an answer of `sequences` (>= 1) choices, with `output_tokens` in total."""
        self._sequences = sequences
        self._growth = output_tokens
        self.replica.budget.add(sequences, self.unread_tokens, output_tokens, self.opened_at)
        self._slots.prompts.add(self.opened_at, self.unread_tokens)
        self._slots.sync(self.replica, self.opened_at)

    def was_sent_before(self, now: float) -> None:
        """Take the prompt out of the rates of the last seconds, because it was sent long ago."""
        self.replica.budget.take_back(self.unread_tokens, self.opened_at, now)
        self._slots.prompts.take_back(self.opened_at, now, self.unread_tokens)

    def expect_more(self, output_tokens: float) -> None:
        """Update the number of output tokens that are still expected."""
        if self._sequences:
            self.replica.budget.grow(output_tokens - self._growth)
            self._growth = output_tokens

    def pause(self, now: float) -> None:
        """Record that the answer is not being read."""
        if not self.paused:
            self.paused = True
            self.replica.paused += 1
            if self.visible:
                self.replica.await_stream(False, now)

    def resume(self, now: float) -> None:
        """Record that the answer is being read again."""
        if self.paused:
            self.paused = False
            self._resumed = True
            self.replica.paused -= 1
            if self.visible:
                self.replica.await_stream(True, now)

    def release(self, outcome: AttemptOutcome, left_tokens: int, now: float) -> None:
        """Give the slot back. `left_tokens`: the part of the prompt that the engine never read. No rate counts it any
        more.
        """
        replica, slots, tier = self.replica, self._slots, self.tier
        replica.read(self)
        replica.expire_unread(now)
        if outcome is AttemptOutcome.COMPLETE and not self.visible:
            replica.saw_load()  # the end of an unstreamed answer is the only sign that its prompt was read
        replica.held_tokens -= self.prompt_tokens + self.tokens
        if self._sequences:
            replica.budget.remove(self._sequences, self._growth)
            if left_tokens:
                replica.budget.take_back(left_tokens, self.opened_at, now)
                slots.prompts.take_back(self.opened_at, now, left_tokens)
        slots.in_flight -= 1
        if self.paused:
            replica.paused -= 1
        elif self.visible:
            replica.await_stream(False, now)
        replica.in_flight -= 1
        slots.count_spare(replica)
        replica.by_tier[tier] -= 1
        if replica.slots:
            slots.by_tier[tier] -= 1
        if outcome not in UNREAD:
            slots.ends.add(now)
        slots.recount(replica, now)
        slots.sync_max(replica)
