"""The interface of deciders, which a simulation calls. It has the same calls as the production controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.commands import Command
from gateway.core.request import Request
from gateway.core.results import AttemptResult
from gateway.core.sample import Sample


class Decider(Protocol):
    """Decides where requests go. `core.controller.Controller` is a decider, and so are the baselines.

    Every call returns commands. They are carried out after the call has returned. Times are seconds of virtual time.
    """

    def arrive(self, request: Request, now: float) -> list[Command]: ...
    def sent(self, attempt_id: int, now: float) -> list[Command]: ...
    def first_token(self, attempt_id: int, now: float) -> list[Command]: ...
    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]: ...
    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]: ...
    def leave(self, request_id: int, now: float) -> list[Command]: ...
    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]: ...
    def wake(self, now: float) -> list[Command]: ...
    def wake_at(self) -> float: ...


class Overheard:
    """Wraps a decider. `hear` gets each answer of the decider, with its time."""

    def __init__(self, decider: Decider, hear: Callable[[list[Command], float], None]) -> None:
        self._decider = decider
        self._hear = hear

    def arrive(self, request: Request, now: float) -> list[Command]:
        return self._heard(self._decider.arrive(request, now), now)

    def sent(self, attempt_id: int, now: float) -> list[Command]:
        return self._heard(self._decider.sent(attempt_id, now), now)

    def first_token(self, attempt_id: int, now: float) -> list[Command]:
        return self._heard(self._decider.first_token(attempt_id, now), now)

    def progress(self, attempt_id: int, tokens: int, now: float) -> list[Command]:
        return self._heard(self._decider.progress(attempt_id, tokens, now), now)

    def finish(self, attempt_id: int, result: AttemptResult, now: float) -> list[Command]:
        return self._heard(self._decider.finish(attempt_id, result, now), now)

    def leave(self, request_id: int, now: float) -> list[Command]:
        return self._heard(self._decider.leave(request_id, now), now)

    def observe(self, replica_name: str, sample: Sample, now: float) -> list[Command]:
        return self._heard(self._decider.observe(replica_name, sample, now), now)

    def wake(self, now: float) -> list[Command]:
        return self._heard(self._decider.wake(now), now)

    def wake_at(self) -> float:
        return self._decider.wake_at()

    def _heard(self, commands: list[Command], now: float) -> list[Command]:
        self._hear(commands, now)
        return commands
