"""Deadlines of many connections are handled in slices, the oldest first."""

from __future__ import annotations

from gateway.proxy.time_limits import MAX_AT_ONCE, Deadline


def test_deadline_sweep_handles_a_bounded_number_of_keys_and_reports_if_more_are_due() -> None:
    acted: list[int] = []
    deadline: Deadline[int] = Deadline(1.0, acted.append, _fail)
    keys = list(range(2 * MAX_AT_ONCE + 1))
    for key in keys:
        deadline.start(key, 0.0)
    assert deadline.sweep(0.5) is False
    assert not acted
    sweeps = [deadline.sweep(2.0) for _ in range(3)]
    assert sweeps == [True, True, False]
    assert acted == keys
    assert deadline.oldest() is None


def test_deadline_sweep_that_handles_exactly_its_maximum_reports_no_more() -> None:
    acted: list[int] = []
    deadline: Deadline[int] = Deadline(1.0, acted.append, _fail)
    for key in range(MAX_AT_ONCE):
        deadline.start(key, 0.0)
    deadline.start(-1, 5.0)
    assert deadline.sweep(2.0) is False
    assert len(acted) == MAX_AT_ONCE
    assert deadline.oldest() == -1


def test_deadline_sweep_reports_a_key_that_raises_and_handles_the_others() -> None:
    acted: list[int] = []
    raised: list[tuple[int, str]] = []

    def act(key: int) -> None:
        if key == 1:
            raise ZeroDivisionError
        acted.append(key)

    deadline: Deadline[int] = Deadline(1.0, act, lambda key, error: raised.append((key, type(error).__name__)))
    for key in range(3):
        deadline.start(key, 0.0)
    deadline.sweep(1.0)
    assert (acted, raised, len(deadline)) == ([0, 2], [(1, "ZeroDivisionError")], 0)


def _fail(key: int, error: Exception) -> None:
    raise error
