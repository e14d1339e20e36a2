"""The replicas of a pool: which of them may be used, how many slots each has, and which one a request gets.

Two kinds of bounds keep a request from a replica. Configured bounds (`slots`, breaker, drain) apply to every tier.
Learned bounds (learned slots, slow start, unread prompts, KV cache) may be wrong, so they apply only in mode `enforce`.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Final

from gateway.core.estimators.rates import DrainRate
from gateway.core.fleet.autoscale import Demand
from gateway.core.fleet.contexts import Contexts
from gateway.core.fleet.eligibility import ServedNames, by_load, eased_in, takes_now, with_adapter, with_model
from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.health.replica_health import SWEEP_S
from gateway.core.fleet.imputed_load import ImputedLoad
from gateway.core.fleet.judging.judge import Judge
from gateway.core.fleet.prefix_cache.prefix_index import Holders, holding
from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.routing import ROUTERS, LeastPrefill, OwnRouter
from gateway.core.fleet.slot import Slots
from gateway.core.policy import AdmissionMode, PoolSpec, ReplicaSpec, Tier
from gateway.core.queueing.headroom import AskedTiers
from gateway.core.queueing.queue import PoolQueue
from gateway.core.request import Request
from gateway.core.serving import sent_name
from gateway.core.sessions import draw, most_in_flight
from gateway.core.snapshot import CapacityBound, PoolView, ReplicaState

MIN_START: Final = 0.1  # share (0-1) of its slots that a replica has at the start of a slow start
MENDED_START: Final = 0.5  # `MIN_START` after good probes, when the replica's caches are warm
PROBE_EVERY: Final = 200  # at most one request in this many is a probe, so that probes do not decide a pool's p99
PROBE_LATEST_S: Final = 60.0  # after this time a probe may be sent although fewer requests than `PROBE_EVERY` came
MAX_URGENT: Final = -(2**31)
TRIED_NEXT: Final = 0.0  # stands for the end of a backoff that is over, until the replica has accepted a request
WINDOW_STEP: Final = 0.1  # smaller relative changes of the prefill limit are ignored: each one recounts all replicas
NO_MAX: Final = 2**31  # stands for "no configured limit"
SUSPECT_EVERY: Final = 10  # one request in this many may go to a replica suspected of odd answers
REQUEST_TOKENS: Final = 200.0  # price of a request in flight, in prompt tokens, until costs are learned
PRICE_SHARE: Final = 0.1  # weight of each new price in the running mean
SERVING: Final = (ReplicaState.UP, ReplicaState.EJECTED)
_tried_at: Final = attrgetter("health.tried_at")


class Replica(BaseReplica):
    """One engine, with the pool that it serves, or served before a reload removed it."""

    __slots__ = ("pool",)

    def __init__(self, spec: ReplicaSpec, pool: Pool) -> None:
        super().__init__(spec)
        self.pool = pool


class Pool(Slots[Replica]):
    """One pool: its replicas, their slots, and its queue."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__()
        self.spec = spec
        self.replicas: dict[str, Replica] = {}
        self.queue = PoolQueue()
        self.drain = DrainRate()
        self.demand = Demand()
        self.contexts = Contexts()
        self.pressed_at = -math.inf
        """Time when a request was last queued, or exceeded the learned slots."""
        self.names = ServedNames()
        self.asked = AskedTiers()
        self.router: OwnRouter = ROUTERS[spec.router]()
        self.holders: Holders = {}
        self.knows_caches = False
        """Whether the router takes prefix caches into account."""
        self.request_tokens = REQUEST_TOKENS  # price of a request in flight
        self._slots = 0
        self._is_starting = False
        """Whether any replica is in slow start."""
        self._reserved: dict[str, int] = {}
        self.backoffs: dict[Replica, float] = {}
        """End of the backoff, by replica."""
        self.judge = Judge()
        self.imputed = ImputedLoad()
        self._is_tried = False
        """Whether replicas that were down are tried again beside replicas that are up."""
        self._worst = 0
        """Replicas with a worse severity than this are not used: 0 healthy, 1 slow, 2 silent or failing."""
        self.probes: list[Replica] = []
        """Ejected replicas that are due for a probe; first the one whose last probe is the oldest."""
        self.probe_priority = 0
        """Only requests of tiers with this priority, or less urgent ones, are used as probes."""
        self._tried_acquired, self._tried_at = -PROBE_EVERY, -math.inf
        """The value of `acquired`, and the time, when the last probe was sent."""
        self.least_urgent = 0
        """Priority of the least urgent tier that may use this pool."""
        self.configure(spec)

    def __repr__(self) -> str:
        load = f"{self.in_flight} in flight of {self._slots} slots, {len(self.queue)} queued"
        return f"<Pool {self.spec.name}, {load}, replicas {[*self.replicas.values()]}>"

    def configure(self, spec: PoolSpec, now: float = -math.inf) -> None:
        """Apply a new specification. Replicas with the same name and URL as before keep their state.

        A new replica gets a slow start. It is drained if its name or its server was drained before.
        """
        if spec.router != self.spec.router:
            self.router = ROUTERS[spec.router]()
        self.spec = spec
        self.knows_caches = spec.affinity and isinstance(self.router, LeastPrefill)
        kept = self.replicas
        drained = {old.spec.server for old in kept.values() if old.drained}
        drained -= {old.spec.server for old in kept.values() if not old.drained}
        self.replicas = {}
        for replica_spec in spec.replicas:
            old = kept.get(replica_spec.name)
            if old is not None and old.spec == replica_spec:
                self.replicas[replica_spec.name] = kept.pop(replica_spec.name)
            else:
                new = self.replicas[replica_spec.name] = Replica(replica_spec, self)
                new.cache.holders = self.holders
                new.begin(now)
                new.drained = replica_spec.server in drained if old is None else old.drained
        for gone in kept.values():
            self.backoffs.pop(gone, None)
            self.names.listed(gone, frozenset())
            gone.cache.clear()
            gone.slots = gone.max_slots = gone.places = 0
            gone.is_free = gone.below_max = False
        self.refresh(now)

    def refresh(self, now: float) -> None:
        """Recount the slots of the pool after the state of a replica has changed. It is not called per request."""
        self.by_tier = {}
        self._worst = self._panic()
        for rank, replica in enumerate(self.replicas.values()):
            replica.rank = rank
            replica.kv_headroom = self.spec.kv_headroom
            replica.max_slots = self._max_slots_of(replica)
            replica.slots = self._slots_of(replica)
            if replica.slots:
                for tier, count in replica.by_tier.items():
                    self.by_tier[tier] = self.by_tier.get(tier, 0) + count
        self.probes = [r for r in self.probes if r.state is ReplicaState.EJECTED and self._has(r)]
        states = {replica.state for replica in self.replicas.values() if replica.slots}
        self._is_tried = ReplicaState.PROBING in states and len(states) > 1
        self.free_replicas = []
        self.below_max = []
        self.places = 0
        for replica in self.replicas.values():
            replica.is_free = replica.below_max = False
            replica.places = 0
            self.recount(replica, now)
            self.sync_max(replica)
        self._is_starting = any(r.share < 1.0 for r in self.below_max)
        self.spare = sum(r.slots - r.in_flight for r in self.replicas.values() if r.in_flight < r.slots)
        self._slots = sum(r.slots for r in self.replicas.values())
        self._reserve()
        self.contexts.compare([*self.replicas.values()])

    def _max_slots_of(self, replica: Replica) -> int:
        """Slots of a replica by configured bounds; 0 if it may not be used."""
        if replica.drained or replica.severity > self._worst:
            return 0
        match replica.health.state:
            case ReplicaState.DOWN:
                return 0
            case ReplicaState.PROBING:
                return 1
            case _:
                return NO_MAX if self.spec.slots is None else self.spec.slots

    def _slots_of(self, replica: Replica) -> int:
        """Slots of a replica by configured and learned bounds."""
        slots = replica.max_slots
        if slots == 0 or replica.health.state is ReplicaState.PROBING:
            return slots
        slots = min(slots, replica.learned.slots) if self.spec.slots is None else slots
        return slots if replica.share >= 1.0 else max(1, int(slots * replica.share))

    def _panic(self) -> int:
        """Worst severity that a replica in use may have. Silent and failing ones are used if there are no others."""
        meant = [r for r in self.replicas.values() if not r.drained and r.state is not ReplicaState.ABSENT]
        up = [replica.severity for replica in meant if replica.health.state in SERVING]
        ejection = self.spec.health.ejection
        well = up.count(0)
        if ejection is None or (well and well >= ejection.panic_share * len(meant)):
            return 0
        return 1 if min(up, default=2) < 2 else 2

    def check(self, now: float) -> float:
        """Eject outliers, end ejections, and advance slow starts. Returns seconds until the next call.

        The caller must call `refresh` afterwards.
        """
        health = self.spec.health
        self.probes = []
        busy = False
        self.judge.answers.fade(list(self.replicas.values()))
        if health.ejection is None:
            for replica in self.replicas.values():
                if not replica.health.is_typical:
                    replica.health.take_back(now)
        else:
            meant = [replica for replica in self.replicas.values() if not replica.drained]
            for back in self.judge.check(meant, health.ejection, now):
                mended = back.health.proven > 0.0
                back.begin(now - (MENDED_START * health.slow_start_s if mended else 0.0))
            self._find_probes(meant, health.ejection.probe_s, now)
            busy = self.in_flight > 0 or any(replica.health.out is not None for replica in meant)
        for replica in self.replicas.values():
            passed_s = now - replica.began_at
            is_new = passed_s < health.slow_start_s
            replica.share = max(MIN_START, passed_s / health.slow_start_s) if is_new else 1.0
            busy = busy or is_new
        return SWEEP_S if busy else math.inf

    def _find_probes(self, meant: list[Replica], every_s: float, now: float) -> None:
        self.probe_priority = self.least_urgent
        for replica in meant:
            health = replica.health
            is_in_there = any(prompt.opened_at >= health.tried_at for prompt in replica.reading.values())
            if not is_in_there and health.may_be_tried(replica.in_flight, now):
                self.probes.append(replica)
                if now - health.probe_at >= every_s:
                    self.probe_priority = MAX_URGENT  # no request of the least urgent tier came, so any tier may probe
        self.probes.sort(key=_tried_at)

    def probe(self, request: Request, now: float) -> Replica | None:
        """An ejected replica to send `request` to; None if no probe is due."""
        ejection = self.spec.health.ejection
        if not self.probes or ejection is None or request.tier.priority < self.probe_priority:
            return None
        name = sent_name(request)
        is_due = self.acquired - self._tried_acquired >= PROBE_EVERY or now - self._tried_at >= PROBE_LATEST_S
        for replica in self.probes:
            is_wanted = is_due or replica.health.proven > 0.0 or replica.health.out is EjectionReason.FAILING
            if is_wanted and replica.takes_name(name):
                if not replica.health.proven:
                    self._tried_acquired, self._tried_at = self.acquired, now
                self.probes.remove(replica)
                replica.health.try_it(ejection, now)
                return replica
        return None

    def _reserve(self) -> None:
        self._reserved = _shares(self.spec.reserve, self._slots)

    def tune(self, replica: Replica, prefill_limit: float, now: float) -> None:
        """Apply the bounds learned for `replica`. O(1), unless `prefill_limit` changes."""
        replica.expire_unread(now)
        replica.learned.kept = self.asked.most_kept / max(1.0, self.serving)
        replica.learned.learn(now if self.queue else self.pressed_at, now)
        price = replica.budget.request_tokens(replica.held_tokens)
        if price is not None:
            self.request_tokens += PRICE_SHARE * (price - self.request_tokens)
        slots = self._slots_of(replica)
        if slots != replica.slots:
            self.spare += max(0, slots - replica.in_flight) - max(0, replica.slots - replica.in_flight)
            self._slots += slots - replica.slots
            replica.slots = slots
            self._reserve()
        if abs(prefill_limit - self.prefill_limit) > WINDOW_STEP * prefill_limit:
            self.prefill_limit = prefill_limit
            for other in self.replicas.values():
                self.recount(other, now)
        else:
            self.recount(replica, now)

    @property
    def alive(self) -> bool:
        """Whether any replica takes requests, now or once it has a free slot."""
        return self._slots > 0

    @property
    def slots(self) -> int:
        """Total slots of the replicas that get requests."""
        return self._slots

    @property
    def full(self) -> bool:
        """Whether learned bounds leave no room at any replica."""
        return not self.free_replicas

    @property
    def saturated(self) -> bool:
        """Whether a new request of a tier with mode `enforce` would have to wait."""
        return not self.free_replicas or len(self.queue) > 0

    @property
    def headroom(self) -> float:
        """Share (0-1) of the pool's slots that is free; 0 if it has no slots."""
        return self.spare / self._slots if self._slots else 0.0

    def may_serve(self, request: Request) -> bool:
        """Whether a replica takes the model of `request`, in use or not."""
        return self.names.is_taken_by_any(sent_name(request), self.replicas.values())

    def serves(self, request: Request) -> bool:
        """Whether a replica that gets requests takes the model of `request`."""
        if request.adapter and not self.lists(request.adapter):
            return False
        name = sent_name(request)
        if self.names.is_taken_by_all(name):
            return self._slots > 0
        return any(replica.slots > 0 and replica.takes_name(name) for replica in self.replicas.values())

    def pick(
        self, request: Request, needs_tokens: int, random: float, avoid: Replica | None = None, by_max: bool = False
    ) -> Replica | None:
        """The replica for a request that needs this context; None if it has to wait. `random` in [0, 1) settles ties.

        `avoid`: the replica of an earlier attempt; if given, replicas with recent failures are avoided as well.
        `by_max`: only configured bounds apply, whatever the tier.
        """
        by_max = by_max or request.tier.admission.mode is not AdmissionMode.ENFORCE
        free = self._ready(by_max)
        home = None if request.session is None and request.stored is None else self.home(request)
        if request.prefix.blocks and not by_max and self.knows_caches:
            free = free + self._warm(request)
        free = with_model(free, self.names, request)
        if self.is_pinned(request):
            free = [replica for replica in free if replica is home]
            if home is not None and not home.slots and home.keeps_state and home is not avoid:
                takes = takes_now(home, request)
                return home if takes and home.in_flight < (self.spec.slots or home.learned.slots) else None
        elif self.contexts.tell_apart(needs_tokens):
            free = [replica for replica in free if self.contexts.fits(needs_tokens, replica)]
        if request.adapter:
            free = with_adapter(free, request.adapter)
        if self._is_tried and self.judge.answers.doubts(request):
            free = [replica for replica in free if replica.state is not ReplicaState.PROBING]
        if self.judge.answers.suspects and (self.acquired % SUSPECT_EVERY or avoid is not None):
            free = [replica for replica in free if not replica.health.suspected] or free
        if avoid is not None:
            free = [replica for replica in free if replica is not avoid]
            free = [replica for replica in free if replica.spec.server != avoid.spec.server] or free
            free = [replica for replica in free if not replica.health.failures] or free
        if not free or not self._may_take(request.tier, by_max):
            return None
        return self.router.pick(free, random, request.prefix, self.request_tokens, home)

    def is_pinned(self, request: Request) -> bool:
        """Whether a request may be served only by its home replica."""
        return request.stored is not None or (self.spec.strict_sessions and request.session is not None)

    def home(self, request: Request) -> Replica | None:
        """The replica of the stored response that `request` continues, or else the first in its session's hash order.

        The home of a pinned request may be out of use. Any other home is in use and not much busier than the mean.
        """
        if request.stored is not None:
            return self.replicas.get(request.stored.replica)
        session, is_strict = request.session, self.spec.strict_sessions
        if session is None or not (self.knows_caches or is_strict):
            return None
        serving = len(self.replicas) if is_strict else sum(replica.slots > 0 for replica in self.replicas.values())
        if not serving:
            return None
        most = most_in_flight(self.in_flight, serving)
        found: Replica | None = None
        largest = -1
        name = sent_name(request)
        for replica in self.replicas.values():
            if replica.takes_name(name) and (is_strict or (replica.slots and replica.in_flight < most)):
                drawn = draw(session.key, replica.session_key)
                if drawn > largest:
                    found, largest = replica, drawn
        return found

    def lists(self, adapter: str) -> bool:
        """Whether any replica lists this LoRA adapter."""
        return any(adapter in replica.adapters.listed for replica in self.replicas.values())

    def _warm(self, request: Request) -> list[Replica]:
        """Replicas at the limit of unread prompts, but usable since they have cached enough of this prompt.

        It reads no more before the first token than a replica below the limit that has cached none of the prompt.
        """
        most, held = self.prefill_limit, holding(request.prefix, self.holders)
        return [
            replica
            for replica in (self.replicas.values() if held else ())
            if replica.bound is CapacityBound.PROMPTS
            and replica.cache in held
            and replica.unprefilled_tokens - replica.cache.covered_tokens(request.prefix) < most
            and not self.is_backing_off(replica)
        ]

    def _ready(self, by_max: bool) -> list[Replica]:
        """Replicas with a free slot. Those in backoff are left out while any other is in use, even a busy one."""
        free = self.below_max if by_max else self.free_replicas
        if self.backoffs:
            ready = [replica for replica in free if not self.is_backing_off(replica)]
            free = ready if ready or self._is_any_without_backoff() else free
        return eased_in(free) if by_max and self._is_starting else free

    def _is_any_without_backoff(self) -> bool:
        """Whether any replica in use has no backoff. It may be busy: then requests wait for it."""
        return any(replica.slots > 0 and not self.is_backing_off(replica) for replica in self.replicas.values())

    def is_backing_off(self, replica: Replica) -> bool:
        """Whether `replica` is in backoff. When its time is over, one request tries the replica before others may."""
        until = self.backoffs.get(replica)
        return until is not None and (until > TRIED_NEXT or replica.in_flight > 0)

    def least_unread(self, prompt_tokens: int, request: Request) -> int:
        """Tokens of a prompt that are left to read at the usable replica with the longest cached part."""
        if not request.prefix.blocks:
            return prompt_tokens
        home = self.home(request) if self.is_pinned(request) else None
        held = holding(request.prefix, self.holders)
        usable = [home] if home is not None else [r for r in self.replicas.values() if r.cache in held and r.slots]
        return min((r.unread_of(prompt_tokens, request) for r in usable), default=prompt_tokens)

    def ready(self, tier: Tier) -> list[Replica]:
        """Replicas that `tier` may use now, whatever their models."""
        by_max = tier.admission.mode is not AdmissionMode.ENFORCE
        return self._ready(by_max) if self._may_take(tier, by_max) else []

    def candidates(self, request: Request) -> list[Replica]:
        """Replicas that `request` may use now, in the order of `_load`. Room for its LoRA adapter is left out."""
        return sorted(with_model(self.ready(request.tier), self.names, request), key=by_load)

    def _may_take(self, tier: Tier, by_max: bool) -> bool:
        """Whether a slot is free for `tier`, besides the free slots that are reserved for other tiers."""
        if not by_max:
            kept = self.asked.kept_from(tier, self.queue.is_owed(tier))
            if kept and self.places <= kept:
                return False
            spare, reserve = self.spare, self._reserved
        elif self.spec.slots is None or not self._reserved:
            return True
        else:
            slots, spare = 0, 0
            for replica in self.replicas.values():
                slots += replica.max_slots
                spare += max(0, replica.max_slots - replica.in_flight)
            reserve = _shares(self.spec.reserve, slots)
        for other, reserved in reserve.items():
            if other != tier.name:
                spare -= max(0, reserved - self.by_tier.get(other, 0))
        return spare > 0

    def back_off(self, replica: Replica, until: float) -> None:
        """Begin a backoff of `replica`. Ignored for a removed replica, which gets no requests anyway."""
        if self._has(replica):
            self.backoffs[replica] = until

    def _has(self, replica: Replica) -> bool:
        """Whether `replica` belongs to this pool. A replica that a reload removed may still have requests."""
        return self.replicas.get(replica.spec.name) is replica

    def backoff_s(self, replica: Replica, now: float) -> float:
        """Seconds of backoff left; 0 if there is none."""
        return max(0.0, self.backoffs.get(replica, now) - now)

    def end_backoffs(self, now: float) -> float:
        """End the backoffs that are over. Returns the time when the next one ends; inf if there is none."""
        for replica, until in self.backoffs.items():
            if until <= now:
                self.backoffs[replica] = TRIED_NEXT
        return min((until for until in self.backoffs.values() if until > TRIED_NEXT), default=math.inf)

    def accepted(self, replica: Replica) -> None:
        """End the backoff of a replica that has accepted a request."""
        replica.refusals = 0
        self.backoffs.pop(replica, None)

    @property
    def serving(self) -> float:
        """Number of replicas that get requests. A replica in slow start counts as a fraction."""
        return math.fsum(replica.share for replica in self.replicas.values() if replica.slots)

    def view(self, now: float, held: int, held_s: float) -> PoolView:
        """A copy for the admin pages and metrics. `held` and `held_s` come from `held_by_pool`."""
        return PoolView(
            name=self.spec.name,
            in_flight=self.in_flight,
            queued=len(self.queue),
            queued_bytes=self.queue.bytes,
            queue_limit=self.spec.queue_limit,
            slots=self.slots,
            drain_rate=self.drain.per_s(),
            replicas=tuple(
                r.view(self.spec.name, self.backoff_s(r, now), self.bound(r, now), now) for r in self.replicas.values()
            ),
            panic=any(r.slots and r.severity for r in self.replicas.values()),
            held=held,
            held_s=held_s,
            scale=self.demand.view(now),
            prefill_limit_tokens=None if self.prefill_limit == math.inf else self.prefill_limit,
        )


def _shares(reserve: tuple[tuple[str, float], ...], slots: int) -> dict[str, int]:
    # 1e-6 is added, because shares are not exact in binary: .29 of 100 is 28.999999999999996.
    return {tier: int(share * slots + 1e-6) for tier, share in reserve}
