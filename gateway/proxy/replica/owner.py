"""Interface of an attempt to its exchange."""

from __future__ import annotations

from abc import abstractmethod

from gateway.core.estimators.histograms import LogHistogram
from gateway.core.policy import OnTotal, Report
from gateway.core.request import Request
from gateway.core.results import Callback
from gateway.proxy.driver import CommandHandler, Driver
from gateway.proxy.replica.upstream import ReplicaConnections
from gateway.wire.parsed import Parsed


class AttemptOwner(CommandHandler):
    """Receives the bytes to forward, and the end of each attempt."""

    __slots__ = (
        "api",
        "asked_model",
        "driver",
        "engine_said",
        "may_be_cut",
        "request",
        "streams",
        "wants_usage",
        "was_sent",
    )

    def __init__(self, driver: Driver, request: Request, parsed: Parsed) -> None:
        self.driver = driver
        self.request = request
        self.api = parsed.api
        """Description of the requested API (wire/apis)."""
        self.streams = request.visible
        tier = request.tier
        self.may_be_cut = tier.on_total is OnTotal.CUT or tier.repetition is not None or tier.caps.watch
        self.wants_usage = parsed.wants_usage or parsed.assembled
        self.was_sent = False
        """Whether any attempt wrote the request to a connection."""
        self.engine_said = ""
        """Error text of an engine that failed inside an answer; empty if none."""
        self.asked_model: str | None = parsed.model if request.model.report is Report.ASKED else None
        """The model name that the client is to see; None for the engine's own."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether the client has the head of a stream."""

    @abstractmethod
    def show(self, pieces: list[bytes]) -> None:
        """Pass payload on to the client, each piece as a chunk."""

    @abstractmethod
    def show_raw(self, raw: bytes, pieces: list[bytes]) -> None:
        """Pass payload on to the client. `raw`: the same bytes in a framing that may be kept."""

    @abstractmethod
    def gaps(self, upstream: ReplicaConnections) -> LogHistogram:
        """The counter of the times between events of a stream."""

    @abstractmethod
    def body_hash(self) -> int | None:
        """Hash of this request's body; None after a commit."""

    @abstractmethod
    def without_options(self, attempt_id: int, upstream: ReplicaConnections, max_tokens: int) -> bytes | None:
        """The HTTP message without `stream_options`, for a replica that refuses them; None if it has none anyway."""

    @abstractmethod
    def attempt_ended(self, attempt_id: int) -> None:
        """An attempt is over. If its whole answer went to the client, the client's answer is complete, too."""

    @abstractmethod
    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this request."""
