"""The calls of exchanges to the controller, the commands that come back, and the timer for reports of progress."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.deadlines import PROGRESS_EVERY_S
from gateway.core.estimators.histograms import LogHistogram
from gateway.core.history import EarlyRefusal
from gateway.core.policy import Tier
from gateway.core.queueing.limits import Left, LimitExceeded
from gateway.core.request import Request
from gateway.core.results import AttemptOutcome, AttemptResult, Callback, CountSource, HedgeResult, Reason, Record
from gateway.core.snapshot import QueuePosition
from gateway.proxy.supervisor import Supervisor
from gateway.wire.answers.events import StreamReader
from gateway.wire.answers.oddity import Oddity


class Meter(Protocol):
    """Receives facts about requests, for metrics."""

    def ended(self, record: Record) -> None: ...
    def refused_early(self, refusal: EarlyRefusal) -> None: ...
    def upstream_error(self, pool: str, replica: str, end: AttemptOutcome) -> None: ...
    def oddity(self, pool: str, replica: str, kind: Oddity) -> None: ...
    def token_count(self, source: CountSource) -> None: ...
    def bug(self, callback: Callback) -> None: ...
    def gaps(self, tier: str, pool: str) -> LogHistogram: ...


class CommandHandler(ABC):
    """Carries out the controller's commands for one request."""

    __slots__ = ()

    @property
    @abstractmethod
    def tokens_seen(self) -> int:
        """Tokens that the attempt with the most tokens has received so far."""

    @abstractmethod
    def dispatch(self, attempt_id: int, replica: str, max_tokens: int, degraded: bool, model: str) -> None:
        """Open an attempt: send the request to a replica. `model`: the fallback model to ask for; empty if none."""

    @abstractmethod
    def commit(self, attempt_id: int, hedged: HedgeResult | None) -> None:
        """Forward this attempt's answer to the client: the bytes so far and all bytes that follow."""

    @abstractmethod
    def cancel(self, attempt_id: int) -> int | None:
        """Close an attempt. Returns the number of tokens that it had received; None if its end is reported later."""

    @abstractmethod
    def cut(self, why: Reason, prompt_tokens: int) -> None:
        """End the answer as incomplete. `prompt_tokens`: estimate for the usage, if the engine sent none."""

    @abstractmethod
    def refuse(self, why: Reason, retry_after_s: float | None, detail: str) -> None:
        """End the request with an error: an HTTP error, or an error event if the answer has begun."""

    @abstractmethod
    def ended(self, record: Record) -> None:
        """The request is over. It is already counted in metrics."""

    @abstractmethod
    def abort(self) -> None:
        """Close the client's connection, as the last way to end the request."""


class Driver(ABC):
    """Brings the calls of exchanges to the controller, and its commands to the exchanges. The controller is in this
    process (`LocalDriver`) or in another.

    No call raises, except where its docstring says so.
    """

    def __init__(
        self, count_bug: Callable[[Callback], None], loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        self.clock = clock
        """Clock of the request path, in seconds: `time.monotonic`, except in tests."""
        self.supervisor = Supervisor(count_bug, clock)
        self._loop = loop
        self._last_id = 0
        self.next_report = 1
        """Number of the next report of progress."""
        self._grown: dict[int, StreamReader] = {}
        """The answers for the next report, by attempt id."""
        self._stirred: dict[int, None] = {}
        """The same for answers whose tokens cannot be seen."""
        self._reporting: asyncio.TimerHandle | None = None

    def next_id(self) -> int:
        """An id for a new request."""
        self._last_id += 1
        return self._last_id

    # ---- calls

    @abstractmethod
    def arrive(self, request: Request, exchange: CommandHandler) -> None:
        """A request has arrived completely. Its commands go to `exchange`."""

    @abstractmethod
    def position(self, request_id: int) -> QueuePosition | None:
        """Where a request waits; None if it does not wait, or if that is not known here yet."""

    @abstractmethod
    def sent(self, attempt: int) -> None:
        """The request of an attempt was written to its connection."""

    @abstractmethod
    def first_token(self, attempt: int) -> None:
        """The first token of an attempt has come."""

    @abstractmethod
    def full(self, attempt: int) -> None:
        """An attempt has more bytes before its first token than can be held back."""

    @abstractmethod
    def repeats(self, attempt: int) -> None:
        """The answer of an attempt repeats itself without end."""

    @abstractmethod
    def paused(self, attempt: int) -> None:
        """The answer of an attempt is not being read, because its client is too slow."""

    @abstractmethod
    def resumed(self, attempt: int) -> None:
        """The answer of an attempt is read again."""

    @abstractmethod
    def finish(self, attempt: int, result: AttemptResult, pool: str, replica: str) -> None:
        """An attempt has ended. Ignored if that is known already."""

    @abstractmethod
    def leave(self, request_id: int, why: Reason) -> None:
        """The client of a request has left."""

    @abstractmethod
    def broke(self, request_id: int, callback: Callback, error: Exception) -> None:
        """A callback for this request raised an exception: report the bug, and end the request with an error."""

    # ---- reads

    @abstractmethod
    def left(self, tenant: str, tier: str) -> Left:
        """Requests and tokens that the tenant may still use in this minute."""

    @abstractmethod
    def exceeded(self, tenant: str, tier: Tier, tokens: int) -> LimitExceeded | None:
        """The limit that one more request of at least `tokens` would exceed for sure; None if there is none."""

    @abstractmethod
    def suspects(self, now: float) -> bool:
        """Whether new requests need a `body_hash`."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether any pool has a replica that gets requests."""

    @abstractmethod
    def restarts(self, replica: str) -> int:
        """How often the engine of this replica was seen to restart; -1 if the policy has no such replica."""

    @abstractmethod
    async def estimate(self, model: str, prompt_bytes: int) -> int:
        """The high estimate of the tokens of a prompt, by the learned ratio of tokens to bytes."""

    # ---- reports of progress

    def grew(self, attempt: int, reader: StreamReader) -> None:
        """An attempt has received more tokens. The report with the number `next_report` tells the controller how many.

        One report covers all answers together. Separate reports would come between the events of thousands of slow
        streams. Each would cost several times as much, because the code of the core would have left the CPU's caches.
        """
        self._grown[attempt] = reader
        if self._reporting is None:
            self._reporting = self._loop.call_later(PROGRESS_EVERY_S, self.report)

    def stirred(self, attempt: int) -> None:
        """A part of an answer has come whose tokens cannot be seen. The next report tells the controller."""
        self._stirred[attempt] = None
        if self._reporting is None:
            self._reporting = self._loop.call_later(PROGRESS_EVERY_S, self.report)

    def report(self) -> None:
        """Tell the controller of all answers that have grown since the last report."""
        if self._reporting is None:
            return
        self._reporting.cancel()
        self._reporting = None
        self.next_report += 1
        grown = [(attempt, reader.tokens_seen) for attempt, reader in self._grown.items()]
        grown += [(attempt, 0) for attempt in self._stirred]
        self._grown.clear()
        self._stirred.clear()
        self.progress(grown)

    @abstractmethod
    def progress(self, grown: Sequence[Sequence[int]]) -> None:
        """Report the tokens of these attempts; 0 where they cannot be seen."""

    def _stop_reports(self, attempt: int) -> None:
        """An attempt is over: do not report its progress."""
        # Not `pop`, which compiled code looks up by name.
        if attempt in self._grown:
            del self._grown[attempt]
        if attempt in self._stirred:
            del self._stirred[attempt]

    def close(self) -> None:
        """Cancel the timer of reports."""
        if self._reporting is not None:
            self._reporting.cancel()
