"""Answers of one replica: counts of the odd and failed ones, and its latest error."""

from __future__ import annotations

from typing import Final

from gateway.core.fleet.health.evidence import EVIDENCE, Observation, Says, fails

FADE: Final = 0.9
"""Each outlier check multiplies the counts of answers by this, so they cover about the last ten seconds."""


class AnswerCounts:
    """Counts of the odd and failed answers of one replica. Recent ones count most."""

    __slots__ = (
        "all",
        "all_odd",
        "began_at",
        "bodies",
        "failed_by",
        "odd",
        "odd_by",
        "odd_streak",
        "rest",
        "rest_odd",
        "seen",
        "streak",
        "strikes",
        "useful",
        "window",
        "window_odd",
    )

    def __init__(self, now: float = 0.0) -> None:
        self.all = self.all_odd = 0
        """Numbers of answers, and of odd ones, since the replica was last ejected."""
        self.rest = self.rest_odd = 0
        """The same of all others in the pool when the present streak began."""
        self.seen = self.odd = 0.0
        """Numbers of answers, and of odd ones, that fade."""
        self.useful = 0
        """Number of latest answers in a row that were not odd."""
        self.window = self.window_odd = 0
        """Number of answers, and of odd ones, in the present window."""
        self.began_at = now
        """Start of the present window."""
        self.strikes = 0
        self.odd_streak = self.streak = 0
        """Numbers of odd answers, and of failures, since the last useful answer."""
        self.failed_by: set[str] = set()
        """Tenants of these failures, at most two."""
        self.bodies: set[int] = set()
        """Bodies of these failures, at most two. A body without a hash is one of its own."""
        self.odd_by: set[str] = set()
        """Tenants of odd answers since the latest window without a strike, at most two."""

    def add(self, seen: Observation, tenant: str, body: int | None) -> None:
        """Count an answer."""
        odd = EVIDENCE[seen].says is Says.ODD
        self.seen += 1.0
        self.all += 1
        self.window += 1
        if not odd:
            self.useful += 1
            self.odd_streak = self.streak = 0
            self.failed_by.clear()
            self.bodies.clear()
            return
        self.odd += 1.0
        self.all_odd += 1
        self.window_odd += 1
        self.useful = 0
        self.odd_streak += 1
        if len(self.odd_by) < 2:
            self.odd_by.add(tenant)
        if fails(seen):
            self.streak += 1
            if len(self.failed_by) < 2:
                self.failed_by.add(tenant)
            if len(self.bodies) < 2:
                self.bodies.add(-self.streak if body is None else body)

    def fade(self) -> None:
        """Forget part of the counts."""
        self.seen *= FADE
        self.odd *= FADE

    def begin(self, struck: bool, now: float) -> None:
        """Begin the next window. `struck`: whether the present one is a strike."""
        self.window = self.window_odd = 0
        self.began_at = now
        self.strikes = self.strikes + 1 if struck else 0
        if not struck:
            self.odd_by.clear()

    @property
    def share(self) -> float:
        """Share of odd answers (0-1)."""
        return self.odd / self.seen if self.seen > 0.0 else 0.0


class LastError:
    """The latest error of a replica, in words, and how often it came in a row."""

    __slots__ = ("at", "count", "is_over", "text")

    def __init__(self) -> None:
        self.text = ""
        self.count = 0
        self.at = 0.0
        self.is_over = False
        """Whether a useful answer came since."""

    def add(self, text: str, now: float) -> None:
        """Record an error."""
        self.count = self.count + 1 if text == self.text and not self.is_over else 1
        self.text, self.at, self.is_over = text, now, False

    def __str__(self) -> str:
        return f"{self.count} x {self.text}" if self.count else ""
