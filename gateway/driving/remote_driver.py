"""The driver of a relay: the controller is in the decider, at the other end of a channel.

Between two deciders there is none: the channel is closed. Answers under way go on, and new requests wait. The next
decider is told all requests that are not over: those that run are adopted, the others arrive again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from gateway.core.estimators.prompt_length import PromptEstimator
from gateway.core.policy import Policy, Tier
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, Reason, RunningAttempt
from gateway.core.snapshot import QueuePosition
from gateway.driving import frames
from gateway.driving.channel import Channel, Frame
from gateway.proxy.driver import CommandHandler, Driver

_NUMBER_BITS: Final = 40
"""Ids of requests carry the number of their relay above these bits."""


class RemoteAttempt:
    """An attempt of this relay, as it must be told to the next decider."""

    __slots__ = ("committed", "first_at", "id", "is_paused", "replica", "result", "sent_at", "where")

    def __init__(self, attempt_id: int, replica: str) -> None:
        self.id = attempt_id
        self.replica = replica
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.committed = False
        self.is_paused = False
        """Whether its answer is not being read, because its client is too slow."""
        self.result: AttemptResult | None = None
        """How it ended; None while it is under way."""
        self.where = "", replica
        """Pool and replica, as the attempt's end named them."""

    def running(self) -> RunningAttempt:
        """The attempt, for another controller."""
        return RunningAttempt(self.id, self.replica, self.sent_at, self.first_at, self.committed)


class RemoteRequest:
    """A request of this relay that is not over."""

    __slots__ = ("attempts", "exchange", "left", "position", "request")

    def __init__(self, request: Request, exchange: CommandHandler) -> None:
        self.request = request
        self.exchange = exchange
        self.attempts: dict[int, RemoteAttempt] = {}
        """Its attempts that the decider has not concluded, by id."""
        self.left: Reason | None = None
        """Why its client has left; None if it has not."""
        self.position: QueuePosition | None = None


