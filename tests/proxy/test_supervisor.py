"""A bug anywhere costs one request: each call and each command raises in turn, and all other requests are served.

Driver and controller are real; the clock is the test's own. A run without errors counts the places that can raise.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.controller import Controller
from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.estimators.histograms import LogHistogram
from gateway.core.history import EarlyRefusal
from gateway.core.journal.recorder import CALLS
from gateway.core.pool_spec import Timeouts
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, CountSource, Outcome, Reason, Record
from gateway.core.sample import Sample
from gateway.driving.local_driver import LocalDriver
from gateway.proxy.logs import LOG_EVERY_S
from gateway.proxy.supervisor import Supervisor
from gateway.wire.answers.events import StreamReader
from tests.core.made import a_request, policy, pool, tier
from tests.interpreted import interpreted

pytestmark = interpreted

POLICY = policy(
    pool("p", "r1", "r2"), tier("std", timeouts=Timeouts(queue_s=50.0, ttft_s=5.0, idle_s=5.0, total_s=100.0))
)
REQUESTS = 6
READER = cast(StreamReader, SimpleNamespace(tokens_seen=3))


class Bug(Exception):
    pass


@dataclass
class Trap:
    """Counts the places that are passed, and raises at one of them."""

    at: int = -1
    passed: int = 0
    sprung: str = ""

    def step(self, place: str) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.sprung = place
            raise Bug(place)

    def around(self, place: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, with one place before it and one behind it."""

        def trapped(*args: Any) -> Any:
            self.step(f"before {place}")
            answer = method(*args)
            self.step(f"after {place}")
            return answer

        return trapped


class Timer:
    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act

    def cancel(self) -> None:
        self.at = float("inf")


