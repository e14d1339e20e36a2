"""The URL of a pool is called while requests are on hold, with pauses that double."""

from __future__ import annotations

from gateway.core.pool_spec import Hold, PoolSpec
from gateway.fleet.wake import Waker

from .replicas import policy


def test_url_is_called_at_once_and_then_with_pauses_that_double_while_requests_are_on_hold() -> None:
    held: dict[str, int] = {}
    waker = Waker(lambda: held, lambda _: (), lambda: 0.0)
    waker.configure(policy(PoolSpec("a", (), hold=Hold(wake_url="http://scaler:1/wake")), PoolSpec("b", ())))
    assert waker.due(0.0) == []
    held.update(a=1, b=1)
    calls = [now for now in range(1, 400) if waker.due(float(now))]
    assert calls == [1, 11, 31, 71, 151, 271, 391]
    held.clear()
    assert waker.due(400.0) == []
    held.update(a=2)
    assert waker.due(401.0) == ["a"]


def test_url_is_not_called_more_often_when_clients_give_up_again_and_again() -> None:
    held: dict[str, int] = {}
    waker = Waker(lambda: held, lambda _: (), lambda: 0.0)
    waker.configure(policy(PoolSpec("a", (), hold=Hold(wake_url="http://scaler:1/wake"))))
    calls = []
    for now in range(1, 40):
        held["a"] = now % 2
        if waker.due(float(now)):
            calls.append(now)
    assert calls == [1, 11, 21, 31]


def test_url_that_a_reload_has_changed_is_called_at_once() -> None:
    waker = Waker(lambda: {"a": 1}, lambda _: (), lambda: 0.0)
    for now, name in ((1.0, "wrong"), (2.0, "right"), (3.0, "right")):
        waker.configure(policy(PoolSpec("a", (), hold=Hold(wake_url=f"http://{name}:1/wake"))))
        assert waker.due(now) == (["a"] if now < 3.0 else [])