class RemoteDriver(Driver):
    """Tells the decider the calls, and carries out the commands that it tells."""

    def __init__(
        self,
        number: int,
        count_bug: Callable[[Callback], None],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        """`number`: that of the relay, 1 or more. No other process of the gateway has it, or had it before."""
        super().__init__(count_bug, loop, clock)
        self._last_id = number << _NUMBER_BITS
        self.channel: Channel | None = None
        """The channel to the decider; None while there is none."""
        self._requests: dict[int, RemoteRequest] = {}
        self._attempts: dict[int, RemoteAttempt] = {}
        """Attempts under way, by id."""
        self._left: dict[tuple[str, str], Left] = {}
        """Requests and tokens that a tenant may still use, as told last, by (tenant, tier)."""
        self._limited: dict[tuple[str, str], tuple[Reason, float]] = {}
        """Tenants beyond a limit, by (tenant, tier): the limit, and until when."""
        self.is_suspicious = False
        self.is_alive = False
        self.engine_restarts: dict[str, int] = {}
        self._asked = 0
        self._awaited: dict[int, asyncio.Future[object]] = {}
        """Questions without an answer, by number."""
        self._asking: set[asyncio.Task[None]] = set()

    # ---- the channel

    def connect(self, channel: Channel, policy: Policy) -> None:
        """Use the channel to a decider with this policy. It is told the requests that are not over."""
        self.channel = channel
        self._limited.clear()  # this decider counts anew
        for held in list(self._requests.values()):
            request = held.request
            if request.tier.name not in policy.tiers or request.model.name not in policy.models:
                del self._requests[request.id]  # this decider has another policy, and cannot know the request
                held.exchange.abort()
                continue
            self._tell_again(held, frames.request_row(request, policy.generation))

    def _tell_again(self, held: RemoteRequest, row: Frame) -> None:
        """Tell a decider that is new all about a request."""
        if not held.attempts:
            self.tell((frames.ARRIVE, self.clock(), row))
        else:
            running = frames.running_rows([each.running() for each in held.attempts.values()])
            self.tell((frames.ADOPT, self.clock(), row, running))
        runs = any(each.result is None for each in held.attempts.values())
        for each in held.attempts.values():
            if each.result is not None:
                end = each.result
                if runs:  # the last decider judged it, perhaps an hour ago: it is no news of the replica
                    end = AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=end.tokens_seen)
                self.tell((frames.FINISH, self.clock(), each.id, frames.result_row(end), *each.where))
            elif each.is_paused:
                self.tell((frames.PAUSED, self.clock(), each.id))
        if held.left is not None:
            self.tell((frames.LEAVE, self.clock(), held.request.id, held.left.value))

    def disconnected(self) -> None:
        """The decider is gone."""
        self.channel = None
        for number in list(self._awaited):
            self.answered(number, None)

    def tell(self, frame: Frame) -> None:
        """Tell the decider something. Lost while there is none."""
        if self.channel is not None:
            self.channel.tell(frame)

    # ---- calls

    def arrive(self, request: Request, exchange: CommandHandler) -> None:
        self._requests[request.id] = RemoteRequest(request, exchange)
        self.tell((frames.ARRIVE, self.clock(), frames.request_row(request, request.policy.generation)))

    def sent(self, attempt: int) -> None:
        now = self.clock()
        held = self._attempts.get(attempt)
        if held is not None:
            held.sent_at = now
        self.tell((frames.SENT, now, attempt))

    def first_token(self, attempt: int) -> None:
        now = self.clock()
        held = self._attempts.get(attempt)
        if held is not None:
            held.first_at = now
        self.tell((frames.FIRST_TOKEN, now, attempt))

    def full(self, attempt: int) -> None:
        self.tell((frames.FULL, self.clock(), attempt))

    def repeats(self, attempt: int) -> None:
        self.tell((frames.REPEATS, self.clock(), attempt))

    def paused(self, attempt: int) -> None:
        self._pause(attempt, True)

    def resumed(self, attempt: int) -> None:
        self._pause(attempt, False)

    def _pause(self, attempt: int, is_paused: bool) -> None:
        held = self._attempts.get(attempt)
        if held is not None:
            held.is_paused = is_paused
        self.tell((frames.PAUSED if is_paused else frames.RESUMED, self.clock(), attempt))

    def finish(self, attempt: int, result: AttemptResult, pool: str, replica: str) -> None:
        held = self._attempts.pop(attempt, None)
        if held is None:
            return
        self._stop_reports(attempt)
        held.result = result
        held.where = pool, replica
        self.tell((frames.FINISH, self.clock(), attempt, frames.result_row(result), pool, replica))

    def leave(self, request_id: int, why: Reason) -> None:
        held = self._requests.get(request_id)
        if held is not None:
            held.left = why
        self.tell((frames.LEAVE, self.clock(), request_id, why.value))

    def shut(self) -> None:
        """End every request that is still under way, because the time for draining is over."""
        for request_id in self._requests:
            self.leave(request_id, Reason.SHUTTING_DOWN)

    def broke(self, request_id: int, callback: Callback, error: Exception) -> None:
        self.supervisor.caught(callback, error)
        self.tell((frames.FAIL, self.clock(), request_id))

    def progress(self, grown: Sequence[Sequence[int]]) -> None:
        self.tell((frames.PROGRESS, self.clock(), grown))

    # ---- reads

    def left(self, tenant: str, tier: str) -> Left:
        """Requests and tokens that the tenant may still use in this minute, as the decider told last."""
        return self._left.get((tenant, tier), (None, None))

    def position(self, request_id: int) -> QueuePosition | None:
        """As the decider answered last. It is asked for the next time."""
        held = self._requests.get(request_id)
        if held is None:
            return None
        task = self._loop.create_task(self._ask_position(held))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return held.position

    async def _ask_position(self, held: RemoteRequest) -> None:
        told = cast("list[object] | None", await self.ask("position", held.request.id))
        if told is not None:
            held.position = QueuePosition(cast(int, told[0]), cast("float | None", told[1]), cast(bool, told[2]))

    def exceeded(self, tenant: str, tier: Tier, tokens: int) -> LimitExceeded | None:
        """The limit that the decider told last, if it still holds."""
        limited = self._limited.get((tenant, tier.name))
        if limited is None:
            return None
        why, until = limited
        now = self.clock()
        if until <= now:
            del self._limited[tenant, tier.name]
            return None
        return LimitExceeded(why, until - now)

    def suspects(self, now: float) -> bool:
        """Whether new requests need a `body_hash`."""
        return self.is_suspicious

    def alive(self) -> bool:
        """Whether any pool has a replica that gets requests."""
        return self.is_alive and self.channel is not None

    def restarts(self, replica: str) -> int:
        """How often the engine of this replica was seen to restart; -1 if the policy has no such replica."""
        return self.engine_restarts.get(replica, -1)

    async def estimate(self, model: str, prompt_bytes: int) -> int:
        """The high estimate of the tokens of a prompt, by the learned ratio of tokens to bytes."""
        told = await self.ask("tokens", model, prompt_bytes)
        return PromptEstimator().estimate(model, prompt_bytes)[1] if told is None else cast(int, told)

    async def ask(self, subject: str, *args: object) -> object:
        """The decider's answer to a question; None if there is no decider."""
        channel = self.channel
        if channel is None:
            return None
        self._asked += 1
        answer: asyncio.Future[object] = self._loop.create_future()
        self._awaited[self._asked] = answer
        channel.tell((frames.ASK, self._asked, subject, *args))
        return await answer

    def answered(self, number: int, answer: object) -> None:
        """The decider has answered a question."""
        asked = self._awaited.pop(number, None)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    @property
    def under_way(self) -> int:
        return len(self._requests)

    # ---- commands

    def on_command(self, frame: list[object]) -> None:
        """Carry out a command."""
        kind, held = cast(int, frame[0]), self._requests.get(cast(int, frame[1]))
        if held is None:
            return  # its exchange is over already
        try:
            self._act(kind, held, frame)
        except Exception as error:  # noqa: BLE001 - a bug affects only the request of the command
            self._failed(kind, held, frame, error)

    def _act(self, kind: int, held: RemoteRequest, frame: list[object]) -> None:
        exchange, request_id = held.exchange, held.request.id
        if kind == frames.DISPATCH:
            attempt, replica = cast(int, frame[2]), cast(str, frame[3])
            opened = RemoteAttempt(attempt, replica)
            self._attempts[attempt] = held.attempts[attempt] = opened
            self._told_left(held.request, frame[7])
            exchange.dispatch(attempt, replica, cast(int, frame[4]), cast(bool, frame[5]), cast(str, frame[6]))
        elif kind == frames.COMMIT:
            committed = held.attempts.get(cast(int, frame[2]))
            if committed is not None:
                committed.committed = True
            exchange.commit(cast(int, frame[2]), frames.hedge_of(frame[3]))
        elif kind == frames.ENDED:
            record = frames.record_of(cast("list[object]", frame[2]), held.request)
            del self._requests[request_id]
            for attempt in held.attempts:
                self._attempts.pop(attempt, None)
            exchange.ended(record)
        elif kind == frames.CANCEL:
            attempt = cast(int, frame[2])
            self._cancelled(attempt, exchange.cancel(attempt) or 0)
        elif kind == frames.REFUSE:
            self._told_left(held.request, frame[5])
            exchange.refuse(frames.reason_of(frame[2]), cast("float | None", frame[3]), cast(str, frame[4]))
        elif kind == frames.CUT:
            exchange.cut(frames.reason_of(frame[2]), cast(int, frame[3]))
        else:
            assert kind == frames.ABORT
            self._requests.pop(request_id, None)
            exchange.abort()

    def _cancelled(self, attempt: int, seen: int) -> None:
        """Tell the end of an attempt that was cancelled, unless it ended just before."""
        held = self._attempts.get(attempt)
        if held is not None:
            pool, replica = held.where
            self.finish(attempt, AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=seen), pool, replica)

    def _failed(self, kind: int, held: RemoteRequest, frame: list[object], error: Exception) -> None:
        """Handle an exception from carrying out a command."""
        self.supervisor.caught(Callback.COMMAND, error)
        if kind in (frames.DISPATCH, frames.COMMIT):
            self.tell((frames.FAIL, self.clock(), held.request.id))
        elif kind == frames.CANCEL:
            self._cancelled(cast(int, frame[2]), 0)
        else:
            try:
                held.exchange.abort()
            except Exception as again:  # noqa: BLE001 - nothing more can be done for the request
                self.supervisor.caught(Callback.COMMAND, again)

    def _told_left(self, request: Request, left: object) -> None:
        if left is not None:
            self._left[request.tenant, request.tier.name] = frames.left_of(left)

    def limited(self, tenant: str, tier: str, why: Reason, until: float) -> None:
        """A tenant is beyond a limit until a time; or no longer, if it has passed."""
        if until > self.clock():
            self._limited[tenant, tier] = why, until
        else:
            self._limited.pop((tenant, tier), None)
