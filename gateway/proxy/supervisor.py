"""The supervisor of callbacks. A bug costs one request: it is logged and counted, and everything else goes on.

Our callers (the event loop, httptools, timers) drop an exception, or end the process with it. So every entry point
passes exceptions to the one supervisor of the process, and fails the request that it handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.core.request import Callback
from gateway.proxy.logs import LogSampler, more

log = logging.getLogger("tailgate.bugs")


class Supervisor:
    """Counts each bug by the callback that raised it, and logs one of each kind a minute, with its traceback."""

    def __init__(self, count: Callable[[Callback], None], clock: Callable[[], float]) -> None:
        self._count = count
        self._sampler = LogSampler(clock)

    def caught(self, callback: Callback, error: Exception) -> None:
        """One of our callbacks raised this exception."""
        self._count(callback)
        kind = f"{callback.value} {type(error).__name__} {_place(error)}"
        left_out = self._sampler.take(kind)
        if left_out is None:
            return
        log.error(
            "a bug of the gateway: a %s callback raised %s%s; its request is ended and the rest goes on: report it",
            callback.value,
            type(error).__name__,
            more(left_out),
            exc_info=error,
        )


def _place(error: Exception) -> str:
    """The innermost file and line of an exception. Compiled code shows only its name."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
