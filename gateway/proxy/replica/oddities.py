"""Reports odd and broken answers of replicas. A few of each kind are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from gateway.proxy.logs import LogSampler, more
from gateway.wire.answers.oddity import Oddity

log = logging.getLogger("tailgate.upstream")


class OddityCounter(Protocol):
    """Counts odd answers, for metrics."""

    def oddity(self, pool: str, replica: str, kind: Oddity) -> None: ...


class Oddities:
    """Reports odd answers. Each replica and kind gets at most one log line per minute, which says how many answers had
    no line.
    """

    def __init__(self, counter: OddityCounter, clock: Callable[[], float]) -> None:
        self._counter = counter
        self._sampler = LogSampler(clock)

    def broken(self, replica: str, kind: str, said: str) -> None:
        """Log an answer that failed; the controller counts it. `said`: the line after the replica's name."""
        left_out = self._sampler.take(f"{kind} {replica}")
        if left_out is not None:
            log.warning("replica %s %s%s", replica, said, more(left_out))

    def tell(self, pool: str, replica: str, kind: Oddity, detail: str) -> None:
        """Count one odd answer. `detail`: what was odd, without quoting a request or an answer."""
        self._counter.oddity(pool, replica, kind)
        left_out = self._sampler.take(f"{kind.value} {replica}")
        if left_out is None:
            return
        log.warning(
            "replica %s sent an odd answer (%s): %s; this does not count against it: if it goes on, ask the engine "
            "itself and compare%s",
            replica,
            kind.value,
            detail,
            more(left_out),
        )
