"""A relay tells the next decider everything that the last one knew of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from gateway.core.results import AttemptOutcome, AttemptResult, HedgeResult, Reason, Record
from gateway.driving import frames
from gateway.driving.channel import Channel
from gateway.driving.remote_driver import RemoteDriver
from gateway.proxy.driver import CommandHandler
from tests.core.made import a_request, policy, pool, tier
from tests.interpreted import interpreted

pytestmark = interpreted
RULES = policy(pool("p", "r1", "r2"), tier("std"), generation=3)


class Told(Channel):
    """A channel that keeps what is told."""

    def __init__(self) -> None:
        self.frames: list[Sequence[object]] = []
        self.is_open = True

    def tell(self, frame: Sequence[object]) -> None:
        self.frames.append(frame)

    def kinds(self) -> list[object]:
        return [frame[0] for frame in self.frames]


class Exchange(CommandHandler):
    """An exchange that keeps its commands."""

    def __init__(self) -> None:
        self.commands: list[object] = []

    @property
    def tokens_seen(self) -> int:
        return 0

    def dispatch(self, attempt_id: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        self.commands.append(("dispatch", attempt_id, replica))

    def commit(self, attempt_id: int, hedged: HedgeResult | None) -> None:
        self.commands.append(("commit", attempt_id))

    def cancel(self, attempt_id: int) -> int:
        self.commands.append(("cancel", attempt_id))
        return 5

    def cut(self, why: Reason, prompt_tokens: int) -> None: ...

    def refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None: ...

    def ended(self, record: Record) -> None: ...

    def abort(self) -> None:
        self.commands.append("abort")


def relay() -> RemoteDriver:
    driver = RemoteDriver(2, lambda _: None, cast(asyncio.AbstractEventLoop, None), lambda: 9.0)
    driver.connect(Told(), RULES)
    return driver


def dispatched(driver: RemoteDriver, attempt: int) -> tuple[int, Exchange]:
    """A request of the relay with an attempt under way."""
    exchange, request = Exchange(), a_request(driver.next_id(), RULES, 1.0)
    driver.arrive(request, exchange)
    driver.on_command([frames.DISPATCH, request.id, attempt, "r1", 10, False, "", None])
    driver.sent(attempt)
    return request.id, exchange


def next_decider(driver: RemoteDriver, rules: Any = RULES) -> Told:
    driver.disconnected()
    channel = Told()
    driver.connect(channel, rules)
    return channel


def test_ids_of_requests_carry_the_number_of_the_relay() -> None:
    assert relay().next_id() == (2 << 40) + 1


def test_request_that_waits_arrives_again_and_one_that_runs_is_adopted() -> None:
    driver = relay()
    driver.arrive(a_request(driver.next_id(), RULES, 1.0), Exchange())
    running, _ = dispatched(driver, 7)
    driver.first_token(7)
    driver.on_command([frames.COMMIT, running, 7, None])
    driver.paused(7)
    told = next_decider(driver)
    assert told.kinds() == [frames.ARRIVE, frames.ADOPT, frames.PAUSED]
    assert told.frames[1][3] == [(7, "r1", 9.0, 9.0, True)]


def test_answer_that_ends_between_two_deciders_is_told_to_the_next() -> None:
    driver = relay()
    dispatched(driver, 7)
    driver.disconnected()
    driver.finish(7, AttemptResult(AttemptOutcome.COMPLETE, 10, 5, 5), "p", "r1")
    told = next_decider(driver)
    assert told.kinds() == [frames.ADOPT, frames.FINISH]


def test_failure_that_the_last_decider_judged_is_no_news_for_the_next() -> None:
    driver = relay()
    request_id, _ = dispatched(driver, 7)
    driver.finish(7, AttemptResult(AttemptOutcome.UNREACHABLE, tokens_seen=3), "p", "r1")
    driver.on_command([frames.DISPATCH, request_id, 8, "r2", 10, False, "", None])
    driver.sent(8)
    told = next_decider(driver)
    assert told.kinds() == [frames.ADOPT, frames.FINISH]
    end = frames.result_of(cast("list[object]", told.frames[1][3]))
    assert (end.end, end.tokens_seen) == (AttemptOutcome.CANCELLED, 3)


def test_client_that_left_between_two_deciders_has_left_for_the_next() -> None:
    driver = relay()
    waiting = a_request(driver.next_id(), RULES, 1.0)
    driver.arrive(waiting, Exchange())
    driver.disconnected()
    driver.leave(waiting.id, Reason.CLIENT_GONE)
    told = next_decider(driver)
    assert told.kinds() == [frames.ARRIVE, frames.LEAVE]


def test_request_of_a_tier_that_the_next_decider_does_not_have_ends() -> None:
    driver = relay()
    _, exchange = dispatched(driver, 7)
    told = next_decider(driver, policy(pool("p", "r1"), tier("gold")))
    assert told.kinds() == []
    assert exchange.commands[-1] == "abort"
    assert driver.under_way == 0


def test_limit_is_forgotten_with_the_decider_that_told_it() -> None:
    driver = relay()
    driver.limited("acme", "std", Reason.LIMIT_CONCURRENCY, 100.0)
    assert driver.exceeded("acme", RULES.tiers["std"], 1) is not None
    next_decider(driver)
    assert driver.exceeded("acme", RULES.tiers["std"], 1) is None


def test_cancelled_attempt_is_told_once_also_if_it_ended_just_before() -> None:
    driver = relay()
    request_id, exchange = dispatched(driver, 7)
    driver.on_command([frames.CANCEL, request_id, 7])
    told = cast(Told, driver.channel)
    assert [frame[3][:4] for frame in told.frames if frame[0] == frames.FINISH] == [("cancelled", None, None, 5)]  # type: ignore[index]
    driver.on_command([frames.CANCEL, request_id, 7])
    assert told.kinds().count(frames.FINISH) == 1
    assert exchange.commands.count(("cancel", 7)) == 2
