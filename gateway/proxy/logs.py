"""Log lines of the proxy. Only a few lines of each kind are written per second. The next line says how many were left
out.

No line quotes a request, or an engine's text. For a refusal, a line has the controller's text or the name of a field.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from typing import Final

from gateway.core.results import Outcome, Reason, Record
from gateway.wire.errors.replies import Problem

log = logging.getLogger("tailgate.refusals")

LOG_EVERY_S: Final = 60.0
MAX_KINDS: Final = 4096
"""Beyond this many kinds, the counts of all kinds are forgotten, so more lines are written."""
REFUSAL_LINES: Final = 3
"""Lines per second for each (reason, tier, pool)."""
FAILED: Final = (Outcome.TIMEOUT, Outcome.CUT, Outcome.ERROR)
"""Outcomes of requests that were admitted and then failed."""
GOOD_STATUS: Final = 200
MAX_FIELD_CHARS: Final = 64
Cause = tuple[str, float | None]
"""(the controller's text about a refusal, or empty; seconds until a retry makes sense, or None if unknown)."""
NO_CAUSE: Final[Cause] = ("", None)


class LogSampler:
    """Lets `lines` lines of each kind pass per window of `every_s` seconds, and counts the lines that are left out."""

    def __init__(self, clock: Callable[[], float], lines: int = 1, every_s: float = LOG_EVERY_S) -> None:
        self._clock = clock
        self._lines = lines
        self._every_s = every_s
        self._kinds: dict[Hashable, _Window] = {}

    def take(self, kind: Hashable) -> int | None:
        """Number of lines of this kind that were left out before this one; None if this line has to be left out,
        too.
        """
        now = self._clock()
        window = self._kinds.get(kind)
        if window is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            window = self._kinds[kind] = _Window()
        if now >= window.end:
            window.end, window.lines = now + self._every_s, self._lines
        if not window.lines:
            window.left_out += 1
            return None
        left_out, window.left_out = window.left_out, 0
        window.lines -= 1
        return left_out


class _Window:
    """The present window of one kind of lines."""

    __slots__ = ("end", "left_out", "lines")

    def __init__(self) -> None:
        self.end = -math.inf
        self.lines = 0
        """Number of lines that may still pass before `end`."""
        self.left_out = 0
        """Number of lines left out since the last line that passed."""


def more(left_out: int) -> str:
    """A suffix for a line, with the number of lines left out before it; empty if none."""
    return f" ({left_out} more like it since the last line)" if left_out else ""


class RefusalLog:
    """Logs one line at INFO for each request that is refused or fails. Under a flood, only a few per second are
    logged.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._sampler = LogSampler(clock, REFUSAL_LINES, 1.0)

    def early(self, request_id: str, tier: str, problem: Problem) -> None:
        """Log a request that was refused before it became a `Request`. `tier`: empty if unknown."""
        left_out = self._sampler.take((problem.why, tier, ""))
        if left_out is not None:
            field = "" if problem.param is None else f"field {problem.param[:MAX_FIELD_CHARS]}"
            about = _about(problem.why, tier, "", (field, problem.retry_after_s))
            log.info("request %s refused: %s%s", request_id, about, more(left_out))

    def ended(self, request_id: str, record: Record, cause: Cause) -> None:
        """Log a request that is over, unless it was answered or its client left."""
        why = record.why
        if why is None or record.outcome is Outcome.ABANDONED:
            return
        tier, pool = record.request.tier.name, record.pool or ""
        left_out = self._sampler.take((why, tier, pool))
        if left_out is not None:
            event = "failed" if record.outcome in FAILED else "refused"
            about = _about(why, tier, pool, cause if cause[0] or event == "refused" else (_last(record), cause[1]))
            log.info("request %s %s: %s%s", request_id, event, about, more(left_out))


def _last(record: Record) -> str:
    """The end of the last attempt of a request that failed; empty if there was none, or nothing is kept."""
    if record.history is None or not record.history.attempts:
        return ""
    last = record.history.attempts[-1]
    status = "" if last.status is None or last.status == GOOD_STATUS else f" with HTTP {last.status}"
    return f"replica {last.replica}: {last.end}{status}"


def _about(why: Reason, tier: str, pool: str, cause: Cause) -> str:
    said, retry_after_s = cause
    place = "".join(f", {name} {value}" for name, value in (("tier", tier), ("pool", pool)) if value)
    detail = f": {said.rstrip('.')}" if said else ""
    if retry_after_s is None:
        retry = ""
    else:
        retry = "; a retry cannot succeed" if retry_after_s == math.inf else f"; retry after {retry_after_s:.3g} s"
    return f"{why.value}{place}{detail}{retry}"
