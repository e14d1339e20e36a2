"""The waiting room against a plain list, and the rate at which requests leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ledger import Live
from gateway.core.model import Ask
from gateway.core.queue import DRAIN_WINDOW_S, DrainRate, WaitingRoom

from .made import SHADOW, STEADY, ask, policy, pool, tier

TIERS = (tier("premium", 0), tier("x", 1), tier("y", 1), tier("shadow", 2, admission=SHADOW), tier("free", 2))
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


def turn(live: Live) -> tuple[int, float, int]:
    return live.ask.tier.priority, live.ask.body_at, live.ask.id


@STEADY
@given(moves)
def test_the_room_is_a_list_sorted_by_priority_and_arrival(moves: list[tuple[str, object, int]]) -> None:
    room, plain = WaitingRoom(), list[Live]()
    for number, (what, choice, size) in enumerate(moves):
        if what == "push":
            live = Live(made(number, choice.name, size))  # type: ignore[attr-defined]
            room.push(live)
            plain.append(live)
        elif plain:
            heads = room.heads()
            pick = heads if what == "serve" else plain
            live = pick[choice % len(pick)]  # type: ignore[operator]
            room.remove(live)
            plain.remove(live)
        check(room, plain)


def made(number: int, tier_name: str, size: int) -> Ask:
    # Several arrive in the same second.
    return ask(number + 1, RULES, float(number // 3), tier=tier_name, body_bytes=size)


def check(room: WaitingRoom, plain: list[Live]) -> None:
    plain = sorted(plain, key=turn)
    assert len(room) == len(plain)
    assert list(room) == plain
    assert room.bytes == sum(live.ask.body_bytes for live in plain)
    for t in TIERS:
        assert room.holds(t) == any(live.ask.tier is t for live in plain)
    firsts = {live.ask.tier.name: live for live in reversed(plain)}
    assert room.heads() == sorted(firsts.values(), key=turn)
    for priority in range(-1, 4):
        assert room.ahead_of(priority) == sum(live.ask.tier.priority <= priority for live in plain)
        below = [live for live in plain if live.ask.tier.priority > priority and live.ask.tier.name != "shadow"]
        assert room.last_below(priority) == (below[-1] if below else None)


# ---- the rate at which requests leave


def rate_of(gaps: list[float], *, backlogged: bool = True) -> float | None:
    rate, now = DrainRate(), 0.0
    rate.departed(backlogged, now)
    for gap in gaps:
        now += gap
        rate.departed(backlogged, now)
    return rate.per_s


@pytest.mark.parametrize("per_s", [0.2, 3.0, 250.0])
def test_an_even_rate_is_found(per_s: float) -> None:
    assert rate_of([1 / per_s] * int(60 * per_s)) == pytest.approx(per_s, rel=1e-6)


@pytest.mark.parametrize("burst", [2, 10, 50])
def test_bursts_count_as_many_and_the_pauses_between_them_too(burst: int) -> None:
    gaps = ([0.0] * (burst - 1) + [1.0]) * 60
    assert rate_of(gaps) == pytest.approx(burst, rel=0.2)


def test_a_rate_that_changes_is_followed() -> None:
    assert rate_of([0.1] * 600 + [1.0] * 30) == pytest.approx(1.0, rel=0.1)


def test_without_a_backlog_nothing_is_measured() -> None:
    assert rate_of([0.1] * 100, backlogged=False) is None


def test_the_time_without_a_backlog_does_not_count() -> None:
    rate = DrainRate()
    for at in (0.0, 0.5, 1.0):
        rate.departed(True, at)
    rate.departed(False, 1.2)
    for at in (1000.0, 1000.5, 1001.0):
        rate.departed(True, at)
    assert rate.per_s == pytest.approx(2.0)


@STEADY
@given(st.lists(st.floats(0.0, 100.0), max_size=30))
def test_a_rate_is_never_more_than_was_seen_in_the_shortest_window(gaps: list[float]) -> None:
    rate = rate_of(gaps)
    assert rate is None if not gaps else rate is not None and 0 < rate <= len(gaps) / DRAIN_WINDOW_S
