"""Clients in one event loop: a connection for each request under way, reused by later requests."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import cast

import httptools

from loadtests.replay.answer import Answer, Garbage
from loadtests.replay.request import Outcome, Request
from loadtests.replay.target import Target
from loadtests.replay.unconnected import OwnLimit, own_limit, told

IDLE_S = 4.0
"""Longest idle time of a connection that is used again. Servers close idle connections after 5 s; a request sent at
that moment would be lost without a fault of the server.
"""
SHED = (429, 503, 504)
EARLY_S = 0.002
"""Seconds by which a timer may go off early: its resolution is milliseconds."""
CHECK_S, CHECK_EACH_S = 0.02, 2e-5
"""Shortest time between two checks for silent connections, and the time that each connection adds to it. A check reads
all connections, and must not delay the generator."""
Gap = Callable[[Request, float, int], None]
"""Called with a request, the time since its last content, and the number of pieces of content that arrived together."""


class Client(asyncio.Protocol):
    """One connection, with at most one request under way."""

    __slots__ = ("_answer", "_clients", "idle_since", "request", "transport")

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._answer = Answer()
        self.request: Request | None = None
        self.idle_since = 0.0
        self.transport: asyncio.Transport

    def send(self, request: Request, data: bytes) -> None:
        """Send a request, and write its outcome into it."""
        self._answer.reset()
        self._answer.keeps = request.keeps
        self.request = request
        self.transport.write(data)

    def give_up(self, outcome: Outcome, reason: str) -> None:
        """End the request under way from this side."""
        self._over(outcome, reason)
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is of another class
        self._clients.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.lost(self)
        answer, request = self._answer, self.request
        if request is None:
            return
        try:
            if error is None:
                answer.end()
        except Garbage as garbage:
            # The answer was probably cut off: its head does not say where it ends.
            self._over(Outcome.TRUNCATED, f"connection lost inside the answer: {garbage}")
            return
        if answer.complete:
            self._complete(request)
        elif answer.status:
            self._over(Outcome.TRUNCATED, "connection lost inside the answer")
        else:
            self._over(Outcome.RESET, "connection lost before the answer")

    def data_received(self, data: bytes) -> None:
        answer, request = self._answer, self.request
        if request is None:
            self.transport.abort()  # bytes that no request asked for
            return
        before = answer.chunks
        try:
            answer.feed(data)
        except httptools.HttpParserError as error:
            self.give_up(Outcome.NO_HTTP, str(error.__context__ or "no HTTP"))
            return
        except httptools.HttpParserUpgrade:
            self.give_up(Outcome.NO_HTTP, "it changes to another protocol, without being asked to")
            return
        if answer.chunks != before:
            self._content(request, answer.chunks - before)
        if answer.complete:
            self._complete(request)
            if answer.closing:
                self.transport.close()
            else:
                self._clients.freed(self)

    def _complete(self, request: Request) -> None:
        outcome, reason = what_came(self._answer)
        if outcome is Outcome.FINISHED and request.arrival.stream and request.first_s is None:
            # The stream arrived in one piece, or has only an end: its first token arrived with the whole answer.
            request.first_s = request.last_s = self._clients.clock()
        self._over(outcome, reason)

    def _content(self, request: Request, chunks: int) -> None:
        now = self._clients.clock()
        if request.first_s is None:
            request.first_s = now
            if chunks > 1:
                self._clients.on_gap(request, 0.0, chunks - 1)
        else:
            gap_s = now - request.last_s
            if gap_s > request.longest_gap_s:
                request.longest_gap_s = gap_s
            self._clients.on_gap(request, gap_s, chunks)
        request.last_s = now
        request.chunks += chunks
        self._clients.chunks += chunks

    def _over(self, outcome: Outcome, reason: str) -> None:
        request, self.request = self.request, None
        assert request is not None
        answer = self._answer
        request.outcome, request.reason, request.status = outcome, reason, answer.status
        request.retry_after_s, request.queue_s = answer.retry_after_s, answer.queue_s
        request.replica, request.served_tier = answer.replica, answer.tier
        request.prompt_tokens, request.output_tokens = answer.prompt_tokens, answer.output_tokens
        request.cached_tokens = answer.cached_tokens
        request.message = answer.message
        request.said = "".join(answer.said) if request.keeps else None
        self._clients.over(request, answer.should_retry != "false")


def what_came(answer: Answer) -> tuple[Outcome, str]:
    """The outcome of a complete answer, and the reason if it is not good."""
    status, reason = answer.status, answer.reason
    if status == 200:
        if answer.error:
            return Outcome.ERROR_EVENT, reason
        if answer.cut:
            return Outcome.CUT, answer.cut
        # Engines end good streams with [DONE]; some never send it, but give a finish reason.
        if answer.streamed and not (answer.done or answer.finish_reason):
            return Outcome.TRUNCATED, "the stream ended without [DONE] and without a reason"
        if answer.empty:
            return Outcome.EMPTY, ""
        return Outcome.FINISHED, ""
    reason = reason or f"status {status}"
    if status == 429 and reason.startswith("limit-"):
        return Outcome.QUOTA, reason
    if status in SHED:
        return Outcome.SHED, reason
    return (Outcome.INVALID if 400 <= status < 500 else Outcome.FAILED), reason


class Clients:
    """Sends requests to one target. `on_end` is called once per request, with whether it may be sent again."""

    def __init__(
        self,
        target: Target,
        clock: Callable[[], float],
        on_end: Callable[[Request, bool], None],
        on_gap: Gap,
        timeout_s: float,
    ) -> None:
        self.clock = clock
        self.on_gap = on_gap
        self.idle: list[Client] = []
        self.open: set[Client] = set()
        self.under_way = 0
        self.chunks = 0
        """Pieces of content in all answers so far."""
        self.limit: OwnLimit | None = None
        """The limit of this machine that stops the generator, if one does."""
        self.on_limit: Callable[[], None] = lambda: None
        self._host, self._port = target.address
        self._address = self._host
        self._tls = ssl.create_default_context() if target.tls else None
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._connecting: dict[asyncio.Task[None], Request] = {}
        self._alarm: asyncio.TimerHandle | None = None
        """The timer of the next check for patience; set while anything is under way."""

    async def warm(self, count: int) -> None:
        """Resolve the host once, and open this many connections beforehand. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        self._address = addresses[0]
        if count:
            self.freed(await self._contact(addresses))
        for _ in range(count - 1):
            self.freed(await self._connect())

    def send(self, request: Request, data: bytes) -> None:
        """Send a request over an idle connection, or over a new one."""
        self.under_way += 1
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(self._timeout_s + EARLY_S, self._check)
        client = self._usable()
        if client is not None:
            client.send(request, data)
            return
        self._connecting[asyncio.get_running_loop().create_task(self._send_anew(request, data))] = request

    def over(self, request: Request, may_retry: bool) -> None:
        """Report that a request is over, good or bad."""
        request.ended_s = self.clock()
        self.under_way -= 1
        self._on_end(request, may_retry)

    def freed(self, client: Client) -> None:
        """Keep an idle connection for later requests."""
        client.idle_since = self.clock()
        self.idle.append(client)

    def lost(self, client: Client) -> None:
        """Forget a closed connection."""
        self.open.discard(client)
        if client in self.idle:
            self.idle.remove(client)

    def requests(self) -> Iterator[Request]:
        """The requests under way."""
        yield from self._connecting.values()
        yield from (client.request for client in self.open if client.request is not None)

    def expire(self) -> float | None:
        """End requests that were silent for longer than a client's patience.

        Returns the seconds until the next request will be, None if nothing is under way.
        """
        now, heard_s = self.clock(), math.inf
        for task, request in list(self._connecting.items()):
            if now - request.tried_s > self._timeout_s:
                self._abandon(task, Outcome.TIMEOUT, f"no connection within {self._timeout_s:g} s")
            else:
                heard_s = min(heard_s, request.tried_s)
        for client in list(self.open):
            waits = client.request
            if waits is None:
                continue
            if now - waits.heard_s > self._timeout_s:
                what = "first" if waits.first_s is None else "next"
                client.give_up(Outcome.TIMEOUT, f"no {what} token within {self._timeout_s:g} s")
            else:
                heard_s = min(heard_s, waits.heard_s)
        return heard_s + self._timeout_s - now if heard_s < math.inf else None

    def close(self, outcome: Outcome) -> None:
        """Close all connections, even during requests."""
        if self._alarm is not None:
            self._alarm.cancel()
        for task in list(self._connecting):
            self._abandon(task, outcome, "")
        for client in list(self.open):
            if client.request is not None:
                client.give_up(outcome, "")
            else:
                client.transport.abort()

    def _check(self) -> None:
        """The next check is due when the most silent connection times out: a client that gives up late would also retry
        late."""
        self._alarm = None
        left_s = self.expire()
        if left_s is not None:
            if self._alarm is not None:  # a client gave up, and its next request has set the timer
                self._alarm.cancel()
            pause_s = max(left_s + EARLY_S, CHECK_S, CHECK_EACH_S * len(self.open))
            self._alarm = asyncio.get_running_loop().call_later(pause_s, self._check)

    def _usable(self) -> Client | None:
        """The connection used last, unless it was idle for so long that its server may close it at any moment."""
        if not self.idle:
            return None
        if self.clock() - self.idle[-1].idle_since <= IDLE_S:
            return self.idle.pop()
        stale, self.idle = self.idle, []
        for client in stale:
            client.transport.abort()
        return None

    def _abandon(self, task: asyncio.Task[None], outcome: Outcome, reason: str) -> None:
        """End a request that got no connection."""
        task.cancel()
        request = self._connecting.pop(task)
        request.outcome, request.reason = outcome, reason
        self.over(request, True)

    async def _contact(self, addresses: list[str]) -> Client:
        """A connection to the first address that accepts one. Later connections use the same address."""
        for self._address in addresses[:-1]:
            try:
                return await self._connect()
            except OwnLimit:
                raise
            except OSError:
                continue
        self._address = addresses[-1]
        return await self._connect()

    async def _connect(self) -> Client:
        loop = asyncio.get_running_loop()
        name = self._host if self._tls else None
        try:
            _, client = await loop.create_connection(
                lambda: Client(self), self._address, self._port, ssl=self._tls, server_hostname=name
            )
        except OSError as error:
            raise own_limit(error, len(self.open)) or error from None
        return client

    async def _send_anew(self, request: Request, data: bytes) -> None:
        try:
            client = await self._connect()
        except OSError as error:
            if isinstance(error, OwnLimit):
                request.outcome, self.limit = Outcome.INTERRUPTED, error
                self.on_limit()
            else:
                request.outcome, request.reason = Outcome.CONNECT, told(error)
            self.over(request, True)
            return
        finally:
            # The request is removed at once, because others may ask for the requests under way before this task ends.
            self._connecting.pop(cast(asyncio.Task[None], asyncio.current_task()), None)
        client.send(request, data)
