"""The decider's end of a relay: makes the calls that the relay tells, and tells it the commands."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from gateway.core.policy import Policy
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import LIMITS, AttemptOutcome, AttemptResult, Callback, HedgeResult, Reason, Record
from gateway.driving import frames
from gateway.driving.channel import Channel, Frame
from gateway.driving.local_driver import LocalDriver
from gateway.proxy.driver import CommandHandler
from gateway.proxy.limits import SWEEP_S


class FrameClock:
    """The clock of a decider. While a frame is handled, it shows the time at which the relay wrote it, so that a busy
    decider adds nothing to a latency. It never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = -math.inf
        self._is_held = False

    def read(self) -> float:
        """The time in seconds."""
        if not self._is_held:
            self._now = max(self._now, self._clock())
        return self._now

    def hold(self, at: float) -> None:
        """Show `at`, or the last time shown if that is later, until `release`."""
        self._now = max(self._now, at)
        self._is_held = True

    def release(self) -> None:
        """Show the real time again."""
        self._is_held = False


class RelayLoad:
    """How busy a relay is, as it told last."""

    __slots__ = ("_lag_s", "_told_at", "connections", "held_s", "number", "pid", "under_way")

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.pid = 0
        self.connections = 0
        """Open client connections."""
        self.under_way = 0
        """Requests that are not over."""
        self._lag_s = 0.0
        self._told_at = now
        self.held_s: dict[str, float] = {}
        """By pool, the seconds that its requests have been held since it began, by the count of its connections."""

    def lag_s(self, now: float) -> float:
        """Longest delay of its event loop in the last seconds. It grows while a relay hangs, and so tells nothing."""
        return max(self._lag_s, now - self._told_at - SWEEP_S)

    def told(self, frame: list[object], now: float) -> None:
        """Take what a LOADS frame says."""
        self._told_at = now
        self.connections, self.under_way = cast(int, frame[1]), cast(int, frame[2])
        self._lag_s, self.held_s = cast(float, frame[3]), cast("dict[str, float]", frame[4])
        self.pid = cast(int, frame[5])


class RelayOwner(ABC):
    """The decider, as its links use it."""

    @abstractmethod
    def met_limit(self, request: Request, exceeded: LimitExceeded) -> None:
        """The tenant of a request is beyond a limit."""

    @abstractmethod
    def told(self, link: RelayLink, frame: list[object]) -> None:
        """The relay told something that is not about a request under way."""

    @abstractmethod
    def lost(self, link: RelayLink) -> None:
        """The relay is gone. Its requests have left."""


