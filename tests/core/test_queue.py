"""The queue of a pool against a plain list, and the rate at which requests leave."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.rates import DRAIN_WINDOW_S, FEW_TURN_S, FEW_TURNS, DrainRate, Rate, TurnRate
from gateway.core.prediction import Forecast
from gateway.core.queueing.limits import FAIRNESS_HALF_LIFE_S, TenantUse
from gateway.core.queueing.queue import PoolQueue
from gateway.core.queueing.tier_queue import MAX_TURN_S
from gateway.core.request_state import RequestState
from tests.footprint import footprint

from .made import SHADOW, STEADY, a_request, policy, pool, tier

PREMIUM = tier("premium", 0)
TIERS = (PREMIUM, tier("x", 1), tier("y", 1), tier("shadow", 2, admission=SHADOW), tier("free", 2))
RULES = policy(pool("p", "r1"), *TIERS)

arrivals = st.tuples(st.just("push"), st.sampled_from(TIERS), st.integers(0, 100))
moves = st.lists(
    st.one_of(
        arrivals,
        arrivals,
        st.tuples(st.just("remove"), st.integers(0, 50), st.none()),
        st.tuples(st.just("serve"), st.integers(0, 4), st.none()),
    ),
    min_size=20,
    max_size=60,
)


def turn(state: RequestState) -> tuple[int, float, int]:
    return state.request.tier.priority, state.request.body_at, state.request.id


@STEADY
@given(moves)
def test_queue_behaves_like_a_list_sorted_by_priority_and_arrival(moves: list[tuple[str, Any, int]]) -> None:
    room, plain = PoolQueue(), list[RequestState]()
    for number, (what, choice, size) in enumerate(moves):
        if what == "push":
            state = made(number, choice.name, size)
            room.push(state, 0.0)
            plain.append(state)
        elif plain:
            heads = room.heads(0.0)
            pick = heads if what == "serve" else plain
            state = pick[choice % len(pick)]
            room.remove(state, 0.0)
            plain.remove(state)
        check(room, plain)


def made(number: int, tier_name: str, size: int, tenant: str = "acme") -> RequestState:
    # Several arrive in the same second.
    state = RequestState(
        a_request(number + 1, RULES, float(number // 3), tier=tier_name, tenant=tenant, body_bytes=size)
    )
    state.use = TenantUse(tenant, tier_name)
    state.deadline = state.request.body_at + 10.0
    return state


def check(room: PoolQueue, plain: list[RequestState]) -> None:
    plain = sorted(plain, key=turn)
    assert len(room) == len(plain)
    assert list(room) == plain
    assert room.bytes == sum(state.request.body_bytes for state in plain)
    for t in TIERS:
        assert room.holds(t) == any(state.request.tier is t for state in plain)
    firsts = {state.request.tier.name: state for state in reversed(plain)}
    assert room.heads(0.0) == sorted(firsts.values(), key=turn)
    for priority in range(-1, 4):
        newcomer = tier("newcomer", priority)
        assert room.ahead_of(newcomer, 0.0) == sum(state.request.tier.priority <= priority for state in plain)
        below = [
            state for state in plain if state.request.tier.priority > priority and state.request.tier.name != "shadow"
        ]
        lowest = max((state.request.tier.priority for state in below), default=0)
        victims = [state for state in below if state.request.tier.priority == lowest]
        assert room.last_below(newcomer) == (victims[0] if victims else None)


# ---- the rate at which requests leave


def rate_of(gaps: list[float], *, backlogged: bool = True) -> float | None:
    rate, now = DrainRate(), 0.0
    rate.opened(backlogged, now)
    for gap in gaps:
        now += gap
        rate.opened(backlogged, now)
    return rate.per_s()


@pytest.mark.parametrize("per_s", [0.2, 3.0, 250.0])
def test_drain_rate_of_evenly_spaced_ends_is_exact(per_s: float) -> None:
    assert rate_of([1 / per_s] * int(60 * per_s)) == pytest.approx(per_s, rel=1e-6)


@pytest.mark.parametrize("burst", [2, 10, 50])
def test_drain_rate_averages_bursts_and_pauses(burst: int) -> None:
    gaps = ([0.0] * (burst - 1) + [1.0]) * 60
    assert rate_of(gaps) == pytest.approx(burst, rel=0.2)


def test_drain_rate_follows_a_change() -> None:
    assert rate_of([0.1] * 600 + [1.0] * 30) == pytest.approx(1.0, rel=0.1)


def test_no_drain_rate_is_measured_without_a_backlog() -> None:
    assert rate_of([0.1] * 100, backlogged=False) is None


def test_drain_rate_of_a_rarely_saturated_pool_counts_all_openings() -> None:
    rate = DrainRate()
    for number in range(400):
        rate.opened(number in (200, 201), number * 0.05)
    assert rate.per_s() == pytest.approx(20.0, rel=0.02)


def test_drain_rate_after_a_short_backlog_is_near_the_typical_rate() -> None:
    """Otherwise a pool with few slots that was full for a few milliseconds would seem to serve five requests a
    second.
    """
    rate = DrainRate()
    for at in (0.0, 0.01, 0.02):
        rate.opened(True, at)
    rate.opened(False, 0.5)
    assert rate.per_s(160.0) == pytest.approx(160.0, rel=0.02)
    for number in range(1, 400):
        rate.opened(True, 0.5 + number * 0.01)
    assert rate.per_s(160.0) == pytest.approx(100.0, rel=0.02), "a longer backlog counts alone"


def test_drain_rate_does_not_count_time_without_a_backlog() -> None:
    rate = DrainRate()
    for at in (0.0, 0.5, 1.0):
        rate.opened(True, at)
    rate.opened(False, 1.2)
    for at in (1000.0, 1000.5, 1001.0):
        rate.opened(True, at)
    assert rate.per_s() == pytest.approx(2.0)


def test_turn_rate_counts_only_the_time_in_which_requests_waited() -> None:
    rate, now = TurnRate(), 0.0
    for _ in range(40):
        rate.began(now)
        for _ in range(3):
            now += 0.25
            rate.sent(now)
        rate.stopped(now)
        now += 5.0  # nobody waits
    rate.began(now)
    assert rate.per_s(now) == pytest.approx(4.0, rel=0.02)
    assert rate.per_s(now + 2.0) == pytest.approx(4.0 * 15 / (15 + 8), rel=0.2)


def test_turn_rate_falls_while_requests_wait_in_vain_and_is_forgotten_without_any() -> None:
    rate = TurnRate()
    rate.began(0.0)
    for number in range(1, 101):
        rate.sent(number / 10.0)
    assert rate.per_s(10.0) == pytest.approx(10.0, rel=0.02)
    rate.stopped(10.0)
    rate.began(10.0)
    rate.stopped(20.0)  # all of them were refused
    rate.began(20.0)
    assert rate.per_s(20.0) == pytest.approx(4.0, rel=0.1)
    rate.stopped(20.0)
    assert rate.per_s(200.0) is None


def test_turn_rate_is_unknown_before_enough_requests_were_sent_from_the_queue() -> None:
    rate = TurnRate()
    rate.began(0.0)
    for turn in range(1, int(FEW_TURNS) + 1):
        assert rate.per_s(10.0) is None
        rate.sent(turn * FEW_TURN_S)
    rate.sent(10.0)
    assert rate.per_s(10.0) is not None
    burst = TurnRate()
    burst.began(0.0)
    for _ in range(20):
        burst.sent(0.1)
    assert burst.per_s(0.1) is None


@STEADY
@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_drain_rate_is_at_most_the_events_per_shortest_window(gaps: list[float]) -> None:
    rate = rate_of(gaps)
    assert rate is None if not gaps else rate is not None and 0 < rate <= len(gaps) / DRAIN_WINDOW_S


# ---- order within a tier


def waiting(
    *who: tuple[str, float], shared: dict[str, TenantUse] | None = None
) -> tuple[PoolQueue, list[RequestState]]:
    """A queue with these (tenant, deadline), all of one tier; each tenant has one usage object."""
    room, uses = PoolQueue(), {} if shared is None else shared
    lives = []
    for number, (tenant, deadline) in enumerate(who):
        state = made(number, "free", 0, tenant)
        state.use = uses.setdefault(tenant, cast(TenantUse, state.use))
        state.deadline = deadline
        room.push(state, 0.0)
        lives.append(state)
    return room, lives


LONG_AFTER = 1000.0
"""By then all have waited for so long that tenants take turns."""


def order(room: PoolQueue, cost: float = 0.0, now: float = LONG_AFTER) -> list[int]:
    """The order of service; each request costs its tenant this many tokens."""
    ids = []
    while room:
        (state,) = room.heads(now)
        room.remove(state, 0.0)
        assert state.use is not None
        if cost:
            state.use.serve(cost, 0.0)
        ids.append(state.request.id)
    return ids


def test_request_with_the_earliest_deadline_goes_first() -> None:
    room, _ = waiting(("a", 5.0), ("a", 2.0), ("a", 9.0), ("a", 2.0))
    assert order(room) == [2, 4, 1, 3]


def test_longer_request_goes_first_of_two_with_one_deadline() -> None:
    room = PoolQueue()
    for number, engine_s in enumerate((0.1, 0.4, 0.2)):
        state = made(number, "free", 0)
        state.forecast = Forecast("p", 0.0, 3.0, 3.0 + engine_s, 0.0, 9.0)
        room.push(state, 0.0)
    unforeseen = made(3, "free", 0)
    unforeseen.deadline = 9.7
    room.push(unforeseen, 0.0)
    assert order(room, now=0.0) == [2, 4, 3, 1]


def test_time_waited_before_the_forecast_is_not_counted_as_engine_time() -> None:
    """The request comes from another pool after five seconds of waiting."""
    room, state = PoolQueue(), made(0, "free", 0)
    state.forecast = Forecast("p", 5.0, 3.0, 5.0 + 3.0 + 0.4, 0.0, 9.0)
    room.push(state, 0.0)
    assert state.start_by == pytest.approx(state.deadline - 0.4)


def test_tenants_take_no_turns_before_any_has_waited_for_long() -> None:
    room, _ = waiting(*[("a", 8.0)] * 4, ("b", 9.0), ("c", 9.5))
    assert order(room, cost=100.0, now=0.9) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("deadline", "patience_s"), [(1.4, 0.7), (100.0, MAX_TURN_S)])
def test_turn_of_a_tenant_is_due_after_half_of_the_allowed_wait_or_a_second(deadline: float, patience_s: float) -> None:
    room, (first, *_, light) = waiting(("heavy", 1.0), ("heavy", 1.1), ("light", deadline))
    assert first.use is not None
    first.use.serve(9000.0, 0.0)
    assert room.heads(patience_s - 0.01) == [first]
    assert room.heads(patience_s) == [light]


def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    room, _ = waiting(*[("a", float(n)) for n in range(6)], ("b", 90.0), ("b", 91.0), ("c", 99.0))
    assert order(room, cost=100.0) == [1, 7, 9, 2, 8, 3, 4, 5, 6]


def test_the_tenant_that_was_served_least_lately_is_next() -> None:
    heavy, light = TenantUse("heavy", "free"), TenantUse("light", "free")
    heavy.serve(8000, 0.0)
    light.serve(1000, 3 * FAIRNESS_HALF_LIFE_S)
    # After three half-lives 8000 tokens count 1000.
    assert heavy.served == pytest.approx(light.served)
    light.serve(-1, 3 * FAIRNESS_HALF_LIFE_S)
    room, _ = waiting(("heavy", 1.0), ("light", 2.0), shared={"heavy": heavy, "light": light})
    assert order(room) == [2, 1]


def test_tenant_that_gets_tokens_back_moves_forward_in_the_order_of_turns() -> None:
    uses = {tenant: TenantUse(tenant, "free") for tenant in "abc"}
    for tokens, use in zip((100, 200, 900), uses.values(), strict=True):
        use.serve(tokens, 0.0)
    room, (first, second, last) = waiting(("a", 1.0), ("b", 2.0), ("c", 3.0), shared=uses)
    assert room.heads(LONG_AFTER) == [first]
    uses["c"].serve(-850, 0.0)
    room.of_tier(RULES.tiers["free"]).returned("c")
    assert room.heads(LONG_AFTER) == [last]
    uses["c"].serve(850, 0.0)
    assert order(room) == [first.request.id, second.request.id, last.request.id]


def test_queue_keeps_no_stale_turns_of_tenants_whose_tokens_are_returned() -> None:
    uses = {tenant: TenantUse(tenant, "free") for tenant in "ab"}
    uses["a"].serve(1, 0.0)
    uses["b"].serve(1e6, 0.0)
    room, _ = waiting(("a", 1.0), ("b", 2.0), shared=uses)
    few = 0
    for number in range(5000):
        uses["b"].serve(-100, 0.0)
        room.of_tier(RULES.tiers["free"]).returned("b")
        if number == 200:
            few = footprint(room)
    assert footprint(room) <= 1.5 * few


def test_returned_tokens_are_not_charged_to_a_tenant() -> None:
    use = TenantUse("a", "free")
    use.serve(500, 10.0)
    use.serve(-500, 40.0)
    assert 2.0 ** (use.served - 40.0 / FAIRNESS_HALF_LIFE_S) < 1e-6
    use.serve(-1e9, 41.0)
    use.serve(7, 42.0)
    assert 2.0 ** (use.served - 42.0 / FAIRNESS_HALF_LIFE_S) == pytest.approx(7)


@STEADY
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([1.0, 50.0, 700.0])), max_size=40))
def test_waiting_tenant_falls_behind_another_by_at_most_one_request(
    who: list[tuple[str, int, float]],
) -> None:
    room, lives = waiting(*((tenant, float(at)) for tenant, at, _ in who))
    cost = {state.request.id: tokens for state, (_, _, tokens) in zip(lives, who, strict=True)}
    had = dict.fromkeys("abc", 0.0)
    while room:
        (state,) = room.heads(LONG_AFTER)
        tenant, mine = state.request.tenant, cost[state.request.id]
        still = {other.request.tenant for other in room}
        assert all(had[tenant] <= had[other] + 1e-9 for other in still)
        assert state.deadline == min(other.deadline for other in room if other.request.tenant == tenant)
        room.remove(state, 0.0)
        assert state.use is not None
        state.use.serve(mine, 0.0)
        had[tenant] += mine


def test_new_request_is_behind_its_tenants_requests_and_fair_turns_of_others() -> None:
    room, _ = waiting(*[("a", 1.0)] * 5, ("b", 1.0))
    tier_queue = room.of_tier(RULES.tiers["free"])
    assert [tier_queue.ahead_of(tenant) for tenant in ("a", "b", "new")] == [6, 3, 2]


def test_new_request_is_behind_only_the_requests_with_an_earlier_latest_start() -> None:
    queue = PoolQueue()
    for number in range(9):
        queue.push(made(number, "x", 0), 0.0)
    tier_queue = queue.of_tier(TIERS[1])
    assert [tier_queue.ahead_of("acme", start_by) for start_by in (9.0, 10.0, 11.5, 99.0)] == [0, 3, 6, 9]


def test_queue_heaps_forget_removed_requests() -> None:
    room, _ = waiting(("a", 0.0))
    few = 0
    for number in range(1, 5000):
        state = made(number, "free", 0, "a")
        room.push(state, 0.0)
        room.remove(state, 0.0)
        if number == 200:
            few = footprint(room)
    assert footprint(room) <= 1.5 * few


# ---- the floor of a tier


def dispatched(floor: float, costs: dict[str, list[float]], rounds: int) -> list[tuple[str, float]]:
    """The served tiers and tokens, while both tiers `high` and `low` always have waiting requests."""
    high, low = tier("high", 0), tier("low", 1, floor=floor)
    rules = policy(pool("p", "r1"), high, low)
    room, served = PoolQueue(), list[tuple[str, float]]()
    for number in range(rounds + 1):
        for name in ("high", "low"):
            if not room.holds(rules.tiers[name]):
                state = RequestState(a_request(2 * number + (name == "low") + 1, rules, float(number), tier=name))
                state.use = TenantUse("acme", name)
                room.push(state, 0.0)
        head = room.heads(0.0)[0]
        name = head.request.tier.name
        tokens = costs[name][number % len(costs[name])]
        room.remove(head, 0.0)
        room.served(head.request.tier, tokens)
        served.append((name, tokens))
    return served


@pytest.mark.parametrize(
    "costs", [{"high": [1000.0], "low": [1000.0]}, {"high": [90.0, 3000.0], "low": [50.0, 4000.0]}]
)
def test_the_lowest_tier_gets_its_floor_in_any_window_worth_some_requests(costs: dict[str, list[float]]) -> None:
    served = dispatched(0.05, costs, 4000)
    for start in range(0, 3500, 7):
        window = served[start : start + 400]
        total, low = sum(t for _, t in window), sum(t for name, t in window if name == "low")
        assert 0.05 * total <= low <= 0.08 * total


def test_lowest_tier_without_a_floor_gets_no_slot_while_others_wait() -> None:
    assert {name for name, _ in dispatched(0.0, {"high": [1.0], "low": [1.0]}, 100)} == {"high"}


def test_floor_owes_no_tokens_for_time_without_waiting_requests() -> None:
    low = tier("low", 1, floor=0.05)
    room = PoolQueue()
    room.of_tier(low)
    for _ in range(1000):
        room.served(PREMIUM, 1000.0)
    assert room.of_tier(low).owed <= 0


# ---- how many come


def test_arrival_rate_follows_the_last_seconds() -> None:
    rate = Rate(5.0)
    assert rate.per_s(3.0) == 0.0
    for number in range(400):
        rate.add(number * 0.1)
    assert rate.per_s(40.0) == pytest.approx(10.0, rel=0.05)
    assert rate.per_s(60.0) < 0.5


def test_queue_keeps_no_memory_of_tenants_that_left() -> None:
    """One tenant always waits and was served least, so that other entries never come to the top."""
    room, few = PoolQueue(), 0
    room.push(made(0, "x", 1), 0.0)
    for number in range(1, 1000):
        state = made(number, "x", 1, f"tenant {number % 7}")
        assert state.use is not None
        state.use.serve(100.0, 0.0)
        room.push(state, 0.0)
        room.remove(state, 0.0)
        room.heads(0.0)
        if number == 50:
            few = footprint(room)
    assert footprint(room) <= 1.5 * few
