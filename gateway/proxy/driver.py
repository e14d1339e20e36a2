"""Between the controller and the event loop: passes calls in, carries commands out, and keeps one alarm."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.request import (
    AttemptOutcome,
    AttemptResult,
    Callback,
    CountSource,
    HedgeResult,
    Reason,
    Record,
    Request,
    Sample,
)
from gateway.core.stats import LogHistogram
from gateway.proxy.supervisor import Supervisor
from gateway.wire.answers.oddity import Oddity
from gateway.wire.errors.replies import CLIENT_FAULTS

# All other ends concern the replica: they are counted as upstream errors.
QUIET_ENDS: Final = (AttemptOutcome.COMPLETE, AttemptOutcome.CANCELLED)
MAX_WAKES: Final = 100
"""Consecutive deadlines that may raise, each failing its request, before the alarm pauses."""
PAUSE_S: Final = 0.05
"""How long the alarm then pauses, so that a bug cannot keep the process busy."""


def _is_failure(finish: AttemptResult) -> bool:
    if finish.end is AttemptOutcome.REJECTED:
        return finish.status not in CLIENT_FAULTS
    return finish.end not in QUIET_ENDS


class Meter(Protocol):
    """Receiver of facts about requests."""

    def ended(self, record: Record) -> None: ...
    def refused_early(self, why: Reason) -> None: ...
    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None: ...
    def oddity(self, pool: str, replica: str, kind: Oddity) -> None: ...
    def token_count(self, source: CountSource) -> None: ...
    def bug(self, callback: Callback) -> None: ...
    def gaps(self, tier: str, pool: str) -> LogHistogram: ...


class CommandHandler(ABC):
    """Carries out the commands for one request."""

    __slots__ = ()

    @property
    @abstractmethod
    def tokens_seen(self) -> int:
        """Tokens received so far, of the attempt with the most."""

    @abstractmethod
    def dispatch(self, attempt_id: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        """Send the request to a replica."""

    @abstractmethod
    def commit(self, attempt_id: int, hedged: HedgeResult | None) -> None:
        """Show the client this attempt's answer so far, and everything that follows."""

    @abstractmethod
    def cancel(self, attempt_id: int) -> int:
        """Close an attempt; returns the tokens that it had received."""

    @abstractmethod
    def cut(self, why: Reason, prompt_tokens: int) -> None:
        """End the answer as one that is incomplete."""

    @abstractmethod
    def refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """Tell the client that there is no answer, or no more of it."""

    @abstractmethod
    def ended(self, record: Record) -> None:
        """The request has ended and is counted."""

    @abstractmethod
    def abort(self) -> None:
        """Close the client's connection, if no other way is left to end the request."""


