"""Odd answers of replicas: each is counted, and one of a kind and replica is logged now and then."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from gateway.proxy.clock import monotonic
from gateway.wire.oddity import Oddity

log = logging.getLogger("tailgate.upstream")

LOG_EVERY_S: Final = 60.0


class OddityCounter(Protocol):
    """Where oddities are counted."""

    def oddity(self, pool: str, replica: str, kind: Oddity) -> None: ...


class Oddities:
    """Tells of odd answers. One log line per replica and kind a minute, with the number that got none."""

    def __init__(self, counter: OddityCounter) -> None:
        self._counter = counter
        self._silent_until: dict[tuple[str, Oddity], float] = {}
        self._left_out: dict[tuple[str, Oddity], int] = {}

    def tell(self, pool: str, replica: str, kind: Oddity, detail: str) -> None:
        """Count one; `detail` says what was odd, without a word of a request or an answer."""
        self._counter.oddity(pool, replica, kind)
        key = (replica, kind)
        now = monotonic()
        if now < self._silent_until.get(key, 0.0):
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return
        self._silent_until[key] = now + LOG_EVERY_S
        left_out = self._left_out.pop(key, 0)
        more = f" ({left_out} more since the last line like this)" if left_out else ""
        log.warning("replica %s: %s: %s%s", replica, kind.value, detail, more)
