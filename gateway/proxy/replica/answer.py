"""Base of the answer of one attempt, streamed or not. It holds the beginning back until commit, and reports the end to
the driver once.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from msgspec import Raw

from gateway.core.fleet.health.evidence import fails, seen_of
from gateway.core.results import AttemptOutcome, AttemptResult, Callback
from gateway.proxy.replica.owner import AttemptOwner
from gateway.proxy.replica.receiver import AnswerReceiver
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.proxy.replica.upstream_connection import UpstreamConnection
from gateway.wire.answers.assemble import Assembly
from gateway.wire.answers.events import StreamReader
from gateway.wire.answers.failure import EngineError
from gateway.wire.answers.model_name import ModelName
from gateway.wire.answers.oddity import Oddity

MAX_ID_CHARS: Final = 128
"""An engine's longer id of an answer is cut for records."""


class HeldAnswer(AnswerReceiver):
    """State and methods that streamed and whole answers share."""

    __slots__ = (
        "_announced",
        "_committed",
        "_framed",
        "_graced_at",
        "_has_model",
        "_held_bytes",
        "_model",
        "assembly",
        "coding",
        "complete",
        "content_type",
        "held",
        "id",
        "over",
        "owner",
        "reader",
        "retry_after_s",
        "status",
        "upstream",
        "whole_id",
    )

    def __init__(self, owner: AttemptOwner, attempt: int, upstream: ReplicaConnections) -> None:
        super().__init__(owner.streams)
        self.owner = owner
        self.id = attempt
        self.upstream = upstream
        self.status = 0
        self.content_type: bytes | None = None
        self.coding: bytes | None = None
        """Content encoding of an answer that the gateway cannot read but the client can; None if there is none."""
        self.retry_after_s: float | None = None
        self.assembly: Assembly | None = None
        """Assembles the stream into a whole answer, for a client that asked for no stream; else None."""
        self.whole_id: Raw | bytes = b""
        """The id of a whole answer, as JSON."""
        self.held: list[bytes] = []
        """Payload that has not been forwarded yet."""
        self.complete = False
        """Whether the whole answer has been received, with its proper end."""
        self.over = False
        """Whether the end has been reported to the driver."""
        self._framed = True
        self._announced = 0
        """Length of the body in the head, or a code that says how the body ends otherwise (`wire.http.answer`)."""
        self._graced_at = -1
        """Tokens or bytes received when the grace for the rest of the answer began; below 0 before."""
        self._held_bytes = 0
        self._committed = False
        self._has_model = False
        self._model: ModelName | None = None
        """Replaces the engine's model name by the requested name; None until the engine has sent a different name."""
        self.reader: StreamReader | None = None
        """Reads the events of a stream; None until the body is known to be a stream."""

    @property
    def seen(self) -> int:
        """Estimated number of tokens received so far."""
        return 0 if self.reader is None else self.reader.tokens_seen

    @property
    def response_id(self) -> bytes:
        """The id of the answer as JSON if the answer can be continued; else empty."""
        return bytes(self.whole_id) if self.reader is None else self.reader.response_id

    def cancel(self) -> None:
        """Close the connection to the replica. The end is not reported, because the driver asked for it."""
        self.over = True
        self._stop_grace()
        if self.line is not None:
            self.line.cancel()

    def on_grace_over(self) -> None:
        """Nothing more has come of an answer that is complete but for its mark: end it, if it really is."""
        line = self.line
        if self.over or not isinstance(line, UpstreamConnection):
            return
        if line.is_paused or self._graced_at != self._received:
            self._start_grace()
        elif self._is_told:
            line.cancel()
            self._end_without_http()

    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this attempt."""
        self.owner.broke(callback, error)

    def _learn_model(self, reported: bytes, where: bytes) -> None:
        """Prepare the replacement of the engine's model name by the client's."""
        asked = self.owner.asked_model
        # Not reported[1:-1]: in compiled code, a slice that ends before it begins raises SystemError.
        if asked is not None and reported != b'"%b"' % asked.encode("utf-8", "replace"):
            name = ModelName(asked)
            name.learn(reported, where)
            self._model = name if name.changes else None

    @property
    def _generates(self) -> bool:
        """Whether an answer without a token is useless. A transcription of silence has no token, but it is useful, and
        so is the prompt that was asked for with `max_tokens: 0`.
        """
        return self.owner.api.answers.whole.generates and self.owner.request.max_tokens != 0

    # ---- ends that HTTP does not tell

    @property
    @abstractmethod
    def _received(self) -> int:
        """Tokens of a stream, or bytes of a whole answer, so far."""

    @property
    @abstractmethod
    def _is_told(self) -> bool:
        """Whether the answer itself says that it is complete."""

    def _start_grace(self) -> None:
        self._graced_at = self._received
        self.upstream.graces.start(self, self.owner.driver.clock())

    def _stop_grace(self) -> None:
        if self._graced_at >= 0:
            self.upstream.graces.stop(self)

    def _end_without_http(self) -> None:
        """End an answer that says that it is complete, although its HTTP message has not ended."""
        self.upstream.odd(Oddity.OPEN_END, "the answer was complete, and its HTTP message did not end")
        self.on_end()

    def _engine_failed(self, error: EngineError | None) -> None:
        """End the attempt, because the engine reported an error inside the answer."""
        assert error is not None
        if error.end is AttemptOutcome.REJECTED:
            self.status = error.status
        if error.end is AttemptOutcome.REJECTED and not self._committed:
            self.held = [error.body]
        else:
            self.owner.engine_said = self.upstream.without_key(error.message.encode("utf-8", "replace")).decode()
        self._give_up(error.end)

    def _warn_truncated(self, cause: str) -> None:
        self.upstream.broken(
            cause,
            f"broke off an answer after {self.seen} tokens: {cause}; the request goes to another replica, or its "
            "client gets an error: see the engine's log",
        )

    def _give_up(self, end: AttemptOutcome) -> None:
        """Close the connection and report `end`, because the answer is useless."""
        if self.line is not None:
            self.line.cancel()
            self.line = None
        self._tell(AttemptResult(end, tokens_seen=self.seen, status=self.status))

    def _tell(self, result: AttemptResult) -> None:
        if self.over:
            return
        self.over = True
        self._stop_grace()
        spec = self.upstream.spec
        raw_id = self.response_id
        if raw_id:
            result.answer_id = raw_id[1:-1].decode("ascii", "replace")[:MAX_ID_CHARS]
        if fails(seen_of(result)):
            result.body_hash = self.owner.body_hash()
        self.owner.attempt_ended(self.id)
        self.owner.driver.finish(self.id, result, self.upstream.pool.name, spec.name)
