"""Calls of a controller in this process, one at a time: carries out their commands, and keeps the alarm."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.results import AttemptOutcome, AttemptResult, Callback
from gateway.proxy.driver import CommandHandler, Driver, Meter
from gateway.proxy.time_limits import Alarm

MAX_WAKES: Final = 100
"""The alarm pauses after this many deadlines in a row whose handling raised. Each such exception fails its request."""
PAUSE_S: Final = 0.05
"""Seconds of such a pause, so that a bug cannot keep the process busy."""


class CallLoop(Driver):
    """Makes one call of the controller after another: one that is made while another is under way waits for its turn.

    If the controller or the handler of a command raises, the request concerned fails. All other commands are carried
    out, and the alarm is set.
    """

    def __init__(
        self, controller: Controller, meter: Meter, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        super().__init__(meter.bug, loop, clock)
        self.controller = controller
        self._meter = meter
        self._exchanges: dict[int, CommandHandler] = {}
        self._request_ids: dict[int, int] = {}
        """Request id by attempt id, for attempts under way."""
        self._waiting: deque[tuple[Callable[..., list[Command]], tuple[object, ...], int]] = deque()
        """Waiting calls: (method, arguments without the time, id of the request concerned or 0)."""
        self._carried: list[Command] = []
        """The latest list of commands whose execution has begun."""
        self._busy = False
        self._alarm = Alarm(loop, clock, self._ring, self._lagged)
        self._silent_until = -math.inf
        """Time before which no alarm may fire."""

    def call(self, method: Callable[..., list[Command]], args: tuple[object, ...] = (), request_id: int = 0) -> None:
        """Make any call of the controller. `args`: without the time. `request_id`: the request concerned, if any."""
        if self._busy:
            self._waiting.append((method, args, request_id))
        else:
            self._carry_out(self._answer(method, args, request_id))

    def close(self) -> None:
        """Cancel the timers."""
        self._alarm.cancel()
        super().close()

    def _order(self, method: Callable[..., list[Command]], args: tuple[object, ...]) -> None:
        """Make a call of the controller, and pass its exceptions on."""
        if self._busy:
            self._waiting.append((method, args, 0))
            return
        try:
            commands = method(*args, self.clock())
        except Exception as error:
            self._carry_out(self._raised(error, 0))
            raise
        self._carry_out(commands)

    def _finish(self, attempt: int, result: AttemptResult, now: float) -> list[Command]:
        if not self.controller.is_open(attempt):
            return []  # the attempt was closed while this call waited for its turn
        try:
            return self.controller.finish(attempt, result, now)
        except Exception:
            # Free the slot if it is still held. The attempt is reported as cancelled, so that nothing is learned from
            # it.
            self._waiting.append((self._close, (attempt,), 0))
            raise

    def _close(self, attempt: int, now: float) -> list[Command]:
        if not self.controller.is_open(attempt):
            return []
        return self.controller.finish(attempt, AttemptResult(AttemptOutcome.CANCELLED), now)

    def _answer(self, method: Callable[..., list[Command]], args: tuple[object, ...], request_id: int) -> list[Command]:
        try:
            return method(*args, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only the request concerned
            return self._raised(error, request_id)

    def _carry_out(self, commands: list[Command]) -> None:
        """Carry out commands. Then make the waiting calls, and carry out their commands."""
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
            except Exception as error:  # noqa: BLE001 - a bug affects only the request of the command
                self._failed(command, error)

    def _act(self, command: Command) -> None:
        # The most frequent commands come first. A dictionary by type would be slower, because compiled code does not
        # know the types of its values.
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
            if seen is not None:
                self._cancelled(command, seen)
        elif isinstance(command, Cut):
            self._exchanges[command.request_id].cut(command.why, command.prompt_tokens)
        else:
            self._exchanges[command.request_id].refuse(command.why, command.retry_after_s, command.detail)

    def _cancelled(self, command: Cancel, seen: int) -> None:
        self._forget(command.attempt)
        result = AttemptResult(AttemptOutcome.CANCELLED, tokens_seen=seen)
        self._waiting.append((self._finish, (command.attempt, result), command.request_id))

    def _forget(self, attempt: int) -> int:
        """Forget an attempt that is over. Returns the id of its request; 0 if it was forgotten before."""
        self._stop_reports(attempt)
        request_id = self._request_ids.get(attempt, 0)
        if request_id:
            del self._request_ids[attempt]
        return request_id

    # ---- bugs

    def _failed(self, command: Command, error: Exception) -> None:
        """Handle an exception from a command's handler. The controller relies on one of these: the request fails, a
        cancelled attempt is reported, or the client's connection is closed.
        """
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
        """Handle an exception from a call. Returns the commands that the call had decided before, and the commands that
        end its request.
        """
        self.supervisor.caught(Callback.DECISION, error)
        commands = self._undelivered()
        exchange = self._exchanges.get(request_id)
        if exchange is None:
            return commands
        try:
            commands += self.controller.fail(request_id, self.clock())
        except Exception as again:  # noqa: BLE001 - it cannot be ended properly, so its connection is closed
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
        """Close the client's connection, as the last way to end the request."""
        if exchange is not None:
            try:
                exchange.abort()
            except Exception as error:  # noqa: BLE001 - nothing more can be done for the request
                self.supervisor.caught(Callback.COMMAND, error)

    # ---- time

    def _arm(self) -> None:
        """Set the alarm to the earliest deadline. An earlier alarm is kept: when it rings, it is set again."""
        try:
            at = max(self.controller.wake_at(), self._silent_until)
        except Exception as error:  # noqa: BLE001 - without a timer, no deadline would be acted on any more
            self.supervisor.caught(Callback.DECISION, error)
            at = self.clock() + PAUSE_S
        if at < self._alarm.at:
            self._alarm.set(at)

    def _ring(self) -> None:
        if self._alarm.was_late:
            self.report()  # what has come meanwhile moves deadlines
        self.wake(self.clock())

    def _lagged(self, late_s: float) -> None:
        self.call(self.controller.lagged, (late_s,))

    def wake(self, now: float) -> None:
        """Act on every deadline up to `now`."""
        commands: list[Command] = []
        for _ in range(MAX_WAKES):
            try:
                commands += self.controller.wake(now)
                break
            except Exception as error:  # noqa: BLE001 - a bug affects only the request whose deadline it was
                commands += self._raised(error, self.controller.woken)
        else:
            self._silent_until = now + PAUSE_S
        self._carry_out(commands)


def _ends(command: Command, request_id: int) -> bool:
    return isinstance(command, Ended) and command.record.request.id == request_id
