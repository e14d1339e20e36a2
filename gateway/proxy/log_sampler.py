"""One log line of each kind a minute, however often it happens."""

from __future__ import annotations

from typing import Final

from gateway.proxy.clock import monotonic

LOG_EVERY_S: Final = 60.0
MAX_KINDS: Final = 4096
"""Beyond it all are forgotten, and each may be logged again."""


class LogSampler:
    """Remembers when each kind was logged last."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}
        """By kind: when it may be logged again, and how many lines were left out since it was."""

    def take(self, kind: str) -> int | None:
        """How many lines of this kind were left out since the last one; None: this one is left out, too."""
        now = monotonic()
        silent_until, left_out = self._kinds.get(kind, (now, 0))
        if now < silent_until:
            self._kinds[kind] = silent_until, left_out + 1
            return None
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now + LOG_EVERY_S, 0
        return left_out
