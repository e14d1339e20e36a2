"""The driver of a controller in the same process: makes the calls, carries out commands, keeps the alarm."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import Policy, Tier
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, Reason, RunningAttempt
from gateway.core.sample import Sample
from gateway.observe.metrics.tenant_demand import TenantDemand
from gateway.proxy.deadlines import Alarm
from gateway.proxy.driver import CommandHandler, Driver, Meter
from gateway.wire.errors.replies import CLIENT_FAULTS

# All other outcomes are counted as upstream errors, since the replica caused them.
QUIET_ENDS: Final = (
    AttemptOutcome.COMPLETE,
    AttemptOutcome.CANCELLED,
    AttemptOutcome.GATEWAY_LATE,
    AttemptOutcome.IDLE_CLOSED,
)
MAX_WAKES: Final = 100
"""The alarm pauses after this many deadlines in a row whose handling raised. Each such exception fails its request."""
PAUSE_S: Final = 0.05
"""Seconds of such a pause, so that a bug cannot keep the process busy."""


def _is_failure(result: AttemptResult) -> bool:
    if result.end is AttemptOutcome.REJECTED:
        return result.status not in CLIENT_FAULTS
    return result.end not in QUIET_ENDS


class LocalDriver(Driver):
    """The only caller of the controller. A call that is made while another is under way waits for its turn.

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
        self.demand: TenantDemand | None = None
        """Counts requests of tenants; None where no limits are shared."""
        self._silent_until = -math.inf
        """Time before which no alarm may fire."""

    # ---- calls

    def arrive(self, request: Request, exchange: CommandHandler) -> None:
        """A request has arrived completely. Its commands go to `exchange`."""
        self._exchanges[request.id] = exchange
        if self.demand is not None:
            self.demand.asked(request.tenant, request.tier.name)
        if self._busy:
            self._waiting.append((self.controller.arrive, (request,), request.id))
            return
        try:
            commands = self.controller.arrive(request, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            commands = self._raised(error, request.id)
        self._carry_out(commands)

    def adopt(self, request: Request, running: Sequence[RunningAttempt], exchange: CommandHandler) -> None:
        """Take over a request of a controller that is gone, with its attempts."""
        self._exchanges[request.id] = exchange
        for each in running:
            self._request_ids[each.attempt] = request.id
        self.call(self.controller.adopt, (request, running), request.id)

    def sent(self, attempt: int) -> None:
        """The request of an attempt was written to its connection. This call yields no commands, so it never waits for
        its turn.
        """
        try:
            self.controller.sent(attempt, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            self.broke(self._request_ids.get(attempt, 0), Callback.DECISION, error)
        if not self._busy:
            self._arm()

    def first_token(self, attempt: int) -> None:
        """The first token of an attempt has come."""
        self.call(self.controller.first_token, (attempt,), self._request_ids.get(attempt, 0))

    def full(self, attempt: int) -> None:
        """An attempt has more bytes before its first token than can be held back."""
        self.call(self.controller.full, (attempt,), self._request_ids.get(attempt, 0))

    def repeats(self, attempt: int) -> None:
        """The answer of an attempt repeats itself without end."""
        self.call(self.controller.repeats, (attempt,), self._request_ids.get(attempt, 0))

    def paused(self, attempt: int) -> None:
        """The answer of an attempt is not being read, because its client is too slow."""
        self.call(self.controller.paused, (attempt,), self._request_ids.get(attempt, 0))

    def resumed(self, attempt: int) -> None:
        """The answer of an attempt is read again."""
        self.call(self.controller.resumed, (attempt,), self._request_ids.get(attempt, 0))

    def finish(self, attempt: int, result: AttemptResult, pool: str, replica: str) -> None:
        """An attempt has ended. Ignored if the controller knows that already.

        The controller may know it already if carrying out a `Cancel` raised: then the call at the replica went on and
        ends now.
        """
        request_id = self._forget(attempt)
        if not request_id:
            return
        if _is_failure(result):
            self._count_failure(pool, replica, result.end)
        if self._busy:
            self._waiting.append((self._finish, (attempt, result), request_id))
            return
        try:
            commands = self._finish(attempt, result, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            commands = self._raised(error, request_id)
        self._carry_out(commands)

    def leave(self, request_id: int, why: Reason) -> None:
        """The client of a request has left."""
        self.call(self._leave, (request_id, why), request_id)

    def observe(self, replica: str, sample: Sample) -> None:
        """A health check, a scrape or a model list of a replica has a result."""
        self.call(self.controller.observe, (replica, sample))

    def recall(self, memory: Mapping[str, object], away_s: float) -> None:
        """Take over what a predecessor had learned `away_s` seconds ago."""
        self.call(self.controller.recall, (memory, away_s))

    def configure(self, policy: Policy) -> None:
        """Apply a new policy. Raises the controller's exceptions, so that a reload can report them."""
        self._order(self.controller.configure, (policy,))

    def drain(self, replica: str, on: bool) -> None:
        """Stop new requests to a replica (`on`), or let it serve again. Raises the controller's exceptions."""
        self._order(self.controller.drain, (replica, on))

    def shut(self) -> None:
        """End all requests under way."""
        self.call(self.controller.shut)
        for request_id in list(self._exchanges):
            # After `shut`, a request is still under way only if a bug prevented its end.
            self.call(self.controller.fail, (request_id,), request_id)

    def fail(self, request_id: int) -> None:
        """End a request with an internal error, because a bug met it."""
        self.call(self.controller.fail, (request_id,), request_id)

    def broke(self, request_id: int, callback: Callback, error: Exception) -> None:
        """A callback for this request raised an exception: report the bug, and end the request with an error."""
        self.supervisor.caught(callback, error)
        self.fail(request_id)

    def call(self, method: Callable[..., list[Command]], args: tuple[object, ...] = (), request_id: int = 0) -> None:
        """Make any call of the controller. `args`: without the time. `request_id`: the request concerned, if any."""
        if self._busy:
            self._waiting.append((method, args, request_id))
        else:
            self._carry_out(self._answer(method, args, request_id))

    # ---- reads

    def left(self, tenant: str, tier: str) -> Left:
        """Requests and tokens that the tenant may still use in this minute."""
        return self.controller.left(tenant, tier, self.clock())

    def exceeded(self, tenant: str, tier: Tier, tokens: int) -> LimitExceeded | None:
        """The limit that one more request of at least `tokens` would exceed for sure; None if there is none."""
        return self.controller.exceeded(tenant, tier, tokens, self.clock())

    def suspects(self, now: float) -> bool:
        """Whether new requests need a `body_hash`."""
        return self.controller.suspects(now)

    def alive(self) -> bool:
        """Whether any pool has a replica that gets requests."""
        return self.controller.alive()

    def restarts(self, replica: str) -> int:
        """How often the engine of this replica was seen to restart; -1 if the policy has no such replica."""
        return self.controller.restarts(replica)

    async def estimate(self, model: str, prompt_bytes: int) -> int:
        """The high estimate of the tokens of a prompt, by the learned ratio of tokens to bytes."""
        return self.controller.prompts.estimate(model, prompt_bytes)[1]

    @property
    def requests(self) -> list[CommandHandler]:
        """The handlers of requests that are not over."""
        return list(self._exchanges.values())

    @property
    def under_way(self) -> int:
        """Number of requests that are not over."""
        return len(self._exchanges)

    def close(self) -> None:
        """Cancel the timers."""
        self._alarm.cancel()
        super().close()

    # ---- the loop

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

    def _leave(self, request_id: int, why: Reason, now: float) -> list[Command]:
        return self.controller.leave(request_id, now, why)

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

    def _count_failure(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        try:
            self._meter.upstream_error(pool, replica, end)
        except Exception as error:  # noqa: BLE001 - the attempt is closed, counted or not
            self.supervisor.caught(Callback.COMMAND, error)

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

    def progress(self, grown: Sequence[Sequence[int]]) -> None:
        for attempt, tokens in grown:
            if attempt in self._request_ids:  # a report before it may have ended it
                self._grew(attempt, tokens)
        self._arm()

    def _grew(self, attempt: int, tokens: int) -> None:
        """Report one answer. `_call` is not used, because its generic call makes each report a fifth slower."""
        try:
            commands = self.controller.progress(attempt, tokens, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            commands = self._raised(error, self._request_ids.get(attempt, 0))
        if commands:
            self._carry_out(commands)

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