class Driver:
    """The only caller of the controller. A call made while another is under way waits for its turn.

    No call raises. If the controller or the handler of a command raises, the request concerned is failed. All other
    commands are carried out, and the alarm is set.
    """

    def __init__(
        self, controller: Controller, meter: Meter, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        self.controller = controller
        self.clock = clock
        """The time of the request path, in seconds: `time.monotonic`, except in tests."""
        self.supervisor = Supervisor(meter.bug, clock)
        self._meter = meter
        self._loop = loop
        self._exchanges: dict[int, CommandHandler] = {}
        self._request_ids: dict[int, int] = {}
        """The request of each open attempt."""
        self._waiting: deque[tuple[Callable[..., list[Command]], tuple[object, ...], int]] = deque()
        """Waiting calls: the method, its arguments without the time, the request concerned or 0."""
        self._carried: list[Command] = []
        """The controller's latest answer, once its commands are being carried out."""
        self._busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._silent_until = -math.inf
        """Time before which no alarm may fire."""
        self._last_id = 0

    # ---- calls

    def next_id(self) -> int:
        """An id for a new request."""
        self._last_id += 1
        return self._last_id

    def arrive(self, request: Request, exchange: CommandHandler) -> None:
        """A request is complete; its commands go to `exchange`."""
        self._exchanges[request.id] = exchange
        if self._busy:
            self._waiting.append((self.controller.arrive, (request,), request.id))
            return
        try:
            commands = self.controller.arrive(request, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug costs this request
            commands = self._raised(error, request.id)
        self._carry_out(commands)

    def sent(self, attempt: int) -> None:
        """An attempt was handed to its connection. It never produces commands, so it need not wait."""
        try:
            self.controller.sent(attempt, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug costs this request
            self.broke(self._request_ids.get(attempt, 0), Callback.DECISION, error)
        if not self._busy:
            self._arm()

    def first_token(self, attempt: int) -> None:
        """An attempt has content to show."""
        self._call(self.controller.first_token, (attempt,), self._request_ids.get(attempt, 0))

    def full(self, attempt: int) -> None:
        """An attempt has more bytes than can be held, without a first token."""
        self._call(self.controller.full, (attempt,), self._request_ids.get(attempt, 0))

    def progress(self, attempt: int, tokens: int) -> None:
        """An attempt is alive."""
        self._call(self.controller.progress, (attempt, tokens), self._request_ids.get(attempt, 0))

    def repeats(self, attempt: int) -> None:
        """The answer of an attempt repeats itself."""
        self._call(self.controller.repeats, (attempt,), self._request_ids.get(attempt, 0))

    def paused(self, attempt: int) -> None:
        """An attempt is paused, since its client is too slow."""
        self._call(self.controller.paused, (attempt,), self._request_ids.get(attempt, 0))

    def resumed(self, attempt: int) -> None:
        """An attempt is read again."""
        self._call(self.controller.resumed, (attempt,), self._request_ids.get(attempt, 0))

    def finish(self, attempt: int, finish: AttemptResult, pool: str, replica: str) -> None:
        """An attempt is closed. An attempt that the controller has already closed is ignored.

        If a cancel raised, its call stays open at the replica, and ends like any other.
        """
        request_id = self._request_ids.pop(attempt, 0)
        if not request_id:
            return
        if _is_failure(finish):
            self._count_failure(pool, replica, finish.end)
        if self._busy:
            self._waiting.append((self._finish, (attempt, finish), request_id))
            return
        try:
            commands = self._finish(attempt, finish, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug costs this request
            commands = self._raised(error, request_id)
        self._carry_out(commands)

    def leave(self, request_id: int, why: Reason) -> None:
        """The client has left."""
        self._call(self._leave, (request_id, why), request_id)

    def observe(self, replica: str, sample: Sample) -> None:
        """A health check or a scrape of a replica has a result."""
        self._call(self.controller.observe, (replica, sample))

    def configure(self, policy: Policy) -> None:
        """Put a new policy in force. Raises the controller's exceptions, so that a reload can report them."""
        self._order(self.controller.configure, (policy,))

    def drain(self, replica: str, on: bool) -> None:
        """Send a replica no new requests, or let it serve again. Raises as `configure` does."""
        self._order(self.controller.drain, (replica, on))

    def shut(self) -> None:
        """End all requests under way."""
        self._call(self.controller.shut)
        for request_id in list(self._exchanges):
            # It is open only if a bug prevented its end.
            self._call(self.controller.fail, (request_id,), request_id)

    def broke(self, request_id: int, callback: Callback, error: Exception) -> None:
        """A callback for this request raised: end the request with an error."""
        self.supervisor.caught(callback, error)
        self._call(self.controller.fail, (request_id,), request_id)

    @property
    def requests(self) -> list[CommandHandler]:
        """Requests that are not over."""
        return list(self._exchanges.values())

    @property
    def under_way(self) -> int:
        """Requests that are not over."""
        return len(self._exchanges)

    def close(self) -> None:
        """Forget the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- the loop

    def _call(self, method: Callable[..., list[Command]], args: tuple[object, ...] = (), request_id: int = 0) -> None:
        if self._busy:
            self._waiting.append((method, args, request_id))
        else:
            self._carry_out(self._answer(method, args, request_id))

    def _order(self, method: Callable[..., list[Command]], args: tuple[object, ...]) -> None:
        """Make a call that raises to its caller."""
        if self._busy:
            self._waiting.append((method, args, 0))
            return
        try:
            commands = method(*args, self.clock())
        except Exception as error:
            self._carry_out(self._raised(error, 0))
            raise
        self._carry_out(commands)

    def _leave(self, request_id: int, why: Reason, now: float) -> list[Command]:
        return self.controller.leave(request_id, now, why)

    def _finish(self, attempt: int, finish: AttemptResult, now: float) -> list[Command]:
        if not self.controller.is_open(attempt):
            return []  # closed while this call waited for its turn
        try:
            return self.controller.finish(attempt, finish, now)
        except Exception:
            # The slot is freed if it is still held. An attempt that we closed teaches nothing.
            self._waiting.append((self._close, (attempt,), 0))
            raise

    def _close(self, attempt: int, now: float) -> list[Command]:
        if not self.controller.is_open(attempt):
            return []
        return self.controller.finish(attempt, AttemptResult(AttemptOutcome.CANCELLED), now)

    def _answer(self, method: Callable[..., list[Command]], args: tuple[object, ...], request_id: int) -> list[Command]:
        try:
            return method(*args, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug costs the request concerned
            return self._raised(error, request_id)

    def _carry_out(self, commands: list[Command]) -> None:
        """Carry out commands, then make the waiting calls and carry out theirs."""
        self._busy = True
        self._act_on(commands)
        while self._waiting:
            method, args, request_id = self._waiting.popleft()
            self._act_on(self._answer(method, args, request_id))
        self._busy = False
        self._arm()

    def _act_on(self, commands: list[Command]) -> None:
        self._carried = self.controller.decided
        for command in commands:
            try:
                self._act(command)
            except Exception as error:  # noqa: BLE001 - a bug costs the request that the command is addressed to
                self._failed(command, error)

    def _act(self, command: Command) -> None:
        # The commonest first. A dictionary by type would be slower: compiled code cannot know the type of its values.
        if isinstance(command, Dispatch):
            self._request_ids[command.attempt] = command.request_id
            exchange = self._exchanges[command.request_id]
            exchange.dispatch(command.attempt, command.replica, command.max_tokens, command.degraded, command.model)
        elif isinstance(command, Commit):
            self._exchanges[command.request_id].commit(command.attempt, command.hedged)
        elif isinstance(command, Ended):
            record = command.record
            exchange = self._exchanges[record.request.id]
            try:
                self._meter.ended(record)
            finally:
                exchange.ended(record)
            del self._exchanges[record.request.id]
        elif isinstance(command, Cancel):
            seen = self._exchanges[command.request_id].cancel(command.attempt)
            self._cancelled(command, seen)
        elif isinstance(command, Cut):
            self._exchanges[command.request_id].cut(command.why, command.prompt_tokens)
        else:
            self._exchanges[command.request_id].refuse(command.why, command.retry_after_s, command.detail)

    def _cancelled(self, command: Cancel, seen: int) -> None:
        self._request_ids.pop(command.attempt, None)
        finish = AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=seen)
        self._waiting.append((self._finish, (command.attempt, finish), command.request_id))

    def _count_failure(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        try:
            self._meter.upstream_error(pool, replica, end)
        except Exception as error:  # noqa: BLE001 - the attempt is closed, counted or not
            self.supervisor.caught(Callback.COMMAND, error)

    # ---- bugs

    def _failed(self, command: Command, error: Exception) -> None:
        """A command raised. Its effects that the controller relies on are still carried out."""
        self.supervisor.caught(Callback.COMMAND, error)
        if isinstance(command, Dispatch | Commit):
            self._waiting.append((self.controller.fail, (command.request_id,), command.request_id))
        elif isinstance(command, Cancel):
            self._cancelled(command, 0)
        elif isinstance(command, Refuse | Cut):
            self._abort(self._exchanges.get(command.request_id))
        else:
            self._abort(self._exchanges.pop(command.record.request.id, None))

    def _raised(self, error: Exception, request_id: int) -> list[Command]:
        """A call raised. Returns the commands that it had decided, and those that end its request."""
        self.supervisor.caught(Callback.DECISION, error)
        commands = self._undelivered()
        exchange = self._exchanges.get(request_id)
        if exchange is None:
            return commands
        try:
            commands += self.controller.fail(request_id, self.clock())
        except Exception as again:  # noqa: BLE001 - it cannot be ended in order: its client is not left waiting
            self.supervisor.caught(Callback.DECISION, again)
            commands += self._undelivered()
            self._abort(exchange)
        if not self.controller.knows(request_id) and not any(_ends(command, request_id) for command in commands):
            del self._exchanges[request_id]
            self._abort(exchange)
        return commands

    def _undelivered(self) -> list[Command]:
        """The commands that a call had decided before it raised."""
        decided = self.controller.decided
        if decided is self._carried:
            return []
        self._carried = decided
        return list(decided)

    def _abort(self, exchange: CommandHandler | None) -> None:
        """Close the client's connection, if no other way is left to tell the client."""
        if exchange is not None:
            try:
                exchange.abort()
            except Exception as error:  # noqa: BLE001 - nothing is left to be done for it
                self.supervisor.caught(Callback.COMMAND, error)

    # ---- time

    def _arm(self) -> None:
        """Keep one timer, for the earliest alarm. An alarm that fires too early is set again."""
        try:
            at = max(self.controller.wake_at(), self._silent_until)
        except Exception as error:  # noqa: BLE001 - deadlines must not lose their timer
            self.supervisor.caught(Callback.DECISION, error)
            at = self.clock() + PAUSE_S
        if at >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0.0, at - self.clock()), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self.wake(self.clock())

    def wake(self, now: float) -> None:
        """Act on every deadline up to `now`."""
        commands: list[Command] = []
        for _ in range(MAX_WAKES):
            try:
                commands += self.controller.wake(now)
                break
            except Exception as error:  # noqa: BLE001 - a bug costs the request whose deadline it was
                commands += self._raised(error, self.controller.woken)
        else:
            self._silent_until = now + PAUSE_S
        self._carry_out(commands)


def _ends(command: Command, request_id: int) -> bool:
    return isinstance(command, Ended) and command.record.request.id == request_id
