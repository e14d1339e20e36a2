"""The supervisor of callbacks: a bug is logged and counted, and fails only one request. All other requests go on.

The callers of our callbacks (event loop, httptools, timers) drop an exception, or end the process because of it. So
every entry point catches exceptions, passes them to the supervisor, and fails the request that it handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.core.results import Callback
from gateway.proxy.logs import LogSampler, more

log = logging.getLogger("tailgate.bugs")


class Supervisor:
    """Counts bugs by the kind of callback that raised them. At most one bug of each kind is logged per minute, with its
    traceback.
    """

    def __init__(self, count: Callable[[Callback], None], clock: Callable[[], float]) -> None:
        self._count = count
        self._sampler = LogSampler(clock)

    def caught(self, callback: Callback, error: Exception) -> None:
        """Report an exception that a callback raised."""
        self._count(callback)
        kind = f"{callback.value} {type(error).__name__} {_place(error)}"
        left_out = self._sampler.take(kind)
        if left_out is None:
            return
        log.error(
            "a bug of the gateway: a %s callback raised %s%s; one request is ended, all others go on: report it",
            callback.value,
            type(error).__name__,
            more(left_out),
            exc_info=error,
        )


def _place(error: Exception) -> str:
    """File and line where an exception was raised. For compiled code, only the file is known."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
