"""Between the controller and the event loop: carries calls in, commands out, and keeps one alarm."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from gateway.core.controller import Controller
from gateway.core.model import Ask, Cancel, Command, Commit, Dispatch, End, Ended, Finish, Record, Refuse, Sample, Why
from gateway.core.rules import Policy
from gateway.wire.replies import CLIENT_FAULTS

# An end that says something of the replica is counted as an upstream error.
QUIET_ENDS: Final = (End.COMPLETE, End.CANCELLED)


def _is_failure(finish: Finish) -> bool:
    if finish.end is End.REJECTED:
        return finish.status not in CLIENT_FAULTS
    return finish.end not in QUIET_ENDS


class Gaps(Protocol):
    """Where the time between two events of a stream is counted."""

    def add(self, gap_s: float) -> None: ...


class Meter(Protocol):
    """Where facts about requests go."""

    def ended(self, record: Record) -> None: ...
    def refused_early(self, why: Why) -> None: ...
    def upstream_error(self, pool: str, replica: str, end: End) -> None: ...
    def gaps(self, tier: str, pool: str) -> Gaps: ...


class Handler(Protocol):
    """One request, acting on commands. `dispatch` may report failures of its own by calling the driver."""

    def dispatch(self, attempt: int, replica: str, max_tokens: int, degraded: bool) -> None: ...
    def commit(self, attempt: int) -> None: ...
    def cancel(self, attempt: int) -> None: ...
    def refuse(self, why: Why, retry_after_s: float | None, detail: str) -> None: ...
    def ended(self, record: Record) -> None: ...


class Driver:
    """The only caller of the controller. A call made while another is under way waits for its turn."""

    def __init__(self, controller: Controller, meter: Meter, loop: asyncio.AbstractEventLoop) -> None:
        self.controller = controller
        self._meter = meter
        self._loop = loop
        self._handlers: dict[int, Handler] = {}
        self._waiting: deque[tuple[Callable[..., list[Command]], tuple[object, ...]]] = deque()
        self._busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._next_ask = 0
        self._acts: dict[type, Callable[..., None]] = {
            Dispatch: self._dispatch,
            Commit: self._commit,
            Cancel: self._cancel,
            Refuse: self._refuse,
            Ended: self._end,
        }

    # ---- calls

    def next_id(self) -> int:
        """An id for a new ask."""
        self._next_ask += 1
        return self._next_ask

    def arrive(self, ask: Ask, handler: Handler) -> None:
        """A request is complete; its commands go to `handler`."""
        self._handlers[ask.id] = handler
        self._call(self.controller.arrive, ask)

    def sent(self, attempt: int) -> None:
        """An attempt was handed to its connection."""
        self._call(self.controller.sent, attempt)

    def first_token(self, attempt: int) -> None:
        """An attempt has something to show."""
        self._call(self.controller.first_token, attempt)

    def progress(self, attempt: int, tokens: int) -> None:
        """An attempt is alive."""
        self._call(self.controller.progress, attempt, tokens)

    def paused(self, attempt: int) -> None:
        """An attempt is not read for now, since its client does not keep up."""
        self._call(self.controller.paused, attempt)

    def resumed(self, attempt: int) -> None:
        """An attempt is read again."""
        self._call(self.controller.resumed, attempt)

    def finish(self, attempt: int, finish: Finish, pool: str, replica: str) -> None:
        """An attempt is closed."""
        if _is_failure(finish):
            self._meter.upstream_error(pool, replica, finish.end)
        self._call(self.controller.finish, attempt, finish)

    def leave(self, ask: int, why: Why) -> None:
        """The client is gone."""
        now = monotonic()
        self._call(lambda _: self.controller.leave(ask, now, why))

    def observe(self, replica: str, sample: Sample) -> None:
        """A replica was looked at."""
        self._call(self.controller.observe, replica, sample)

    def configure(self, policy: Policy) -> None:
        """There is a new policy."""
        self._call(self.controller.configure, policy)

    def shut(self) -> None:
        """End everything that is still under way."""
        self._call(self.controller.shut)

    @property
    def under_way(self) -> int:
        """Requests that are not over."""
        return len(self._handlers)

    def close(self) -> None:
        """Forget the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- the loop

    def _call(self, method: Callable[..., list[Command]], *args: object) -> None:
        if self._busy:
            self._waiting.append((method, args))
            return
        self._busy = True
        act = self._acts
        try:
            for command in method(*args, monotonic()):
                act[type(command)](command)
            while self._waiting:
                method, args = self._waiting.popleft()
                for command in method(*args, monotonic()):
                    act[type(command)](command)
        finally:
            self._busy = False
        self._arm()

    def _dispatch(self, command: Dispatch) -> None:
        handler = self._handlers[command.ask]
        handler.dispatch(command.attempt, command.replica, command.max_tokens, command.degraded)

    def _commit(self, command: Commit) -> None:
        self._handlers[command.ask].commit(command.attempt)

    def _cancel(self, command: Cancel) -> None:
        self._handlers[command.ask].cancel(command.attempt)
        self._waiting.append((self.controller.finish, (command.attempt, Finish(End.CANCELLED))))

    def _refuse(self, command: Refuse) -> None:
        self._handlers[command.ask].refuse(command.why, command.retry_after_s, command.detail)

    def _end(self, command: Ended) -> None:
        record = command.record
        self._meter.ended(record)
        self._handlers.pop(record.ask.id).ended(record)

    def _arm(self) -> None:
        """Keep one timer, for the earliest alarm; one that comes too early finds nothing to do and is set anew."""
        at = self.controller.wake_at()
        if at >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0.0, at - monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self._call(self.controller.wake)
