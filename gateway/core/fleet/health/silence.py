"""Silence of one replica: how long it has sent no sign of life while it owed one."""

from __future__ import annotations

from gateway.core.fleet.health.evidence import Observation


class Silence:
    """Signs of life, and the present gap between them."""

    __slots__ = (
        "generated",
        "heard_at",
        "is_awaited",
        "longest_s",
        "moved_at",
        "said_at",
        "silent_s",
        "stood_at",
    )

    def __init__(self) -> None:
        self.said_at = 0.0
        """Time of the last sign of life: tokens, an answer, or tokens counted in its metrics."""
        self.heard_at = 0.0
        """Start of the present silence. It is `said_at`, moved so that time without work does not count as silence."""
        self.silent_s = 0.0
        """Seconds for which the replica was already silent when its last request ended."""
        self.is_awaited = False
        """Whether it owes a sign of life. Only then a gap counts."""
        self.longest_s = 0.0
        """Longest silence (seconds) since the last outlier check."""
        self.generated: int | None = None
        """Tokens generated since its start, by its metrics; None if they do not tell."""
        self.moved_at = self.stood_at = 0.0
        """Times of the last scrape that found another count or no requests, and of the last one."""

    def begin(self, now: float) -> None:
        """Begin anew: a silence until `now` does not count."""
        self.heard_at = now
        self.silent_s = 0.0

    def heard(self, now: float) -> None:
        """Record a sign of life: tokens or an answer."""
        gap_s = now - self.heard_at
        if self.is_awaited and gap_s > self.longest_s:
            self.longest_s = gap_s
        self.heard_at = self.said_at = now

    def counted(self, tokens: int, is_busy: bool, now: float) -> None:
        """Take the engine's own count of generated tokens. More of them are a sign of life; so are fewer, since the
        engine was restarted. The same count says something only if the engine has requests.
        """
        if self.generated is not None and tokens != self.generated:
            self.heard(now)
        if tokens != self.generated or not is_busy:
            self.moved_at = now
        self.generated, self.stood_at = tokens, now

    def forgive(self, late_s: float, now: float) -> None:
        """Leave out of all silences the time for which our own process stood still."""
        self.heard_at = min(now, self.heard_at + late_s)
        self.moved_at = min(now, self.moved_at + late_s)

    def asked(self, now: float) -> None:
        """Record that the replica owes a sign of life again: it has a stream."""
        self.is_awaited = True
        self.heard_at = now - self.silent_s

    def has_no_work(self, now: float) -> None:
        """Record that the replica owes no sign of life. If it was silent until then, the silence continues with its
        next work.
        """
        self.silent_s = now - self.heard_at
        self.is_awaited = False

    def of(self, streams: int, in_flight: int, now: float) -> tuple[Observation, float]:
        """The kind of silence of a replica with this many streams and requests, and its seconds."""
        if streams:
            return Observation.STREAMS_SILENT, now - self.heard_at
        if in_flight and self.generated is not None:
            return Observation.COUNT_STANDS, self.stood_at - max(self.moved_at, self.heard_at)
        return Observation.WHOLE_SILENT, now - self.heard_at
