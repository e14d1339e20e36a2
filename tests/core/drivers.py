"""Policies of every kind, and a driver that makes any legal call to a controller and checks each answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from hypothesis import strategies as st

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.deadlines import next_deadline
from gateway.core.fleet.health.replica_health import CAPPED
from gateway.core.fleet.judging.terms import most_slow
from gateway.core.fleet.pool import Pool, Replica
from gateway.core.fleet.routing import ROUTERS
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, AdmissionSpec, Caps, Limits, Model, OnTotal, Policy, Retry, Tier
from gateway.core.pool_spec import Ejection, Health, Hold, PoolSpec, ReplicaSpec, Timeouts
from gateway.core.prediction import Ahead, Forecast
from gateway.core.queueing.queued_request import QueuedRequest
from gateway.core.request import Request
from gateway.core.request_state import Attempt, RequestState
from gateway.core.results import AttemptOutcome, AttemptResult, HedgeResult, Outcome, Reason, Record
from gateway.core.scheduling.explanation import MiddleDraw, PlacementExplanation
from gateway.core.scheduling.placement import Unplaceable
from gateway.core.scheduling.state import BREAKERS
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import CapacityBound, ReplicaState, Trust
from gateway.observe.build_info import is_compiled

TIERS = ("t0", "t1", "t2")
POOLS = ("p0", "p1", "p2")
TENANTS = ("acme", "globex")

FORESEEN = 2

QUOTA = (Reason.LIMIT_REQUESTS, Reason.LIMIT_TOKENS, Reason.LIMIT_CONCURRENCY)

seconds = st.sampled_from([0.5, 1.0, 3.0, 10.0, math.inf])
timeouts = st.builds(Timeouts, seconds, seconds, seconds, seconds)


TTFT = Slo(ttft=(Objective(0.5, 0.4), Objective(0.99, 2.0)))
EVERYTHING = Slo(
    ttft=(Objective(0.99, 1.0),), tpot=(Objective(0.9, 0.1),), e2e=(Objective(0.99, 5.0),), e2e_up_to_tokens=60
)
admissions = st.builds(
    AdmissionSpec,
    st.sampled_from([AdmissionMode.ENFORCE, AdmissionMode.ENFORCE, AdmissionMode.SHADOW, AdmissionMode.OFF]),
    st.sampled_from([0.02, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3]),
)


healths = st.builds(
    Health,
    failures=st.integers(1, 3),
    open_s=st.sampled_from([0.7, 2.0]),
    slow_start_s=st.sampled_from([0.0, 0.0, 3.0]),
    ejection=st.sampled_from(
        [None, Ejection(), Ejection(slowdown=1.05, time_s=2.0, max_time_s=4.0, probe_s=0.5, stall_s=0.6)]
    ),
)


@st.composite
def tiers(draw: st.DrawFn, name: str) -> Tier:
    limits = Limits(
        draw(st.sampled_from([None, None, 3.0, 60.0])),
        draw(st.sampled_from([None, None, 400.0, 10_000.0])),
        draw(st.sampled_from([None, None, 1, 4])),
    )
    return Tier(
        name,
        priority=draw(st.integers(0, 2)),
        pools=draw(st.sampled_from([None, None, None, ("p0",), ("p1", "p2")])),
        timeouts=draw(timeouts),
        on_total=draw(st.sampled_from(OnTotal)),
        limits=limits,
        caps=Caps(max_tokens_default=50, max_tokens_limit=100, degrade=draw(st.booleans())),
        floor=draw(st.sampled_from([0.0, 0.05, 0.3])),
        slo=draw(st.sampled_from([Slo(), TTFT, EVERYTHING])),
        admission=draw(admissions),
        retry=Retry(draw(st.sampled_from([0.0, 0.1, 1.0]))),
    )


@st.composite
def pools(draw: st.DrawFn, name: str) -> PoolSpec:
    return PoolSpec(
        name,
        tuple(ReplicaSpec(f"{name}r{i}", f"http://{name}r{i}:1") for i in range(draw(st.integers(1, 3)))),
        max_prompt_tokens=draw(st.sampled_from([None, None, 150, 1000])),
        slots=draw(st.sampled_from([1, 1, 2, 3, None])),
        queue_limit=draw(st.integers(0, 4)),
        queue_bytes=draw(st.sampled_from([1500, 4000, 10**6])),
        timeouts=draw(timeouts),
        reserve=draw(st.sampled_from([(), (("t0", 0.5),), (("t1", 0.34), ("t2", 0.5)), (("t2", 1.0),)])),
        spill_from=draw(st.sampled_from([(), (), tuple(other for other in POOLS if other != name)])),
        router=draw(st.sampled_from(sorted(ROUTERS))),
        health=draw(healths),
        hold=draw(st.sampled_from([None, None, Hold(5.0, 3, 10_000)])),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """A random policy: one to three pools with different settings, three tiers."""
    names = draw(st.sampled_from([("p0",), ("p0", "p1"), ("p2", "p0"), POOLS]))
    model = Model("m", names)
    return Policy(
        models={"m": model},
        pools={name: draw(pools(name)) for name in names},
        tiers={name: draw(tiers(name)) for name in TIERS},
        keys={},
        default_tier="t0",
    )


@st.composite
def strict_policies(draw: st.DrawFn) -> Policy:
    """The same with strict sessions, and a fallback for some tiers in a pool of its own."""
    rules = draw(policies())
    affinity, strict = draw(st.booleans()), draw(st.booleans())
    own = {name: replace(spec, affinity=affinity, strict_sessions=strict) for name, spec in rules.pools.items()}
    falls_back = draw(st.booleans())
    tiers = {name: replace(tier, pools=None, fallback="small" * falls_back) for name, tier in rules.tiers.items()}
    models = {**rules.models, "small": Model("small", ("spare",))}
    return replace(rules, models=models, pools={**own, "spare": draw(pools("spare"))}, tiers=tiers)


@st.composite
def roomy_policies(draw: st.DrawFn) -> Policy:
    """The same with four slots at each replica, so that adapters run short before slots do."""
    rules = draw(policies())
    pools = {name: replace(spec, slots=4, reserve=()) for name, spec in rules.pools.items()}
    tiers = {name: replace(tier, pools=None, limits=Limits()) for name, tier in rules.tiers.items()}
    return replace(rules, pools=pools, tiers=tiers)


def hedge(controller: Controller, attempt_id: int, now: float) -> list[Command]:
    """Hedges at any time, even before TTFT quantiles are known."""
    state = controller.state.attempts[attempt_id].state
    first = state.open[0].replica
    commands = controller.state.call.begin(now)
    free = first.pool.pick(state.request, state.needs_tokens, 0.0, first)
    if state.outcome is None and state.committed is None and free is not None:
        state.hedged = HedgeResult.FAILED
        controller.scheduler.dispatch(state, free, hedge=True)
    return commands


def controller_of(policy: Policy, seed: int) -> Controller:
    """A controller.

    If `seed` is odd, it acts on its forecasts from the first request on, and they are random. From `FORESEEN` on its
    draws are the ones that `explain` assumes.
    """
    controller = Controller(policy, Random(seed) if seed < FORESEEN else MiddleDraw())
    if seed % 2 and not is_compiled():  # methods of a compiled class cannot be replaced
        forecaster = controller.forecaster
        honest = forecaster.forecast

        def forecast(offer: Offer, replica: Replica | None, ahead: Ahead, now: float) -> Forecast:
            found = honest(offer, replica, ahead, now)
            found.breach = (offer.request.id * 37 + offer.max_tokens * 11 + int(now * 8) * 13) % 101 / 100
            return found

        stubbed: Any = forecaster
        stubbed.forecast = forecast
        stubbed.trust = lambda pool: Trust.TRUSTED
    return controller


@dataclass
class Seen:
    """The events of one request, as seen by the client and the exchange."""

    request: Request
    arrived_at: float
    dispatches: int = 0
    dispatched_at: float | None = None
    """Time from which the exchange counts it in its pool."""
    committed: bool = False
    was_sent: bool = False
    refused: Reason | None = None
    """The reason why there is no answer, or why it was not completed."""
    cut: bool = False
    left: bool = False
    record: Record | None = None


class Driver:
    """Makes calls, keeps its own count from the answers, and compares counts after each call."""

    def __init__(self, policy: Policy, seed: int, in_order: bool = True) -> None:
        """If `in_order` is False, requests may overtake others that wait for their own replicas."""
        self.controller = controller_of(policy, seed)
        self.in_order = in_order
        self.now = 0.0
        self.seen: dict[int, Seen] = {}
        self.open: dict[int, int] = {}
        """Ids of open attempts, with the ids of their requests."""
        self.cancelled: set[int] = set()
        self.calls: list[tuple[str, tuple[object, ...], list[Command]]] = []
        self.policy, self.seed = policy, seed

    # ---- calls

    def arrive(self, request: Request) -> None:
        self.seen[request.id] = Seen(request, self.now)
        before = {pool.spec.name: len(_shared(pool, request.tier)) for pool in self.controller.state.fleet}
        explained = self.controller.explain(request, self.now)
        self._call("arrive", request, self.now)
        state = self.controller.state.requests.get(request.id)
        if self.seed >= FORESEEN and self.in_order and (state is None or state.held_by is None):
            self._check_explained(request, explained)
        if state is not None and state.waiting and request.tier.admission.mode is AdmissionMode.ENFORCE:
            assert state.pool is not None
            shared, spec = _shared(state.pool, request.tier), state.pool.spec
            assert len(shared) <= max(spec.queue_limit, before[spec.name])
            assert sum(other.request.body_bytes for other in shared) <= spec.queue_bytes

    def _check_explained(self, request: Request, found: PlacementExplanation | Unplaceable) -> None:
        """The verdict of explain before the arrival must be the outcome of the arrival."""
        seen, sent = self.seen[request.id], request.id in self.open.values()
        if seen.refused is Reason.QUARANTINED:
            return
        became = "sent" if sent else "waits" if seen.refused is None else "refused"
        said = "refused" if isinstance(found, Unplaceable) else found.verdict
        assert said == became, (found, seen)
        if seen.refused in QUOTA:
            assert isinstance(found, PlacementExplanation)
            assert found.constraint == seen.refused

    def leave(self, request_id: int) -> None:
        seen = self.seen[request_id]
        seen.left = seen.left or seen.refused is None
        self._call("leave", request_id, self.now)

    def finish(self, attempt: int, finish: AttemptResult) -> None:
        request = self.open.pop(attempt)
        self.cancelled.discard(attempt)
        seen = self.seen[request]
        seen.was_sent = seen.was_sent or self.controller.state.attempts[attempt].sent_at is not None
        is_over = seen.left or seen.refused is not None
        if not seen.was_sent and request not in self.open.values() and not is_over:
            seen.dispatched_at = None
        self._call("finish", attempt, finish, self.now, closing=(attempt, request))

    def hedge(self, attempt_id: int) -> None:
        """Open a second attempt beside an open one, as a hedge would."""
        out = hedge(self.controller, attempt_id, self.now)
        self.calls.append(("hedge", (attempt_id, self.now), out))
        self._hear(out, None)
        self.check()

    def tell(self, what: str, *args: object) -> None:
        """Any other call."""
        self._call(what, *args, self.now)

    def pass_time(self, duration_s: float) -> None:
        """Let `duration_s` pass, and wake the controller when it asked for it."""
        until = self.now + duration_s
        while (at := self.controller.wake_at()) <= until:
            # A deadline may have passed already when it is set: a reload can move a request to another pool.
            self.now = max(at, self.now)
            self._call("wake", self.now)
            assert self.controller.wake_at() > self.now, "an alarm that rang is still due"
        self.now = until

    def end_all(self) -> None:
        """End every request and close every attempt; then check that nothing is held."""
        self._call("shut", self.now)
        for attempt in list(self.open):
            self.finish(attempt, AttemptResult(AttemptOutcome.CANCELLED))
        controller = self.controller
        assert not controller.state.requests
        assert not controller.state.attempts
        assert all(seen.record is not None for seen in self.seen.values())
        assert not controller.holdings().tenants
        assert not controller.holdings().timers
        assert not controller.holdings().promises
        for pool in controller.state.fleet:
            assert (pool.in_flight, len(pool.queue), pool.queue.bytes) == (0, 0, 0)
            assert (len(pool.held), pool.held.bytes) == (0, 0)
            assert all((r.in_flight, r.unprefilled_tokens, r.held_tokens) == (0, 0, 0) for r in pool.replicas.values())

    def replay(self) -> None:
        """Repeat the calls to another controller with the same seed; answers must be equal."""
        other = controller_of(self.policy, self.seed)
        for what, args, answer in self.calls:
            call: Any = partial(hedge, other) if what == "hedge" else getattr(other, what)
            assert call(*args) == answer

    # ---- answers

    def _call(self, what: str, *args: object, closing: tuple[int, int] | None = None) -> None:
        queues = [
            (pool, [(state.start_by, state.request.id, state) for state in pool.queue if _queue_of(state) == queue])
            for pool in self._pools()
            for queue in sorted(set(map(_queue_of, pool.queue)))
        ]
        call: Callable[..., list[Command]] = getattr(self.controller, what)
        out = call(*args)
        self.calls.append((what, args, out))
        self._hear(out, closing)
        if what != "configure" and self.in_order:
            self._check_turns(queues, out)
        self.check()

    def _hear(self, out: list[Command], closing: tuple[int, int] | None) -> None:
        for command in out:
            if isinstance(command, Ended):
                self._hear_end(command.record)
                continue
            seen = self.seen[command.request_id]
            assert seen.record is None, "answered after the end"
            match command:
                case Dispatch(request, attempt, replica, max_tokens):
                    assert not seen.committed
                    assert seen.refused is None
                    assert attempt not in self.open
                    assert any(replica in pool.replicas for pool in self.controller.state.fleet)
                    assert 1 <= max_tokens <= 100
                    self._check_not_late(seen)
                    self.open[attempt] = request
                    seen.dispatches += 1
                    seen.dispatched_at = self.now if seen.dispatched_at is None else seen.dispatched_at
                case Commit(request, attempt):
                    assert not seen.committed
                    assert seen.refused is None
                    assert self.open.get(attempt) == request or closing == (attempt, request)
                    seen.committed = True
                case Cancel(request, attempt):
                    assert self.open[attempt] == request
                    assert attempt not in self.cancelled
                    self.cancelled.add(attempt)
                case Refuse(request, why, retry_after_s, _):
                    assert seen.refused is None
                    assert not seen.left
                    assert retry_after_s is None or retry_after_s >= 0
                    assert why in QUOTA or retry_after_s is None or retry_after_s <= 90
                    self._check_not_early(seen, why)
                    seen.refused = why
                case Cut(request, why, prompt_tokens):
                    assert seen.committed
                    assert seen.request.visible
                    assert seen.refused is None
                    assert not seen.left
                    assert prompt_tokens >= 0
                    self._check_not_early(seen, why)
                    seen.refused, seen.cut = why, True

    def _hear_end(self, record: Record) -> None:
        seen = self.seen[record.request.id]
        assert seen.record is None, "ended twice"
        assert record.request.id not in self.open.values(), "ended with an attempt open"
        assert record.attempts == seen.dispatches
        assert 0 <= record.queue_s <= record.e2e_s
        queue_s = record.e2e_s if seen.dispatched_at is None else seen.dispatched_at - record.request.body_at
        assert record.queue_s == queue_s, "exchange and controller count its time differently"
        assert record.ttft_s is None or record.queue_s <= record.ttft_s <= record.e2e_s
        assert record.tpot_s is None or record.tpot_s >= 0
        assert record.good <= (record.outcome is Outcome.OK)
        match record.outcome:
            case Outcome.OK:
                assert seen.committed
                assert seen.refused is None
            case Outcome.ABANDONED:
                assert seen.left
                assert seen.refused is None
            case Outcome.INVALID:
                # An engine may report a bad request inside a stream that has begun: then both occur.
                said_inside = seen.committed and seen.refused is Reason.UPSTREAM_REJECTED
                assert said_inside or seen.committed != (seen.refused is not None)
            case _:
                assert seen.refused is record.why
                assert seen.cut == (record.outcome is Outcome.CUT)
        seen.record = record

    def _check_not_late(self, seen: Seen) -> None:
        """Check that no request is sent after its deadline, nor, with enforced admission, after it missed its bound in
        the queue."""
        state = self.controller.state.requests.get(seen.request.id)
        if state is not None and len(state.open) == 1:  # duplicates are opened by the test, at any time
            assert self.now < seen.request.head_at + state.timeouts.total_s or self.now == seen.arrived_at
        if state is None or state.decision is None or state.request.fallback_of:
            return  # objectives do not count on hold, and a fallback may serve whoever waited too long
        if seen.dispatches == 0 and seen.request.tier.admission.mode is AdmissionMode.ENFORCE:
            assert self.now < state.deadline or self.now == seen.arrived_at

    def _check_not_early(self, seen: Seen, why: Reason) -> None:
        request = seen.request
        state = self.controller.state.requests.get(request.id)
        mine = request.tier.timeouts
        attempt = None if state is None or not state.open else state.committed or state.open[-1]
        match why:
            case Reason.QUEUE_TIMEOUT:
                pool = self._pool_timeouts(seen)
                queue_at = request.body_at + min(mine.queue_s, pool.queue_s)
                assert self.now >= min(queue_at, request.head_at + min(mine.total_s, pool.total_s))
            case Reason.PREDICTED:
                assert request.tier.admission.mode is AdmissionMode.ENFORCE
                assert request.tier.slo.bounded
                assert seen.dispatches == 0
            case Reason.TOTAL_TIMEOUT:
                assert self.now >= request.head_at + min(mine.total_s, self._pool_timeouts(seen).total_s)
            case Reason.TTFT_TIMEOUT:
                assert request.visible
                assert attempt is not None
                assert attempt.sent_at is not None
                assert attempt.first_at is None
                assert self.now >= attempt.sent_at + min(mine.ttft_s, self._pool_timeouts(seen).ttft_s)
            case Reason.IDLE_TIMEOUT:
                assert request.visible
                assert attempt is not None
                assert not attempt.slot.paused
                assert self.now > attempt.last_at + min(mine.idle_s, self._pool_timeouts(seen).idle_s)

    def _pool_timeouts(self, seen: Seen) -> Timeouts:
        """The tightest timeouts of all pools that could serve the request, so that they hold in any of these pools."""
        rules, tier = seen.request.policy, seen.request.tier
        route = rules.route(seen.request.model, tier)
        if tier.fallback:
            route += rules.route(rules.models[tier.fallback], tier)
        tightest = route[0].timeouts
        for pool in route:
            tightest = tightest.narrowed(pool.timeouts)
        return tightest

    # ---- the books

    def _check_turns(
        self, queues: list[tuple[Pool, list[tuple[float, int, QueuedRequest]]]], out: list[Command]
    ) -> None:
        """Check that a request served by a pool was ahead of all waiting ones of its tenant and tier there."""
        served = {command.request_id for command in out if isinstance(command, Dispatch)}
        for pool, queue in queues:
            still = [(at, number) for at, number, state in queue if state.ticket]
            gone = [
                (at, number)
                for at, number, _ in queue
                if number in served and self.controller.state.requests[number].pool is pool
            ]
            assert not still or not gone or max(gone) < min(still)

    def _pools(self) -> list[Pool]:
        """Pools of the policy in force, and removed ones that still serve."""
        pools = list(self.controller.state.fleet)
        pools += [a.replica.pool for a in self.controller.state.attempts.values() if a.replica.pool not in pools]
        return list({id(pool): pool for pool in pools}.values())

    def check(self) -> None:
        """Check every count of the controller."""
        controller = self.controller
        assert set(controller.state.attempts) == set(self.open)
        assert set(controller.state.requests) == {number for number, seen in self.seen.items() if seen.record is None}
        for state in controller.state.requests.values():
            # An open request waits or runs: one that does neither is lost, and its client waits for ever.
            waits = state.waiting or state.held_by is not None
            assert state.open or (waits and state.outcome is None), state.request.id
            assert sum((bool(state.open), state.waiting, state.held_by is not None)) == 1
            assert all(controller.state.attempts[attempt.id] is attempt for attempt in state.open)
            assert state.outcome is not None or state.dispatched_at == self.seen[state.request.id].dispatched_at
        for pool in self._pools():
            self._check_pool(pool)
        self._check_learned()
        self._check_leases()
        self._check_alarms()

    def _check_learned(self) -> None:
        """Check that nothing is kept of removed pools and replicas."""
        learned = self.controller.forecaster.view()
        replicas = {name for pool in self.controller.state.fleet for name in pool.replicas}
        replicas |= {attempt.replica.spec.name for attempt in self.controller.state.attempts.values()}
        assert {pool.pool for pool in learned.pools} <= {pool.spec.name for pool in self._pools()}
        assert {name for name, _ in learned.speeds} <= replicas

    def _check_pool(self, pool: Pool) -> None:
        mine = [a for a in self.controller.state.attempts.values() if a.replica.pool is pool]
        assert pool.in_flight == len(mine)
        for replica in {id(r): r for r in (*pool.replicas.values(), *(a.replica for a in mine))}.values():
            self._check_replica(replica, [a for a in mine if a.replica is replica])
        having = [r for r in pool.replicas.values() if r.slots]
        held = Counter(a.state.request.tier.name for a in mine if a.replica.slots)
        assert {tier: count for tier, count in pool.by_tier.items() if count} == held
        self._check_ejections(pool)
        spare = [r for r in having if r.total_in_flight < r.slots]
        behind = [r for r in spare if r.total_unread_tokens >= pool.prefill_limit or not r.has_kv_room]
        behind += [r for r in spare if r.bound is CapacityBound.TPOT]  # by the time of the call that counted last
        assert pool.free_replicas == [r for r in spare if r not in behind]
        assert pool.below_max == [r for r in pool.replicas.values() if r.total_in_flight < r.max_slots]
        assert all(r.slots <= r.max_slots and bool(r.slots) == bool(r.max_slots) for r in pool.replicas.values())
        assert pool.spare == sum(r.slots - r.total_in_flight for r in spare)
        assert pool.places == sum(r.places for r in pool.replicas.values())
        meant = [r for r in pool.replicas.values() if not r.drained]
        assert pool.alive == any(r.health.state is not ReplicaState.DOWN for r in meant), "an ejection empties no pool"
        waiting = [state for state in self.controller.state.requests.values() if state.waiting and state.pool is pool]
        assert sorted(state.request.id for state in pool.queue) == [state.request.id for state in waiting]
        assert len(pool.queue) == len(waiting)
        assert pool.queue.bytes == sum(state.request.body_bytes for state in waiting)
        for head in pool.queue.heads(self.now):
            assert pool.pick(head.request, head.needs_tokens, 0.0) is None, "a slot is free for one who waits"

    @staticmethod
    def _check_ejections(pool: Pool) -> None:
        ejection = pool.spec.health.ejection
        meant = [r for r in pool.replicas.values() if not r.drained]
        slow = [r for r in meant if r.health.out in CAPPED]
        assert ejection is None or len(slow) <= most_slow(len(pool.replicas), ejection.max_share)
        for replica in pool.replicas.values():
            assert replica.paused <= replica.in_flight
            assert 0.1 <= replica.share <= 1.0
            assert not (replica.drained and replica.slots)

    @staticmethod
    def _check_replica(replica: Replica, attempts: list[Attempt]) -> None:
        assert replica.in_flight == len(attempts)
        assert {tier: n for tier, n in replica.by_tier.items() if n} == Counter(
            a.state.request.tier.name for a in attempts
        )
        assert set(replica.reading) <= {a.slot.number for a in attempts if a.first_at is None}
        assert {a.slot.number for a in attempts if a.first_at is None and a.state.request.visible} <= set(
            replica.reading
        )
        unread = [a.unread_tokens for a in replica.reading.values()]
        assert replica.unprefilled_tokens == sum(unread) >= 0
        assert replica.held_tokens == sum(a.prompt_tokens + a.tokens for a in attempts)

    def _check_leases(self) -> None:
        held = Counter(
            (state.request.tenant, state.request.tier.name)
            for state in self.controller.state.requests.values()
            if state.held_by is None or state.use is not None  # limits count from the first attempt on
        )
        assert self.controller.holdings().tenants == held

    def _check_alarms(self) -> None:
        alarms = self.controller.state.timers
        for number, state in self.controller.state.requests.items():
            if state.outcome is None:
                assert alarms.at(number) <= next_deadline(state)[0]
        assert self.controller.holdings().timers <= set(self.controller.state.requests)
        for pool in self.controller.state.fleet:
            for replica in pool.replicas.values():
                if replica.health.state is ReplicaState.DOWN:
                    cools_at = self.now + replica.health.cools_in_s(pool.spec.health, self.now)
                    assert alarms.at(BREAKERS) <= cools_at + 1e-9


def _queue_of(state: QueuedRequest) -> tuple[int, str, str]:
    """Requests of one tenant in one tier are served in order. A reload may change the priority of a tier."""
    return state.request.tier.priority, state.request.tier.name, state.request.tenant


def _shared(pool: Pool, tier: Tier) -> list[RequestState]:
    """The requests that share the queue with a newcomer of `tier`: those ahead of it, and those it could displace."""
    enforced = AdmissionMode.ENFORCE
    return [
        state
        for state in pool.queue
        if state.request.tier.priority <= tier.priority or state.request.tier.admission.mode is enforced
    ]
