"""Gateways lease parts of limits by the real script in a real store, by a clock of the test: never over, never lost."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from gateway.core.policy import LimitKind, Limits, Quota
from gateway.core.queueing.limits import LimitExceeded, Tenants
from gateway.core.results import Reason
from gateway.core.sample import LimitLease, LimitUse, QuotaWindow
from gateway.driving.lease_script import SCRIPT
from gateway.driving.leases import IN_USE, LEASE_S, RENEW_S, Leases, key_of
from gateway.observe.metrics.tenant_demand import TenantDemand
from loadtests.processes import free_port
from tests.core.made import STEADY, tier
from tests.stores import PROGRAM, needs_store

ROUND_S = 0.1
CLOCK = "{tailgate}:clock"
WITH_CLOCK = SCRIPT.replace("redis.call('TIME')", f"redis.call('HMGET', '{CLOCK}', 's', 'us')")
REQUESTS = Limits(requests_per_min=600)

pytestmark = [needs_store, pytest.mark.xdist_group("leases")]


@pytest.fixture(scope="module")
def store() -> Iterator[Redis]:
    assert PROGRAM is not None
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([PROGRAM, *options], stdout=subprocess.DEVNULL) as process:
        client = Redis(port=port)
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except OSError:
                assert time.monotonic() < deadline
        yield client
        client.close()
        process.kill()


class One:
    """One gateway: its tenants, and its leases."""

    def __init__(self, fleet: Fleet, name: str, limits: Limits) -> None:
        self.fleet = fleet
        self.tier = tier("std", limits=limits)
        self.tenants = Tenants()
        self.demand = TenantDemand()
        self.leases = Leases(name, self.demand, self._uses, self._share, lambda: fleet.now)
        self.hears = True

    def _uses(self, tenant: str, _: str, now: float) -> tuple[LimitUse, ...]:
        return self.tenants.uses(tenant, self.tier, now)

    def _share(self, gateways: int, leases: tuple[LimitLease, ...]) -> None:
        self.tenants.share(gateways, {"std": self.tier}, self.fleet.now)
        for lease in leases:
            self.tenants.of(lease.tenant, self.tier, self.fleet.now).lease(lease)

    def asks(self, tokens: int = 1, tenant: str = "acme") -> LimitExceeded | None:
        """A request of a tenant, which runs if no limit forbids it."""
        self.demand.asked(tenant, "std")
        use = self.tenants.of(tenant, self.tier, self.fleet.now)
        exceeded = use.check(tokens, self.fleet.now)
        if exceeded is None:
            use.take(tokens, self.fleet.now)
        elif exceeded.why in (Reason.LIMIT_TOKENS, Reason.LIMIT_QUOTA):
            use.refused_tokens = tokens
        return exceeded

    def ends(self, reserved: int, used: int) -> None:
        """A request of that many reserved tokens has used some."""
        self.demand.ended("acme", "std")
        self.tenants.of("acme", self.tier, self.fleet.now).settle(reserved, used, True, self.fleet.now)

    def opens(self, day: str) -> None:
        """A day begins."""
        window = QuotaWindow("day", day, self.fleet.now + 86400.0)
        self.tenants.open_windows((window,), {"std": self.tier}, self.fleet.now)

    def rounds(self, *, answered: bool = True, leaves: bool = False) -> None:
        """One exchange with the store. `answered`: whether the answer comes."""
        sharing = len([one for one in self.fleet.all if one.hears])
        for call in list(self.leases.leave() if leaves else self.leases.calls(sharing)):
            answer = self.fleet.store.eval(WITH_CLOCK, len(call.keys), *call.keys, *call.arguments)
            if answered:
                self.leases.take(call, answer)


class Fleet:
    """Gateways that share a store."""

    def __init__(self, store: Redis, count: int, limits: Limits) -> None:
        store.flushall()
        self.store = store
        self.now = 0.0
        self.all: list[One] = []
        self.all += [One(self, f"g{number}", limits) for number in range(count)]
        for one in self.all:
            one.opens("2026-11-29")
        self.passes(0.0)
        for one in self.all:
            one.rounds()

    def passes(self, seconds: float) -> None:
        self.now += seconds
        whole = math.floor(self.now)
        self.store.hset(CLOCK, mapping={"s": 1000 + whole, "us": int((self.now - whole) * 1e6)})

    def rounds(self) -> None:
        """Time for one round passes, and all gateways that hear the store have it."""
        self.passes(ROUND_S)
        for one in self.all:
            if one.hears:
                one.rounds()

    def level(self, limit: LimitKind) -> float:
        """What is left of a limit, as the store has it."""
        return float(self.store.hget(key_of(("acme", "std", limit)), "level"))  # type: ignore[arg-type]


def test_load_of_90_to_10_over_four_gateways_is_admitted_up_to_the_limit(store: Redis) -> None:
    fleet = Fleet(store, 4, REQUESTS)
    admitted = []
    for number in range(1200):  # 20 requests a second, which is twice the limit
        for part in range(2):
            turn = number * 2 + part
            one = fleet.all[0] if turn % 10 else fleet.all[1 + turn // 10 % 3]
            if one.asks() is None:
                admitted.append(fleet.now)
        fleet.rounds()
    assert abs(sum(at >= 60.0 for at in admitted) - 600) <= 6  # the first minute has a whole bucket besides
    assert len(admitted) <= 600 + 600 * fleet.now / 60


def test_a_burst_at_one_gateway_gets_nearly_the_whole_bucket(store: Redis) -> None:
    fleet = Fleet(store, 4, REQUESTS)
    admitted = 0
    for _ in range(100):
        admitted += sum(fleet.all[0].asks() is None for _ in range(100))
        fleet.rounds()
    assert 700 >= admitted >= 650


def test_requests_in_turn_at_all_gateways_stay_within_the_limit_without_a_refusal(store: Redis) -> None:
    fleet = Fleet(store, 4, Limits(requests_per_min=60))
    for number in range(600):
        if number % 12 == 0:  # one every 1.2 s
            assert fleet.all[number // 12 % 4].asks() is None
        fleet.rounds()


def test_a_request_larger_than_an_equal_part_gets_the_rest_of_the_others(store: Redis) -> None:
    fleet = Fleet(store, 4, Limits(tokens_per_min=1000))
    one, other = fleet.all[:2]
    assert one.asks(600) is None, "nobody has used the limit"
    for _ in range(3):
        fleet.rounds()
    assert other.asks(390) is not None
    waited = 0
    while other.asks(390) is not None:
        fleet.rounds()
        waited += 1
    assert waited < 20
    assert other.asks(2000) == LimitExceeded(Reason.LIMIT_TOKENS, math.inf)


def test_concurrency_goes_to_the_gateway_that_needs_it(store: Redis) -> None:
    fleet = Fleet(store, 4, Limits(concurrency=8))
    first, second = fleet.all[:2]
    for _ in range(50):
        first.asks()
        fleet.rounds()
    assert first.tenants.in_flight() == {("acme", "std"): 8}
    assert second.asks() is not None
    for _ in range(3):
        first.ends(1, 1)
    for _ in range(40):
        second.asks()
        fleet.rounds()
    assert second.tenants.in_flight() == {("acme", "std"): 3}


def test_concurrency_of_a_gateway_that_died_is_free_when_its_lease_lapses(store: Redis) -> None:
    fleet = Fleet(store, 2, Limits(concurrency=4))
    dead, alive = fleet.all
    for _ in range(10):
        dead.asks()
        fleet.rounds()
    dead.hears = False
    for _ in range(round(LEASE_S / ROUND_S) + 5):
        alive.asks()
        fleet.rounds()
    assert alive.tenants.in_flight() == {("acme", "std"): 4}


def test_a_gateway_that_leaves_returns_its_lease_at_once(store: Redis) -> None:
    fleet = Fleet(store, 2, REQUESTS)
    one, other = fleet.all
    for _ in range(20):
        one.asks()
        fleet.rounds()
    one.rounds(leaves=True)
    one.hears = False
    before = fleet.level(LimitKind.REQUESTS)
    admitted = 0
    for _ in range(20):
        admitted += sum(other.asks() is None for _ in range(100))
        fleet.rounds()
    assert admitted >= before


def test_without_the_store_each_gateway_has_an_equal_share(store: Redis) -> None:
    fleet = Fleet(store, 4, REQUESTS)
    for _ in range(600):
        for one in fleet.all:
            one.asks()
        fleet.rounds()
    for one in fleet.all:
        one.hears = False
        one.leases.give_up()
    counts = [0] * 4
    for _ in range(600):
        fleet.passes(ROUND_S)
        for number, one in enumerate(fleet.all):
            counts[number] += one.asks() is None
    assert all(148 <= count <= 155 for count in counts)


def test_use_during_an_outage_is_no_debt_afterwards(store: Redis) -> None:
    fleet = Fleet(store, 2, REQUESTS)
    for one in fleet.all:
        one.asks()
    fleet.rounds()
    for _ in range(3000):
        fleet.passes(ROUND_S)
        for one in fleet.all:
            one.asks()
    fleet.rounds()
    assert fleet.level(LimitKind.REQUESTS) >= -10


def test_an_emptied_store_does_not_fill_the_bucket_again(store: Redis) -> None:
    fleet = Fleet(store, 2, REQUESTS)
    one = fleet.all[0]
    for _ in range(100):
        for _ in range(100):
            one.asks()
        fleet.rounds()
    store.flushall()
    fleet.passes(0.0)
    one.asks()
    fleet.rounds()
    assert fleet.level(LimitKind.REQUESTS) < 10


def test_a_limit_that_nobody_uses_is_forgotten(store: Redis) -> None:
    fleet = Fleet(store, 2, REQUESTS)
    fleet.all[0].asks()
    fleet.rounds()
    assert store.zcard(IN_USE) == 1
    for _ in range(300):
        fleet.rounds()
    assert store.keys("{tailgate}:limit*") == []


def test_a_wrong_type_at_the_key_of_one_limit_leaves_the_others(store: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fleet = Fleet(store, 2, REQUESTS)
    store.set(key_of(("acme", "std", LimitKind.REQUESTS)), "text")
    one = fleet.all[0]
    for _ in range(20):
        one.asks()
        one.asks(tenant="other")
        fleet.rounds()
    for _ in range(20):
        fleet.rounds()  # most of these rounds are not about that limit
    assert "WRONGTYPE" in one.leases.error
    assert store.hget(key_of(("other", "std", LimitKind.REQUESTS)), "g:g0")
    assert sum("WRONGTYPE" in record.getMessage() for record in caplog.records) == 1
    store.delete(key_of(("acme", "std", LimitKind.REQUESTS)))
    fleet.passes(2.0)
    one.asks()
    fleet.rounds()
    assert one.leases.error == ""
    assert caplog.text.count("all limits are leased again") == 1


def test_a_key_that_breaks_while_another_limit_is_at_its_end_is_logged_once(
    store: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fleet = Fleet(store, 1, Limits(requests_per_min=6000, concurrency=1))
    one = fleet.all[0]
    for number in range(40):
        if number == 10:
            store.set(key_of(("acme", "std", LimitKind.REQUESTS)), "text")
        one.asks()
        fleet.rounds()
    assert "WRONGTYPE" in one.leases.error
    assert sum("WRONGTYPE" in record.getMessage() for record in caplog.records) == 1


def test_limit_whose_key_breaks_goes_on_with_equal_shares(store: Redis) -> None:
    fleet = Fleet(store, 2, REQUESTS)
    for _ in range(1200):
        for one in fleet.all:
            one.asks()
        fleet.rounds()
    store.set(key_of(("acme", "std", LimitKind.REQUESTS)), "text")
    admitted = 0
    for _ in range(100):
        admitted += sum(one.asks() is None for one in fleet.all)
        fleet.rounds()
    assert 95 <= admitted <= 105, "as many as the limit allows in ten seconds"


def test_a_value_of_another_version_is_refused_by_name(store: Redis) -> None:
    fleet = Fleet(store, 1, REQUESTS)
    store.hset(key_of(("acme", "std", LimitKind.REQUESTS)), "v", "9")
    fleet.all[0].asks()
    fleet.rounds()
    assert "version 9, this gateway reads 1" in fleet.all[0].leases.error


def test_a_quota_holds_for_all_gateways_and_survives_one_that_dies(store: Redis) -> None:
    fleet = Fleet(store, 3, Limits(quotas=(Quota(LimitKind.TOKENS_DAY, "day", 900.0),)))
    dies, *others = fleet.all
    admitted = 0
    for _ in range(5):
        admitted += dies.asks(10) is None
        fleet.rounds()
    for _ in range(6):
        fleet.rounds()  # the store knows of all that was used
    dies.hears = False
    for _ in range(600):
        admitted += sum(one.asks(10) is None for one in others)
        fleet.rounds()
    assert admitted == 90, "no more, and what the dead one held is used too"
    exceeded = others[0].asks(10)
    assert exceeded is not None
    assert exceeded.why is Reason.LIMIT_QUOTA
    assert exceeded.wait_s == pytest.approx(86400.0 - fleet.now)
    for one in others:
        one.opens("2026-11-30")
    assert others[0].asks(10) is None


def test_field_of_a_killed_gateway_is_deleted_and_nothing_is_granted_twice_if_it_comes_back(store: Redis) -> None:
    fleet = Fleet(store, 3, Limits(quotas=(Quota(LimitKind.REQUESTS_DAY, "day", 60.0),)))
    dies = fleet.all[0]
    key = key_of(("acme", "std", LimitKind.REQUESTS_DAY), "2026-11-29")
    admitted = 0
    for _ in range(10):
        admitted += sum(one.asks() is None for one in fleet.all)
        fleet.rounds()
    for _ in range(6):
        fleet.rounds()  # the store knows of all that was used
    assert store.hexists(key, "g:g0")
    dies.hears = False
    admitted += dies.asks() is None  # of its lease, and the store does not hear of it
    for _ in range(20):
        fleet.passes(10.0)
        fleet.rounds()
    assert [store.hexists(key, f"g:g{number}") for number in range(3)] == [False, True, True]
    dies.hears = True
    for _ in range(100):
        admitted += sum(one.asks() is None for one in fleet.all)
        fleet.rounds()
    assert admitted == 60


def test_a_new_gateway_does_not_get_a_used_quota_again(store: Redis) -> None:
    fleet = Fleet(store, 1, Limits(quotas=(Quota(LimitKind.REQUESTS_DAY, "day", 50.0),)))
    for _ in range(60):
        fleet.all[0].asks()
        fleet.rounds()
    fleet.all[0].rounds(leaves=True)
    fleet.all = [One(fleet, "new", Limits(quotas=(Quota(LimitKind.REQUESTS_DAY, "day", 50.0),)))]
    fleet.all[0].opens("2026-11-29")
    for _ in range(3):
        fleet.rounds()
    assert fleet.all[0].asks() is not None


def test_an_emptied_store_does_not_fill_a_quota_again(store: Redis) -> None:
    fleet = Fleet(store, 2, Limits(quotas=(Quota(LimitKind.REQUESTS_DAY, "day", 50.0),)))
    one = fleet.all[0]
    admitted = 0
    for number in range(200):
        admitted += one.asks() is None
        fleet.rounds()
        if number == 20:
            store.flushall()
            fleet.passes(0.0)
    assert admitted == 50


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 3), st.integers(0, 60)),
        st.tuples(st.just("round"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("wait"), st.integers(0, 9), st.just(0)),
    ),
    min_size=30,
    max_size=120,
)


@STEADY
@given(steps)
def test_gateways_together_never_exceed_a_limit(store: Redis, steps: list[tuple[str, int, int]]) -> None:
    """After all have joined. Before, one request that is larger than an equal part may go beyond it."""
    limits = Limits(requests_per_min=60, tokens_per_min=1000, concurrency=5)
    fleet = Fleet(store, 3, limits)
    for one in fleet.all:
        one.demand.asked("acme", "std")
    for _ in range(6):
        fleet.rounds()
    began, passed, used = fleet.now, 0, 0
    running: list[list[int]] = [[], [], [], []]
    for what, number, amount in steps:
        one = fleet.all[number % 3]
        if what == "ask" and one.asks(amount) is None:
            running[number % 3].append(amount)
            passed, used = passed + 1, used + amount
        elif what == "end" and running[number % 3]:
            reserved = running[number % 3].pop()
            one.ends(reserved, min(amount, reserved))
            used -= reserved - min(amount, reserved)
        elif what == "round":
            one.rounds(answered=bool(amount))
        elif what == "wait":
            for _ in range(number):
                fleet.rounds()
        minutes = (fleet.now - began) / 60.0
        assert sum(map(len, running)) <= 5
        assert passed <= 60 * (1 + minutes) + 1e-6
        assert used <= 1000 * (1 + minutes) + 1e-6


@STEADY
@given(steps)
def test_unused_leases_are_there_again_once_gateways_have_left(store: Redis, steps: list[tuple[str, int, int]]) -> None:
    fleet = Fleet(store, 3, Limits(tokens_per_min=1000, concurrency=5))
    used, running = 0, 0
    for what, number, amount in steps:
        one = fleet.all[number % 3]
        if what == "ask" and one.asks(amount) is None:
            one.ends(amount, amount // 2)
            used += amount // 2
        elif what == "round":
            one.rounds(answered=bool(amount))
    one = fleet.all[0]
    one.demand.asked("acme", "std")
    fleet.passes(RENEW_S)
    one.rounds()
    for other in fleet.all[1:]:
        other.rounds()
        other.rounds(leaves=True)
        other.hears = False
    refilled = 1000 * RENEW_S / 60
    assert 1000 - used - 1e-6 <= fleet.level(LimitKind.TOKENS) <= 1000 - used + refilled + 1e-6
    assert fleet.level(LimitKind.CONCURRENCY) == 5 - running
