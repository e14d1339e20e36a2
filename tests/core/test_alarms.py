"""Timers against a plain dictionary."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.deadlines import Timers
from tests.footprint import footprint

from .made import STEADY

keys = st.integers(1, 3)
times = st.integers(0, 20).map(float)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, st.one_of(times, st.just(math.inf))),
        st.tuples(st.just("clear"), keys, st.none()),
        st.tuples(st.just("due"), st.none(), times),
    ),
    min_size=20,
    max_size=60,
)


@STEADY
@given(steps)
def test_timers_behave_like_a_dictionary_of_times(steps: list[tuple[str, int, float]]) -> None:
    alarms, plain = Timers(), dict[int, float]()
    for what, key, at in steps:
        if what == "set":
            alarms.set(key, at)
            plain[key] = at
        elif what == "clear":
            alarms.clear(key)
            plain.pop(key, None)
        else:
            due = alarms.due(at)
            assert sorted(due) == sorted(k for k, t in plain.items() if t <= at)
            times = [plain.pop(k) for k in due]
            assert times == sorted(times)
        plain = {k: t for k, t in plain.items() if t < math.inf}
        assert len(alarms) == len(plain)
        assert alarms.next_at() == min(plain.values(), default=math.inf)
        assert all(alarms.at(k) == plain.get(k, math.inf) for k in range(1, 4))


def test_timer_that_is_set_several_times_fires_once() -> None:
    alarms = Timers()
    for at in (5.0, 3.0, 5.0, 3.0, 5.0):
        alarms.set(1, at)
    assert alarms.due(10.0) == [1]
    assert alarms.due(10.0) == []


def test_cleared_timers_do_not_pile_up_in_memory() -> None:
    alarms, few = Timers(), 0
    for key in range(100_000):
        alarms.set(key, 600.0 + key)
        alarms.set(key, 60.0 + key)
        if key >= 100:
            alarms.clear(key - 100)
        if key == 1000:
            few = footprint(alarms)
    assert len(alarms) == 100
    assert footprint(alarms) <= 2 * few
