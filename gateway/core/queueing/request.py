"""The part of a request's state that queues use."""

from __future__ import annotations

import math

from gateway.core.forecast.ahead import Forecast
from gateway.core.queueing.limits import TenantUse
from gateway.core.request import Request


class QueuedRequest:
    """The part of a request's state that decides when its turn comes, and where the queue keeps its place."""

    __slots__ = ("deadline", "forecast", "request", "start_by", "ticket", "use")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.use: TenantUse | None = None
        self.deadline = math.inf
        """When its first token, or the end of an unstreamed answer, would come too late."""
        self.start_by = math.inf
        """Latest start: when it has to be sent to be in time, by its forecast. Set when it is queued."""
        self.forecast: Forecast | None = None
        """The forecast on which it was admitted."""
        self.ticket = 0
        """Serial number of its entry in a queue; 0: not queued."""
