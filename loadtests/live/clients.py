"""Clients that share a loop: one connection per request under way, used again by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
import orjson

from gateway.core.model import Endpoint
from loadtests.emulator.text import BYTES_PER_TOKEN, TOKENS_PER_GENERATION_PROMPT, TOKENS_PER_MESSAGE
from loadtests.live.answer import Answer
from loadtests.live.pace import Shot

MODEL = "default"
TEMPLATE_TOKENS = TOKENS_PER_MESSAGE + TOKENS_PER_GENERATION_PROMPT
WORDS = b"every request is either served in time or told at once that it will not be; "


def request(shot: Shot, host: str) -> bytes:
    """A chat request whose prompt the emulated replica counts as `prompt_tokens`, with an answer of `output_tokens`.

    The answer's length is said to the engine alone (`min_tokens`; the emulator is started with answers that end at
    once): a gateway does not know how long an answer is going to be. Raises ValueError for a prompt too short for
    any chat.
    """
    size = BYTES_PER_TOKEN * (shot.prompt_tokens - TEMPLATE_TOKENS)
    if size <= 0:
        raise ValueError(f"a chat has more than {TEMPLATE_TOKENS} tokens, not {shot.prompt_tokens}")
    content = (WORDS * (size // len(WORDS) + 1))[:size].decode()
    messages = [{"role": "user", "content": content}]
    body = orjson.dumps({"model": MODEL, "messages": messages, "stream": True, "min_tokens": shot.output_tokens})
    head = (
        f"POST {Endpoint.CHAT.value} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {shot.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection, with at most one request under way."""

    __slots__ = ("_answer", "_clients", "_shot", "_transport")

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._answer = Answer()
        self._shot: Shot | None = None
        self._transport: asyncio.Transport

    def send(self, shot: Shot, data: bytes) -> None:
        """Send a request, and note in `shot` what comes of it."""
        self._answer.reset()
        self._shot = shot
        self._transport.write(data)

    def close(self) -> None:
        """Leave, whatever is under way."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._clients.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.lost(self)
        if self._shot is not None:
            self._over("connection lost")

    def data_received(self, data: bytes) -> None:
        answer, shot = self._answer, self._shot
        if shot is None:
            self._transport.abort()  # nothing was asked
            return
        before = answer.tokens
        try:
            answer.feed(data)
        except httptools.HttpParserError:
            self._over("no HTTP")
            self._transport.abort()
            return
        self._clients.tokens += answer.tokens - before
        if shot.first_s is None and answer.tokens:
            shot.first_s = self._clients.clock()
        if answer.complete:
            self._over(_what_is_wrong(answer, shot))
            if answer.closing:
                self._transport.close()
            else:
                self._clients.idle.append(self)

    def _over(self, reason: str) -> None:
        shot, self._shot = self._shot, None
        assert shot is not None
        shot.status, shot.reason, shot.tokens = self._answer.status, reason, self._answer.tokens
        self._clients.over(shot)


def _what_is_wrong(answer: Answer, shot: Shot) -> str:
    """Why a complete answer is not the one that was asked for; empty if it is."""
    if answer.status != 200:
        return answer.reason or f"status {answer.status}"
    if answer.error:
        return "error in the stream"
    if not answer.done or answer.tokens != shot.output_tokens:
        return "answer cut short"
    return ""


class Clients:
    """Sends shots to one address."""

    def __init__(self, host: str, port: int, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.idle: list[Client] = []
        self.open: set[Client] = set()
        self.under_way: set[int] = set()
        """By identity."""
        self.tokens = 0
        """Of all answers so far."""
        self._address = host, port
        self._connecting: set[asyncio.Task[None]] = set()

    async def warm(self, count: int) -> None:
        """Open so many connections beforehand. Raises OSError."""
        self.idle += [await self._connect() for _ in range(count)]

    def send(self, shot: Shot, data: bytes) -> None:
        """Over an idle connection, or a new one."""
        self.under_way.add(id(shot))
        if self.idle:
            self.idle.pop().send(shot, data)
            return
        task = asyncio.get_running_loop().create_task(self._send_anew(shot, data))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def over(self, shot: Shot) -> None:
        """A request has come to its end, good or bad."""
        shot.ended_s = self.clock()
        self.under_way.discard(id(shot))

    def lost(self, client: Client) -> None:
        """A connection is gone."""
        self.open.discard(client)
        if client in self.idle:
            self.idle.remove(client)

    def close(self) -> None:
        """Leave, whatever is under way."""
        for client in list(self.open):
            client.close()

    async def _connect(self) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(lambda: Client(self), *self._address)
        return client

    async def _send_anew(self, shot: Shot, data: bytes) -> None:
        try:
            client = await self._connect()
        except OSError as error:
            shot.reason = f"cannot connect: {error.strerror}"
            self.over(shot)
            return
        client.send(shot, data)
