"""For any events in any order, every request is answered once, no slot overflows, and nothing leaks."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.policy import Policy
from gateway.core.request import Endpoint, Prefix, Request
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.sessions import Session, StoredResponse, key_of
from tests.effort import examples

from .drivers import POOLS, TENANTS, TIERS, Driver, policies, roomy_policies, strict_policies
from .made import STEADY, a_request, memory_of

replicas = st.sampled_from([f"{pool}r{i}" for pool in POOLS for i in range(3)])
pauses = st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0, 2.5, 11.0])
ADAPTERS = ("x", "y", "z")
BROKE = (AttemptOutcome.RESET, AttemptOutcome.TRUNCATED)
UNSENT = (AttemptOutcome.UNREACHABLE, AttemptOutcome.CONNECT_TIMEOUT)
SENT = (
    AttemptOutcome.COMPLETE,
    AttemptOutcome.COMPLETE,
    AttemptOutcome.COMPLETE,
    AttemptOutcome.REJECTED,
    AttemptOutcome.BUSY,
    AttemptOutcome.CLOSING,
    AttemptOutcome.FAILED,
    AttemptOutcome.RESET,
    AttemptOutcome.TRUNCATED,
)


class AnyDriver(RuleBasedStateMachine):
    """A random caller that keeps only to the controller's contract."""

    driver: Driver
    policy: Policy

    @initialize(policy=policies(), seed=st.integers(0, 3))
    def begin(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.driver = Driver(policy, seed)

    # ---- requests

    @rule(
        tier=st.sampled_from(TIERS),
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from([True, True, False]),
        assembled=st.booleans(),
        prompt=st.sampled_from([None, 1, 100, 150, 151, 900, 5000]),
        prompt_bytes=st.sampled_from([0, 300, 2000, 30_000]),
        max_tokens=st.sampled_from([None, 1, 60, 1000]),
        choices=st.integers(1, 2),
        batch=st.sampled_from([1, 1, 3]),
        body_bytes=st.sampled_from([10, 1000, 2000]),
        receiving=st.sampled_from([0.0, 0.4]),
        body_hash=st.sampled_from([None, None, 1, 2]),
    )
    def arrive(
        self,
        tier: str,
        tenant: str,
        stream: bool,
        assembled: bool,
        prompt: int | None,
        prompt_bytes: int,
        max_tokens: int | None,
        choices: int,
        batch: int,
        body_bytes: int,
        receiving: float,
        body_hash: int | None,
    ) -> None:
        now = self.driver.now
        request = Request(
            id=len(self.driver.seen) + 1,
            policy=self.policy,
            tier=self.policy.tiers[tier],
            model=self.policy.models["m"],
            tenant=tenant,
            endpoint=Endpoint.CHAT,
            stream=stream,
            prompt_bytes=prompt_bytes,
            prompt_exact=prompt,
            max_tokens=max_tokens,
            choices=choices,
            batch=batch,
            body_bytes=body_bytes,
            head_at=now - receiving,
            body_at=now,
            body_hash=body_hash,
            assembled=assembled and not stream,
        )
        self.driver.arrive(request)

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20))
    def sent(self, pick: int) -> None:
        attempt = self._attempt(pick)
        if self.driver.controller.state.attempts[attempt].sent_at is None:
            self.driver.tell("sent", attempt)

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20))
    def first_token(self, pick: int) -> None:
        self._sent(attempt := self._attempt(pick))
        self.driver.tell("first_token", attempt)

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20), tokens=st.integers(0, 60))
    def progress(self, pick: int, tokens: int) -> None:
        self._sent(attempt := self._attempt(pick))
        self.driver.tell("progress", attempt, tokens)

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20), what=st.sampled_from(["paused", "resumed", "paused", "resumed", "repeats"]))
    def keep_up_or_not(self, pick: int, what: str) -> None:
        self._sent(attempt := self._attempt(pick))
        self.driver.tell(what, attempt)

    @precondition(lambda self: self.driver.open)
    @rule(
        pick=st.integers(0, 20),
        end=st.sampled_from(SENT),
        usage=st.sampled_from([(None, None), (80, 40), (3000, 200)]),
    )
    def finish(self, pick: int, end: AttemptOutcome, usage: tuple[int | None, int | None]) -> None:
        self._sent(attempt := self._attempt(pick))
        broke = end in BROKE and not self.driver.seen[self.driver.open[attempt]].committed
        self.driver.finish(
            attempt, AttemptResult(end, *usage, tokens_seen=7, retry_after_s=2.0, body_hash=1 if broke else None)
        )

    @rule(
        tiers=st.lists(st.sampled_from(TIERS), min_size=3, max_size=8),
        tenant=st.sampled_from(TENANTS),
        lags=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.3, 2.5]), min_size=1, max_size=4),
    )
    def rush(self, tiers: list[str], tenant: str, lags: list[float]) -> None:
        """More requests arrive than there are slots. A late event loop tells their ends before it serves timers."""
        for tier in tiers:
            self.arrive(tier, tenant, True, False, 100, 400, 60, 1, 1, 10, 0.0, None)
        for lag in lags:
            self.driver.now += lag
            for attempt in list(self.driver.open)[:1]:
                self._sent(attempt)
                self.driver.finish(attempt, AttemptResult(AttemptOutcome.COMPLETE, tokens_seen=7))

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20), end=st.sampled_from(UNSENT))
    def never_connected(self, pick: int, end: AttemptOutcome) -> None:
        attempt = self._attempt(pick)
        if self.driver.controller.state.attempts[attempt].sent_at is None:
            self.driver.finish(attempt, AttemptResult(end))

    @precondition(lambda self: self.driver.cancelled)
    @rule()
    def close_what_was_cancelled(self) -> None:
        for attempt in sorted(self.driver.cancelled):
            self.driver.finish(attempt, AttemptResult(AttemptOutcome.CANCELLED))

    @precondition(lambda self: self.driver.open)
    @rule(pick=st.integers(0, 20))
    def hedge(self, pick: int) -> None:
        self.driver.hedge(self._attempt(pick))

    @precondition(lambda self: self.driver.seen)
    @rule(pick=st.integers(0, 50))
    def leave(self, pick: int) -> None:
        seen = self.driver.seen
        self.driver.leave(list(seen)[pick % len(seen)])

    # ---- time, replicas, policies

    @rule(pause=pauses)
    def pass_time(self, pause: float) -> None:
        self.driver.pass_time(pause)

    @rule()
    def wake_early(self) -> None:
        self.driver.tell("wake")

    @rule(replica=replicas, healthy=st.sampled_from([True, False, False]))
    def check_health(self, replica: str, healthy: bool) -> None:
        self.driver.tell("observe", replica, Sample(healthy=healthy))

    @precondition(lambda self: self.driver.open)
    @rule(picks=st.permutations(range(6)))
    def everything_dies(self, picks: list[int]) -> None:
        """All replicas fail at once: some requests fail, in any order, and all health checks fail."""
        open_now = list(self.driver.open)
        for pick in picks:
            if pick < len(open_now) and open_now[pick] in self.driver.open:
                unsent = self.driver.controller.state.attempts[open_now[pick]].sent_at is None
                self.driver.finish(
                    open_now[pick], AttemptResult(AttemptOutcome.UNREACHABLE if unsent else AttemptOutcome.RESET)
                )
        for pool in self.policy.pools.values():
            for replica in pool.replicas:
                for _ in range(pool.health.failures):
                    self.driver.tell("observe", replica.name, Sample(healthy=False))

    @rule(replica=replicas, on=st.booleans())
    def drain(self, replica: str, on: bool) -> None:
        self.driver.tell("drain", replica, on)

    @rule(replica=replicas, context=st.sampled_from([None, 120, 4000]))
    def scrape(self, replica: str, context: int | None) -> None:
        self.driver.tell("observe", replica, Sample(waiting=1, running=2, context_tokens=context))

    @rule(away_s=pauses)
    def recall(self, away_s: float) -> None:
        self.driver.tell("recall", memory_of(self.driver.controller, self.driver.now), away_s)

    @rule(policy=st.one_of(st.none(), st.none(), policies()))
    def reload(self, policy: Policy | None) -> None:
        if policy is not None:
            self.policy = policy
            self.driver.tell("configure", policy)

    @rule(really=st.integers(0, 4))
    def shut(self, really: int) -> None:
        if really == 4:
            self.driver.tell("shut")

    # ---- always

    @invariant()
    def the_snapshot_agrees_with_the_books(self) -> None:
        if not hasattr(self, "driver"):
            return
        snapshot = self.driver.controller.snapshot(self.driver.now)
        assert [pool.name for pool in snapshot.pools] == list(self.policy.pools)
        for pool in snapshot.pools:
            assert pool.queued >= 0
            assert pool.in_flight >= sum(replica.in_flight for replica in pool.replicas)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.end_all()
            self.driver.replay()

    # ---- inside

    def _attempt(self, pick: int) -> int:
        return list(self.driver.open)[pick % len(self.driver.open)]

    def _sent(self, attempt: int) -> None:
        if self.driver.controller.state.attempts[attempt].sent_at is None:
            self.driver.tell("sent", attempt)


