"""Between the controller and the event loop: carries calls in, commands out, and keeps one alarm."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from gateway.core.commands import Cancel, Command, Commit, Cut, Dispatch, Ended
from gateway.core.controller import Controller
from gateway.core.estimators import LogHistogram
from gateway.core.model import Ask, End, Finish, Record, Sample, Why
from gateway.core.rules import Policy
from gateway.proxy.clock import monotonic
from gateway.wire.oddity import Oddity
from gateway.wire.replies import CLIENT_FAULTS

if TYPE_CHECKING:
    from gateway.proxy.relay import Relay

# An end that says something of the replica is counted as an upstream error.
QUIET_ENDS: Final = (End.COMPLETE, End.CANCELLED)


def _is_failure(finish: Finish) -> bool:
    if finish.end is End.REJECTED:
        return finish.status not in CLIENT_FAULTS
    return finish.end not in QUIET_ENDS


class Meter(Protocol):
    """Where facts about requests go."""

    def ended(self, record: Record) -> None: ...
    def refused_early(self, why: Why) -> None: ...
    def upstream_error(self, pool: str, replica: str, end: End) -> None: ...
    def oddity(self, pool: str, replica: str, kind: Oddity) -> None: ...
    def gaps(self, tier: str, pool: str) -> LogHistogram: ...


class Driver:
    """The only caller of the controller. A call made while another is under way waits for its turn."""

    def __init__(self, controller: Controller, meter: Meter, loop: asyncio.AbstractEventLoop) -> None:
        self.controller = controller
        self._meter = meter
        self._loop = loop
        self._relays: dict[int, Relay] = {}
        self._waiting: deque[tuple[Callable[..., list[Command]], tuple[object, ...]]] = deque()
        self._busy = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._next_ask = 0

    # ---- calls

    def next_id(self) -> int:
        """An id for a new ask."""
        self._next_ask += 1
        return self._next_ask

    def arrive(self, ask: Ask, relay: Relay) -> None:
        """A request is complete; its commands go to `relay`."""
        self._relays[ask.id] = relay
        if self._busy:
            self._waiting.append((self.controller.arrive, (ask,)))
        else:
            self._carry_out(self.controller.arrive(ask, monotonic()))

    def sent(self, attempt: int) -> None:
        """An attempt was handed to its connection. Never followed by commands, so that it need not wait."""
        self.controller.sent(attempt, monotonic())
        if not self._busy:
            self._arm()

    def first_token(self, attempt: int) -> None:
        """An attempt has something to show."""
        self._call(self.controller.first_token, attempt)

    def full(self, attempt: int) -> None:
        """An attempt has more than can be held back, and no first token among it."""
        self._call(self.controller.full, attempt)

    def progress(self, attempt: int, tokens: int) -> None:
        """An attempt is alive."""
        self._call(self.controller.progress, attempt, tokens)

    def repeats(self, attempt: int) -> None:
        """What an attempt says goes round in circles."""
        self._call(self.controller.repeats, attempt)

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
        if self._busy:
            self._waiting.append((self.controller.finish, (attempt, finish)))
        else:
            self._carry_out(self.controller.finish(attempt, finish, monotonic()))

    def leave(self, ask: int, why: Why) -> None:
        """The client is gone."""
        self._call(lambda now: self.controller.leave(ask, now, why))

    def observe(self, replica: str, sample: Sample) -> None:
        """A replica was looked at."""
        self._call(self.controller.observe, replica, sample)

    def configure(self, policy: Policy) -> None:
        """There is a new policy."""
        self._call(self.controller.configure, policy)

    def drain(self, replica: str, on: bool) -> None:
        """Somebody wants a replica to get nothing new, or to serve again."""
        self._call(self.controller.drain, replica, on)

    def shut(self) -> None:
        """End everything that is still under way."""
        self._call(self.controller.shut)

    @property
    def under_way(self) -> int:
        """Requests that are not over."""
        return len(self._relays)

    def close(self) -> None:
        """Forget the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- the loop

    def _call(self, method: Callable[..., list[Command]], *args: object) -> None:
        if self._busy:
            self._waiting.append((method, args))
        else:
            self._carry_out(method(*args, monotonic()))

    def _carry_out(self, commands: list[Command]) -> None:
        """Act on commands, then on those of the calls that came meanwhile."""
        self._busy = True
        try:
            for command in commands:
                self._act(command)
            while self._waiting:
                method, args = self._waiting.popleft()
                for command in method(*args, monotonic()):
                    self._act(command)
        finally:
            self._busy = False
        self._arm()

    def _act(self, command: Command) -> None:
        # The commonest first. A dictionary by type would be slower: compiled code has to look up what it holds.
        if isinstance(command, Dispatch):
            relay = self._relays[command.ask]
            relay.dispatch(command.attempt, command.replica, command.max_tokens, command.degraded)
        elif isinstance(command, Commit):
            self._relays[command.ask].commit(command.attempt, command.hedged)
        elif isinstance(command, Ended):
            record = command.record
            self._meter.ended(record)
            self._relays.pop(record.ask.id).ended(record)
        elif isinstance(command, Cancel):
            seen = self._relays[command.ask].cancel(command.attempt)
            self._waiting.append((self.controller.finish, (command.attempt, Finish(End.CANCELLED, tokens_seen=seen))))
        elif isinstance(command, Cut):
            self._relays[command.ask].cut(command.why, command.prompt_tokens)
        else:
            self._relays[command.ask].refuse(command.why, command.retry_after_s, command.detail)

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