class Loop:
    """A loop with only timers, and their clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, act: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay, act)
        self.timers.append(timer)
        return timer

    def run_until(self, at: float) -> None:
        for _ in range(10_000):
            timer = min(self.timers, key=lambda timer: timer.at, default=None)
            if timer is None or timer.at > at:
                self.now = at
                return
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.act()
        raise AssertionError("a timer rings again and again")


class Meter:
    def __init__(self, trap: Trap) -> None:
        self.records: list[Record] = []
        self.bugs: list[Callback] = []
        trapped: Any = self
        trapped.ended = trap.around("meter.ended", self.records.append)
        trapped.upstream_error = trap.around("meter.upstream_error", lambda *_: None)

    def ended(self, record: Record) -> None: ...
    def refused_early(self, refusal: EarlyRefusal) -> None: ...
    def token_count(self, source: CountSource) -> None: ...
    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None: ...

    def bug(self, callback: Callback) -> None:
        self.bugs.append(callback)

    def gaps(self, tier: str, pool: str) -> LogHistogram:
        return LogHistogram(())


@dataclass
class FakeExchange:
    """The client's events, and the open attempts."""

    trap: Trap
    answers: list[str] = field(default_factory=list)
    is_over: bool = False
    """Whether the client has its whole answer, and has left."""
    open: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dispatch", "commit", "cancel", "cut", "refuse", "ended"):
            setattr(self, name, self.trap.around(f"exchange.{name}", getattr(self, f"_{name}")))

    def _dispatch(self, attempt: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        self.open[attempt] = replica

    def _commit(self, attempt: int, hedged: object) -> None:
        self.answers.append("answer")
        self.is_over = attempt not in self.open

    def _cancel(self, attempt: int) -> int:
        self.open.pop(attempt, None)
        return 0

    def _cut(self, why: Reason, prompt_tokens: int) -> None:
        self.ends("cut")

    def _refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None:
        self.ends(why.value)

    def _ended(self, record: Record) -> None:
        self.abort()

    def abort(self) -> None:
        self.ends("closed")

    def ends(self, said: str) -> None:
        if not self.is_over:
            self.answers.append(said)
            self.is_over = True


class Rig:
    """Six requests for two slots: one times out, one is retried, one client leaves, the others are answered."""

    def __init__(self, trap: Trap) -> None:
        self.loop = Loop()
        self.trap = trap
        self.meter = Meter(trap)
        self.controller = Controller(POLICY, random.Random(1))
        at, trap.at = trap.at, -1
        self.driver = LocalDriver(self.controller, cast(Any, self.meter), cast(Any, self.loop), lambda: self.loop.now)
        for name in CALLS - {"fail"}:
            setattr(self.controller, name, trap.around(f"controller.{name}", getattr(self.controller, name)))
        self.exchanges = [FakeExchange(trap) for _ in range(REQUESTS)]
        trap.at = at

    def play(self) -> None:
        retried, slow = self.exchanges[0], self.exchanges[1]
        for number, exchange in enumerate(self.exchanges, 1):
            self.driver.arrive(a_request(number, POLICY, self.loop.now), cast(Any, exchange))
            if exchange is retried:
                self.ends(retried, AttemptOutcome.RESET)
        self.driver.observe("r1", Sample(healthy=True, waiting=0, running=1))
        self.driver.leave(6, Reason.CLIENT_GONE)
        for attempt in list(slow.open):
            self.driver.sent(attempt)
        self.serve(slow)
        self.loop.run_until(self.loop.now + 6.0)  # its time to a first token is over
        self.serve(slow)
        self.driver.drain("r2", True)
        self.driver.drain("r2", False)
        self.driver.configure(POLICY)
        self.serve()
        self.loop.run_until(self.loop.now + 200.0)
        self.driver.shut()

    def serve(self, but: FakeExchange | None = None) -> None:
        """Answer all open requests, and those that are sent after them."""
        for _ in range(2 * REQUESTS):
            for exchange in self.exchanges:
                for attempt in list(exchange.open) if exchange is not but else ():
                    self.driver.sent(attempt)
                    self.driver.first_token(attempt)
                    self.driver.grew(attempt, READER)
                    self.loop.run_until(self.loop.now + PROGRESS_EVERY_S)
                    self.driver.paused(attempt)
                    self.driver.resumed(attempt)
                if exchange is not but:
                    self.ends(exchange, AttemptOutcome.COMPLETE)

    def ends(self, exchange: FakeExchange, end: AttemptOutcome) -> None:
        for attempt in list(exchange.open):
            replica = exchange.open.pop(attempt)
            if end is AttemptOutcome.COMPLETE and exchange.answers:
                exchange.is_over = True
            self.driver.finish(attempt, AttemptResult(end, output_tokens=5), "p", replica)


def test_a_bug_at_any_place_costs_one_request_and_no_slot() -> None:
    logging.getLogger("tailgate.bugs").disabled = True
    counting = Trap()
    clean = Rig(counting)
    clean.play()
    expected = [["answer"], ["ttft-timeout"], *[["answer"]] * 3, ["closed"]]
    assert [exchange.answers for exchange in clean.exchanges] == expected
    assert not clean.meter.bugs
    try:
        for at in range(1, counting.passed + 1):
            trap = Trap(at)
            rig = Rig(trap)
            try:
                rig.play()
            except Bug:
                # The caller of a reload or a drain gets the error.
                assert trap.sprung.endswith(("controller.configure", "controller.drain"))
                rig.loop.run_until(rig.loop.now + 200.0)
                rig.driver.shut()
            assert trap.sprung, at
            others = [each for each, said in zip(rig.exchanges, expected, strict=True) if each.answers != said]
            assert len(others) <= 1, (trap.sprung, [exchange.answers for exchange in rig.exchanges])
            assert all(exchange.answers[-1] in ("internal", "closed") for exchange in others), (trap.sprung, others)
            assert all(exchange.is_over and not exchange.open for exchange in rig.exchanges), trap.sprung
            assert all(len(exchange.answers) in (1, 2) for exchange in rig.exchanges), trap.sprung
            assert rig.driver.under_way == 0, trap.sprung
            assert rig.meter.bugs, trap.sprung
            (view,) = rig.controller.snapshot(rig.loop.now).pools
            assert (view.in_flight, view.queued, [r.in_flight for r in view.replicas]) == (0, 0, [0, 0]), trap.sprung
    finally:
        logging.getLogger("tailgate.bugs").disabled = False
    assert counting.passed > 100


def test_deadline_that_raises_ends_its_request_and_later_deadlines_still_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(Trap())
    expire, raised = rig.controller.lifecycle.expire, []

    def broken(live: Any, *rest: Any) -> None:
        if live.request.id in (3, 4):
            raised.append(live.request.id)
            raise Bug
        expire(live, *rest)

    monkeypatch.setattr(rig.controller.lifecycle, "expire", broken)
    for number, exchange in enumerate(rig.exchanges, 1):
        rig.driver.arrive(a_request(number, POLICY, rig.loop.now), cast(Any, exchange))
    rig.loop.run_until(rig.loop.now + 50.0)
    assert raised == [3, 4]
    said = [["internal"], ["internal"], ["queue-timeout"], ["queue-timeout"]]
    assert [exchange.answers for exchange in rig.exchanges[2:]] == said
    assert [record.outcome for record in rig.meter.records] == [Outcome.ERROR] * 2 + [Outcome.TIMEOUT] * 2


def test_controller_wake_that_always_raises_stays_armed_without_spinning_the_loop() -> None:
    rig = Rig(Trap())

    def broken(now: float) -> Any:
        raise Bug

    rig.driver.arrive(a_request(1, POLICY, rig.loop.now), cast(Any, rig.exchanges[0]))
    controller: Any = rig.controller
    wake = controller.wake
    controller.wake = broken
    rig.loop.run_until(rig.loop.now + 101.0)
    assert 1000 < len(rig.meter.bugs) < 5000
    controller.wake = wake
    rig.loop.run_until(rig.loop.now + 1.0)
    assert rig.exchanges[0].answers == ["total-timeout"]


def test_end_of_an_attempt_whose_cancel_raised_is_ignored() -> None:
    """The cancel freed the slot; the attempt goes on at the replica, and its end concerns no request."""
    rig = Rig(Trap())
    exchange: Any = rig.exchanges[0]

    def broken(attempt: int) -> int:
        raise Bug

    exchange.cancel = broken
    rig.driver.arrive(a_request(1, POLICY, rig.loop.now), cast(Any, exchange))
    (attempt,) = exchange.open
    rig.driver.leave(1, Reason.CLIENT_GONE)
    assert rig.meter.bugs == [Callback.COMMAND]
    rig.driver.finish(attempt, AttemptResult(AttemptOutcome.RESET), "p", exchange.open[attempt])
    assert rig.meter.bugs == [Callback.COMMAND]
    assert rig.driver.under_way == 0
    (view,) = rig.controller.snapshot(rig.loop.now).pools
    assert view.in_flight == 0


def test_bugs_of_one_kind_are_logged_once_a_minute_and_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    counted: list[Callback] = []
    supervisor = Supervisor(counted.append, lambda: now[0])

    def raises(error: Exception) -> None:
        try:
            raise error
        except Exception as caught:  # noqa: BLE001
            supervisor.caught(Callback.REPLICA, caught)

    for _ in range(5):
        raises(OverflowError())
    raises(KeyError())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    now[0] = LOG_EVERY_S
    raises(OverflowError())
    assert "4 more like it" in caplog.text
    assert "Traceback" in caplog.text
    assert counted == [Callback.REPLICA] * 7