class AnyBoundDriver(AnyDriver):
    """The same with requests that only one replica may serve: of strict sessions, and with stored responses."""

    @initialize(policy=strict_policies(), seed=st.integers(0, 3))
    def begin(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.driver = Driver(policy, seed, in_order=False)

    @rule(
        tier=st.sampled_from(TIERS),
        session=st.sampled_from([None, "a", "b", "c"]),
        stored=st.sampled_from([None, None, "p0r0", "p0r1", "p1r0", "gone"]),
        blocks=st.integers(0, 3),
    )
    def arrive_bound(self, tier: str, session: str | None, stored: str | None, blocks: int) -> None:
        number, now = len(self.driver.seen) + 1, self.driver.now
        self.driver.arrive(
            a_request(
                number,
                self.policy,
                now,
                tier=tier,
                session=None if session is None else Session(session, key_of(session)),
                stored=None if stored is None else StoredResponse(stored, 50),
                prefix=Prefix(tuple(range(blocks)), tuple(range(100, 100 * blocks + 1, 100)), 400)
                if blocks
                else Prefix(),
            )
        )

    @invariant()
    def each_is_served_where_it_may_be(self) -> None:
        if not hasattr(self, "driver"):
            return
        for attempt in self.driver.controller.state.attempts.values():
            request, pool = attempt.state.request, attempt.replica.pool
            assert pool.spec.name in request.model.pools
            assert request.affinity.stored is None or attempt.replica.spec.name == request.affinity.stored.replica

    @invariant()
    def nobody_waits_beside_a_replica_that_is_free_for_him(self) -> None:
        if not hasattr(self, "driver"):
            return
        for pool in self.driver.controller.state.fleet:
            unpinned = [queued.request for queued in pool.queue if not pool.is_pinned(queued.request)]
            assert not any(pool.ready(each.tier) for each in unpinned if not each.affinity.prefix.blocks)


class AnyAdaptedDriver(AnyDriver):
    """The same with requests for LoRA adapters, of which a replica has one or two at a time."""

    @initialize(policy=roomy_policies(), seed=st.integers(0, 3), limit=st.sampled_from([1, 1, 2]))
    def begin(self, policy: Policy, seed: int, limit: int) -> None:
        self.policy = policy
        self.driver = Driver(policy, seed, in_order=False)
        self.limit = limit
        self._list_adapters()

    @rule(tier=st.sampled_from(TIERS), tenant=st.sampled_from(TENANTS), adapter=st.sampled_from(ADAPTERS))
    def arrive_adapted(self, tier: str, tenant: str, adapter: str) -> None:
        number, now = len(self.driver.seen) + 1, self.driver.now
        self.driver.arrive(a_request(number, self.policy, now, tier=tier, tenant=tenant, adapter=adapter))

    @rule(tier=st.sampled_from(TIERS), tenant=st.sampled_from(TENANTS), order=st.permutations(("", *ADAPTERS)))
    def crowd(self, tier: str, tenant: str, order: list[str]) -> None:
        """Each adapter is asked for until turns are due. Then an attempt ends, and a client that waits leaves."""
        for adapter in order:
            self.arrive_adapted(tier, tenant, adapter)
        self.driver.pass_time(0.45)
        for attempt in list(self.driver.open)[-1:]:
            self._sent(attempt)
            self.driver.finish(attempt, AttemptResult(AttemptOutcome.COMPLETE, tokens_seen=7))
        self.arrive_adapted(tier, tenant, order[0])
        for state in [state for state in self.driver.controller.state.requests.values() if state.waiting][:1]:
            self.driver.leave(state.request.id)

    @rule(policy=st.one_of(st.none(), st.none(), roomy_policies()))
    def reload(self, policy: Policy | None) -> None:
        super().reload(policy)
        self._list_adapters()

    @invariant()
    def nobody_waits_beside_a_free_replica_with_his_adapter(self) -> None:
        if not hasattr(self, "driver"):
            return
        for pool in self.driver.controller.state.fleet:
            for queued in pool.queue:
                free = pool.candidates(queued.request)
                adapter = queued.request.affinity.adapter
                assert not [replica for replica in free if not adapter or replica.adapters.takes(adapter)]

    @invariant()
    def room_is_made_only_for_an_adapter_that_a_request_waits_for(self) -> None:
        if not hasattr(self, "driver"):
            return
        for pool in self.driver.controller.state.fleet:
            awaited = {queued.request.affinity.adapter for queued in pool.queue}
            assert {replica.adapters.awaited for replica in pool.replicas.values()} <= {"", *awaited}

    def _list_adapters(self) -> None:
        for pool in self.policy.pools.values():
            for replica in pool.replicas:
                self.driver.tell("observe", replica.name, Sample(adapters=ADAPTERS, max_adapters=self.limit))


TestAnyDriver = AnyDriver.TestCase
TestAnyBoundDriver = AnyBoundDriver.TestCase
TestAnyAdaptedDriver = AnyAdaptedDriver.TestCase
for machine in (TestAnyDriver, TestAnyBoundDriver, TestAnyAdaptedDriver):
    machine.settings = settings(
        STEADY,
        max_examples=examples(120),
        stateful_step_count=60,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    # Hypothesis shrinks a failing example, which takes time.
    cast(Any, machine).pytestmark = [pytest.mark.timeout(600)]
