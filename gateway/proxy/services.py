"""The objects that all exchanges of a gateway share, and what an exchange needs of the connection of its client."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from gateway.core.policy import Model
from gateway.core.request import Endpoint
from gateway.proxy.client_writer import ClientWriter
from gateway.proxy.driver import Driver, Meter
from gateway.proxy.keep_alive import KeepAlives
from gateway.proxy.logs import RefusalLog
from gateway.proxy.replica.upstream import Upstreams
from gateway.proxy.stored_responses import StoredResponses
from gateway.wire.body.pictures import PictureTokens


class Client(ClientWriter):
    """The client connection to which an answer is written."""

    @abstractmethod
    def placed(self, pool: str, since: float) -> None:
        """The request has been in `pool` since it was dispatched at `since`."""

    @abstractmethod
    def unplaced(self, since: float) -> None:
        """The request, dispatched at `since`, has reached no replica: it never was in its pool."""

    @abstractmethod
    def let_go(self) -> None:
        """The body of the request is no longer held."""

    @abstractmethod
    def done(self) -> None:
        """The answer is complete."""

    @abstractmethod
    def cut(self) -> None:
        """The answer ends here, incomplete; close the connection."""


class MirrorService(Protocol):
    """Sender of copies to shadow pools."""

    def shed(self) -> None:
        """Record that a request was refused for lack of capacity. After it, fewer copies are sent."""

    def admits(self, model: Model, size: int) -> bool:
        """Whether a copy of this request is to be sent. `size`: bytes of its body."""

    def send(self, model: Model, name: str, endpoint: Endpoint, body: bytes, rid: bytes, total_s: float) -> None:
        """Send a copy. Its answer is dropped. `name`: that of the model in `body`."""


class ExchangeServices:
    """Objects that all exchanges of a gateway share."""

    def __init__(self, driver: Driver, upstreams: Upstreams, meter: Meter, mirror: MirrorService | None) -> None:
        """`mirror`: None: no copies are sent."""
        self.driver = driver
        self.upstreams = upstreams
        self.meter = meter
        self.refusals = RefusalLog(driver.clock)
        self.mirror = mirror
        self.responses = StoredResponses(driver.restarts)
        self.pictures = PictureTokens()
        self.trace_ratio = -1.0
        """Share (0-1) of the requests that are traced; below 0 if the gateway makes no traces."""
        self.keep_alives = KeepAlives()
        """Silent streams that get comments."""
