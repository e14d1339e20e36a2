"""Periodic work: deadlines of connections, idle connections, and log lines about changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.fleet.health.replica_health import UNCHECKED
from gateway.core.results import Callback
from gateway.core.snapshot import ReplicaState
from gateway.driving.local_driver import LocalDriver
from gateway.late import LATE_S, POLL_S
from gateway.observe.logs import log_quarantine
from gateway.observe.metrics.little import Little
from gateway.proxy.limits import SWEEP_S, ConnectionLimits
from gateway.proxy.replica.oddities import Oddities
from gateway.proxy.supervisor import Supervisor
from gateway.wire.answers.oddity import Oddity

log = logging.getLogger("tailgate")

States = list[tuple[str, str, ReplicaState, str]]
"""Those of `Controller.states`."""
UP = ReplicaState.UP
DOWN = ReplicaState.DOWN
_WHEN_DOWN: Final = "it gets nothing, then single requests until one or a probe of the gateway succeeds"
_WHEN_ABSENT: Final = "it has not been seen alive since it was added"


class Sweeper:
    """A task that runs its steps every `SWEEP_S`. A bug in a step affects only that run of the step."""

    def __init__(
        self,
        supervisor: Supervisor,
        clock: Callable[[], float],
        limits: tuple[ConnectionLimits, ...],
        steps: Iterable[Callable[[float], None]],
    ) -> None:
        """`steps`: called with the time at each sweep."""
        self._supervisor = supervisor
        self._clock = clock
        self._limits = limits
        self._steps = tuple(steps)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            due = self._clock() + SWEEP_S
            await asyncio.sleep(SWEEP_S)
            late_s = self._clock() - due
            if late_s > LATE_S:
                for limits in self._limits:
                    limits.excuse(late_s)
                await asyncio.sleep(POLL_S)
            now = self._clock()
            while any(limits.sweep(now) for limits in self._limits):  # noqa: ASYNC110 - no wait
                await asyncio.sleep(0)  # other work runs in between
            for step in self._steps:
                self.supervised(step, now)

    def supervised(self, step: Callable[[float], None], now: float) -> None:
        """Run one step. An exception (a bug) is reported, because it must not end the task and with it the process."""
        try:
            step(now)
        except Exception as error:  # noqa: BLE001 - a bug affects only this run of this step
            self._supervisor.caught(Callback.TIMER, error)


class ControllerSweeper(Sweeper):
    """The same, with the steps that look at the controller."""

    def __init__(
        self,
        driver: LocalDriver,
        oddities: Oddities,
        little: Little,
        limits: tuple[ConnectionLimits, ...],
        steps: tuple[Callable[[float], None], ...],
        tell: Callable[[States, float], None] | None,
    ) -> None:
        """`tell`: called with the states of all replicas at each sweep."""
        self._tell = tell
        own = (self._mark_little, self.log_states, self._log_quarantine, self._count_disbelieved)
        super().__init__(driver.supervisor, driver.clock, limits, (*steps, *own))
        self._controller = driver.controller
        self._oddities = oddities
        self.little = little
        self._states: dict[str, tuple[ReplicaState, str]] = {}

    def _mark_little(self, now: float) -> None:
        if self.little.is_due(now):
            self.little.read(now, self._controller.held(now))

    def _log_quarantine(self, now: float) -> None:
        log_quarantine(self._controller.quarantined(now))

    def _count_disbelieved(self, _now: float) -> None:
        for (pool, replica), count in self._controller.disbelieved().items():
            for _ in range(count):
                self._oddities.tell(pool, replica, Oddity.USAGE, "more tokens than possible: an estimate was used")

    def log_states(self, now: float | None = None) -> None:
        """Tell the states, and log each replica whose state has changed since the last sweep. The core itself writes no
        log.

        A probing replica counts as down until a request to it succeeds. A dead one would otherwise write a line every
        few seconds.
        """
        states = self._controller.states()
        if self._tell is not None:
            self._tell(states, self._clock() if now is None else now)
        seen, self._states = self._states, {}
        for pool, name, state, why in states:
            if why == UNCHECKED:
                continue  # it is new, as the log says already
            if state is ReplicaState.PROBING:
                state = DOWN
            before, self._states[name] = seen.get(name, (UP, "")), (state, why)
            if (state, why) != before:
                level = logging.INFO if state is UP or state is ReplicaState.DRAINED else logging.WARNING
                when = _WHEN_DOWN if state is DOWN else _WHEN_ABSENT if state is ReplicaState.ABSENT else ""
                about = "; ".join(filter(None, (why, when)))
                was = "" if state is ReplicaState.ABSENT else f", was {before[0]}"
                log.log(level, "replica %s of pool %s is %s%s%s", name, pool, state, was, about and f": {about}")
