"""The interfaces between a connection to a replica and the receiver of the answer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Protocol

from gateway.core.results import AttemptOutcome, Callback
from gateway.wire.http.answer import AnswerHead


class ReplicaLine(Protocol):
    """The connection of a request, made or being made."""

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Connecting:
    """A request whose connection is still being made."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def cancel(self) -> None:
        """Stop connecting."""
        self.task.cancel()

    def pause(self) -> None:
        """Does nothing, since nothing is read yet."""

    def resume(self) -> None:
        """Does nothing, since nothing is read yet."""


class AnswerReceiver(ABC):
    """Receives the answer to one request.

    Either `on_end` or `on_lost` is called, exactly once, as the last call. After a cancel, neither is called.
    """

    __slots__ = ("asks_for", "line", "streams")

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        """Whether the answer arrives in pieces over a long time."""
        self.asks_for = ""
        """The model name in the request; empty if it is of no interest."""
        self.line: ReplicaLine | None = None
        """The connection of the call; None once the call is over."""

    @abstractmethod
    def on_sent(self) -> None:
        """The request was written to a connection."""

    @abstractmethod
    def on_head(self, head: AnswerHead) -> None:
        """The head of the answer."""

    @abstractmethod
    def pass_on(self, data: bytes) -> bool:
        """Take a read that begins with a chunk, if it is one plain event. Returns False if it is not: then the slow
        path is used.
        """

    @abstractmethod
    def on_body(self, pieces: list[bytes], raw: bytes | None) -> None:
        """Payload, as received. `raw`: the same bytes with their chunk framing, if they are exactly whole chunks."""

    @abstractmethod
    def on_more(self) -> bool:
        """All bytes so far were passed on, and the body goes on. Returns whether the answer does not: it said its
        end.
        """

    @abstractmethod
    def on_end(self) -> None:
        """The answer is complete."""

    @abstractmethod
    def on_lost(self, end: AttemptOutcome) -> None:
        """The request is lost: no connection was made, the connection broke, or the answer was not HTTP."""

    @abstractmethod
    def on_grace_over(self) -> None:
        """The grace for the rest of an answer is over, which the receiver had started."""

    @abstractmethod
    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this request."""