class RelayLink:
    """One relay, as its decider sees it."""

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        driver: LocalDriver,
        clock: FrameClock,
        owner: RelayOwner,
        policy: Policy,
    ) -> None:
        """`number`: names the relay in state and metrics."""
        self.number = number
        self.channel = Channel(loop, self.on_frames, self.on_lost)
        """The relay is at its other end."""
        self.load = RelayLoad(number, clock.read())
        self._driver = driver
        self._clock = clock
        self._owner = owner
        self._policies = {policy.generation: policy}
        """By generation: those that requests of the relay may still arrive under."""
        self.exchanges: dict[int, RemoteExchange] = {}
        """Requests of the relay that are not over, by id."""
        self.tokens: dict[int, int] = {}
        """Tokens of its attempts under way, by attempt."""

    @property
    def is_gone(self) -> bool:
        """Whether the relay has ended."""
        return not self.channel.is_open

    def tell(self, frame: Frame) -> None:
        """Tell the relay something."""
        self.channel.tell(frame)

    def configure(self, policy: Policy) -> None:
        """Requests may arrive under this policy, too."""
        self._policies[policy.generation] = policy

    def on_frames(self, told: list[list[object]]) -> None:
        """Carry out what the relay tells."""
        for frame in told:
            try:
                self._on_frame(frame)
            except Exception as error:  # noqa: BLE001 - a bug affects only this frame
                self._driver.supervisor.caught(Callback.DECISION, error)
                if frame[0] in (frames.ARRIVE, frames.ADOPT):
                    # Nobody will ever answer this request, so its client must not wait.
                    self.tell((frames.ABORT, cast("list[object]", frame[2])[0]))
        self._clock.release()

    def on_lost(self) -> None:
        """The relay is gone: its slots are free at once."""
        for request_id in list(self.exchanges):
            self._driver.leave(request_id, Reason.CLIENT_GONE)
        for attempt in self._driver.attempts_of(self.exchanges):  # the relay was told to cancel them, and will not
            result = AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=self.tokens.pop(attempt, 0))
            self._driver.finish(attempt, result, "", "")
        self._owner.lost(self)

    def _on_frame(self, frame: list[object]) -> None:
        kind = cast(int, frame[0])
        if kind > frames.ADOPT:
            self._owner.told(self, frame)
            return
        driver = self._driver
        self._clock.hold(cast(float, frame[1]))
        if kind == frames.PROGRESS:
            grown = cast("list[list[int]]", frame[2])
            for attempt, tokens in grown:
                if tokens:
                    self.tokens[attempt] = tokens
            driver.progress(grown)
        elif kind == frames.SENT:
            driver.sent(cast(int, frame[2]))
        elif kind == frames.FIRST_TOKEN:
            driver.first_token(cast(int, frame[2]))
        elif kind == frames.FINISH:
            attempt = cast(int, frame[2])
            self.tokens.pop(attempt, None)
            result = frames.result_of(cast("list[object]", frame[3]))
            driver.finish(attempt, result, cast(str, frame[4]), cast(str, frame[5]))
        elif kind == frames.ARRIVE:
            request = self._request(cast("list[object]", frame[2]))
            exchange = self.exchanges[request.id] = RemoteExchange(self, request)
            driver.arrive(request, exchange)
        elif kind == frames.FULL:
            driver.full(cast(int, frame[2]))
        elif kind == frames.REPEATS:
            driver.repeats(cast(int, frame[2]))
        elif kind == frames.PAUSED:
            driver.paused(cast(int, frame[2]))
        elif kind == frames.RESUMED:
            driver.resumed(cast(int, frame[2]))
        elif kind == frames.LEAVE:
            driver.leave(cast(int, frame[2]), frames.reason_of(frame[3]))
        elif kind == frames.FAIL:
            driver.fail(cast(int, frame[2]))
        else:
            assert kind == frames.ADOPT
            self._adopt(cast("list[object]", frame[2]), cast("list[list[object]]", frame[3]))

    def _request(self, row: list[object]) -> Request:
        generation = cast(int, row[1])
        policy = self._policies[generation]
        if len(self._policies) > 1:
            self._policies = {number: kept for number, kept in self._policies.items() if number >= generation}
        return frames.request_of(row, policy)

    def _adopt(self, row: list[object], attempts: list[list[object]]) -> None:
        """Take over a request that another decider dispatched."""
        request = self._request(row)
        exchange = self.exchanges[request.id] = RemoteExchange(self, request)
        self._driver.adopt(request, frames.running_of(attempts), exchange)

    def refused(self, request: Request, why: Reason) -> None:
        """A request of the relay was refused. If that was for a limit, relays refuse by it with the head alone."""
        if why in LIMITS:
            exceeded = self._driver.exceeded(request.tenant, request.tier, 1)
            if exceeded is not None:
                self._owner.met_limit(request, exceeded)

    def left(self, request: Request) -> Left | None:
        """Requests and tokens that the tenant may still use, for headers; None if its tier has no such limits."""
        limits = request.tier.limits
        if limits.requests_per_min is None and limits.tokens_per_min is None:
            return None
        return self._driver.left(request.tenant, request.tier.name)


class RemoteExchange(CommandHandler):
    """A request whose exchange is in a relay. It tells the relay the commands."""

    __slots__ = ("_link", "_request")

    def __init__(self, link: RelayLink, request: Request) -> None:
        self._link = link
        self._request = request

    @property
    def tokens_seen(self) -> int:
        """Tokens so far are not known by request here."""
        return 0

    def dispatch(self, attempt_id: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        """Open an attempt: send the request to a replica. `model`: the fallback model to ask for; empty if none."""
        link, request = self._link, self._request
        asked = (request.id, attempt_id, replica, max_tokens, degraded, model, link.left(request))
        link.tell((frames.DISPATCH, *asked))

    def commit(self, attempt_id: int, hedged: HedgeResult | None) -> None:
        """Forward this attempt's answer to the client: the bytes so far and all bytes that follow."""
        name = None if hedged is None else hedged.value
        self._link.tell((frames.COMMIT, self._request.id, attempt_id, name))

    def cancel(self, attempt_id: int) -> int | None:
        """Close an attempt. The relay tells its end."""
        if self._link.is_gone:
            return self._link.tokens.pop(attempt_id, 0)
        self._link.tell((frames.CANCEL, self._request.id, attempt_id))
        return None

    def cut(self, why: Reason, prompt_tokens: int) -> None:
        """End the answer as incomplete. `prompt_tokens`: estimate for the usage, if the engine sent none."""
        self._link.tell((frames.CUT, self._request.id, why.value, prompt_tokens))

    def refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """End the request with an error: an HTTP error, or an error event if the answer has begun."""
        link, request = self._link, self._request
        link.refused(request, why)
        link.tell((frames.REFUSE, request.id, why.value, retry_after_s, detail, link.left(request)))

    def ended(self, record: Record) -> None:
        """The request is over. It is already counted in metrics."""
        link, request = self._link, self._request
        if not link.is_gone:
            link.tell((frames.ENDED, request.id, frames.record_row(record)))
        link.exchanges.pop(request.id, None)

    def abort(self) -> None:
        """Close the client's connection, as the last way to end the request."""
        if not self._link.is_gone:
            self._link.tell((frames.ABORT, self._request.id))
        self._link.exchanges.pop(self._request.id, None)
