"""Deadlines of many connections are acted upon in slices, the oldest first."""

from __future__ import annotations

from gateway.proxy.deadlines import MAX_AT_ONCE, Deadline


def test_a_sweep_acts_on_a_bounded_number_and_says_that_there_are_more() -> None:
    acted: list[int] = []
    deadline: Deadline[int] = Deadline(1.0, acted.append)
    keys = list(range(2 * MAX_AT_ONCE + 1))
    for key in keys:
        deadline.start(key, 0.0)
    assert deadline.sweep(0.5) is False
    assert not acted
    sweeps = [deadline.sweep(2.0) for _ in range(3)]
    assert sweeps == [True, True, False]
    assert acted == keys
    assert deadline.oldest() is None


def test_a_sweep_that_ends_exactly_at_its_bound_has_no_more() -> None:
    acted: list[int] = []
    deadline: Deadline[int] = Deadline(1.0, acted.append)
    for key in range(MAX_AT_ONCE):
        deadline.start(key, 0.0)
    deadline.start(-1, 5.0)
    assert deadline.sweep(2.0) is False
    assert len(acted) == MAX_AT_ONCE
    assert deadline.oldest() == -1
