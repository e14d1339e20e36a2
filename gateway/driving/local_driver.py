"""The driver of a controller in the same process: the calls that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from gateway.core.commands import Command
from gateway.core.controller import Controller
from gateway.core.policy import Policy, Tier
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, Reason, RunningAttempt
from gateway.core.sample import Sample
from gateway.core.snapshot import QueuePosition
from gateway.driving.call_loop import CallLoop
from gateway.observe.metrics.tenant_demand import TenantDemand
from gateway.proxy.driver import CommandHandler, Meter
from gateway.wire.errors.replies import CLIENT_FAULTS

# All other outcomes are counted as upstream errors, since the replica caused them.
QUIET_ENDS: Final = (
    AttemptOutcome.COMPLETE,
    AttemptOutcome.CANCELLED,
    AttemptOutcome.GATEWAY_LATE,
    AttemptOutcome.IDLE_CLOSED,
)
MAX_POSITIONS: Final = 1000
"""Positions are told while no more requests are under way: one takes O(n), and each waiting stream asks for its own."""


def _is_failure(result: AttemptResult) -> bool:
    if result.end is AttemptOutcome.REJECTED:
        return result.status not in CLIENT_FAULTS
    return result.end not in QUIET_ENDS


class LocalDriver(CallLoop):
    """The only caller of the controller."""

    def __init__(
        self, controller: Controller, meter: Meter, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        super().__init__(controller, meter, loop, clock)
        self.demand: TenantDemand | None = None
        """Counts requests of tenants; None where no limits are shared."""

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

    def attempts_of(self, requests: Container[int]) -> list[int]:
        """The attempts under way of these requests."""
        return [attempt for attempt, request_id in self._request_ids.items() if request_id in requests]

    def position(self, request_id: int) -> QueuePosition | None:
        if self.under_way > MAX_POSITIONS:
            return None
        return self.controller.position(request_id, self.clock())

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
        self.call(self.controller.full, (attempt,), self._request_ids.get(attempt, 0))

    def repeats(self, attempt: int) -> None:
        self.call(self.controller.repeats, (attempt,), self._request_ids.get(attempt, 0))

    def paused(self, attempt: int) -> None:
        self.call(self.controller.paused, (attempt,), self._request_ids.get(attempt, 0))

    def resumed(self, attempt: int) -> None:
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

    def progress(self, grown: Sequence[Sequence[int]]) -> None:
        for attempt, tokens in grown:
            if attempt in self._request_ids:  # a report before it may have ended it
                self._grew(attempt, tokens)
        self._arm()

    def _grew(self, attempt: int, tokens: int) -> None:
        """Report one answer. `call` is not used, because it makes each report a fifth slower."""
        try:
            commands = self.controller.progress(attempt, tokens, self.clock())
        except Exception as error:  # noqa: BLE001 - a bug affects only this request
            commands = self._raised(error, self._request_ids.get(attempt, 0))
        if commands:
            self._carry_out(commands)

    def _leave(self, request_id: int, why: Reason, now: float) -> list[Command]:
        return self.controller.leave(request_id, now, why)

    def _count_failure(self, pool: str, replica: str, end: AttemptOutcome) -> None:
        try:
            self._meter.upstream_error(pool, replica, end)
        except Exception as error:  # noqa: BLE001 - the attempt is closed, counted or not
            self.supervisor.caught(Callback.COMMAND, error)

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
