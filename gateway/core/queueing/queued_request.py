"""The part of a request's state that queues read and write."""

from __future__ import annotations

import math

from gateway.core.prediction import Forecast
from gateway.core.queueing.limits import TenantUse
from gateway.core.request import Request


class QueuedRequest:
    """The part of a request's state by which the queue orders it, with its place in the queue."""

    __slots__ = ("deadline", "forecast", "last_ticket", "needs_tokens", "request", "start_by", "ticket", "use")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.needs_tokens = 0
        """Context that its longest prompt and its answer are likely to need. Replicas with less get it only if none has
        more.
        """
        self.use: TenantUse | None = None
        self.deadline = math.inf
        """Time by which the first token, or the end of an unstreamed answer, must come."""
        self.start_by = math.inf
        """Latest start: to be in time, the request has to be sent by this time, according to its forecast. Set when it
        is queued.
        """
        self.forecast: Forecast | None = None
        """The forecast on which the request was admitted."""
        self.ticket = 0
        """Serial number of its entry in the queue; 0 if it is not queued."""
        self.last_ticket = 0
        """Its latest ticket in any queue. Later tickets are higher, so a stale entry of another queue never looks
        valid.
        """
