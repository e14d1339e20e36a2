"""Outlier state of one replica: latencies relative to its pool, odd answers, silence, and ejection."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from gateway.core.forecast.severity import TYPICAL, Severity
from gateway.core.policy import Ejection
from gateway.core.snapshot import HealthView

SWEEP_S: Final = 1.0
"""Seconds between two checks for outliers in a pool that has work."""
FADE: Final = 0.9
"""Each outlier check multiplies the counts of answers by this, so they cover about the last ten seconds."""
LATELY: Final = 0.25
"""Weight of the latest probe in the running mean of probes."""


class EjectionReason(StrEnum):
    """Why a replica is ejected."""

    SLOW_TTFT = "slow-ttft"
    SLOW_ITL = "slow-itl"
    STALLED = "stalled"
    ODD_ANSWERS = "odd-answers"


CAPPED: Final = (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL, EjectionReason.ODD_ANSWERS)
"""Ejections for these reasons together are limited to a share of the pool."""


class OddAnswers:
    """Counts of odd answers of one replica (odd_answers.py). Recent ones count most."""

    __slots__ = ("began_at", "odd", "seen", "strikes", "useful", "window", "window_odd")

    def __init__(self, now: float = 0.0) -> None:
        self.seen = 0.0
        self.odd = 0.0
        self.useful = 0
        """Number of latest answers in a row that were not odd."""
        self.window = 0
        """Number of answers in the present window."""
        self.window_odd = 0
        """Number of odd answers in the present window."""
        self.began_at = now
        """Start of the present window."""
        self.strikes = 0

    def add(self, odd: bool) -> None:
        """Count an answer."""
        self.seen += 1.0
        self.window += 1
        if odd:
            self.odd += 1.0
            self.window_odd += 1
            self.useful = 0
        else:
            self.useful += 1

    def fade(self) -> None:
        """Forget part of the counts."""
        self.seen *= FADE
        self.odd *= FADE

    def begin(self, now: float) -> None:
        """Begin the next window."""
        self.window = self.window_odd = 0
        self.began_at = now

    @property
    def share(self) -> float:
        """Share of odd answers (0-1)."""
        return self.odd / self.seen if self.seen > 0.0 else 0.0


class OutlierScore:
    """TTFT and ITL severity, odd answers, silence and ejection of one replica."""

    __slots__ = (
        "answers",
        "count",
        "doubted",
        "ejections",
        "heard_at",
        "itl",
        "lately",
        "longest_s",
        "out",
        "out_at",
        "probe_at",
        "proven",
        "said_at",
        "silent_s",
        "suspected",
        "tried_at",
        "ttft",
        "until",
        "weighed",
        "well_at",
        "why",
    )

    def __init__(self) -> None:
        self.ttft = Severity()
        self.itl = Severity()
        self.answers = OddAnswers()
        self.suspected = False
        """Whether its share of odd answers exceeds that of the others in its pool."""
        self.said_at = 0.0
        """Time of the last sign of life: tokens or an answer."""
        self.heard_at = 0.0
        """Start of the present silence. It is `said_at`, moved so that time without work does not count as silence."""
        self.silent_s = 0.0
        """Seconds for which the replica was already silent when its last request ended."""
        self.longest_s = 0.0
        """Longest silence (seconds) since the last outlier check."""
        self.out: EjectionReason | None = None
        self.out_at = 0.0
        self.until = 0.0
        self.probe_at = 0.0
        """Earliest time of the next probe."""
        self.tried_at = 0.0
        """Time of the last probe."""
        self.doubted = 0.0
        """Total weight of the probes up to the last one that was slow."""
        self.proven = 0.0
        """Total weight (slowness) or number (odd answers) of the good probes since the last bad probe."""
        self.lately = 0.0
        """Running mean of the excess of the latest probes (log-ratio to the pool)."""
        self.weighed = 0.0
        """Total weight of the probes in `lately`."""
        self.count = 0
        """Number of ejections, minus those forgiven. The duration of an ejection grows with this count."""
        self.well_at = 0.0
        """Time when the replica came back, or an ejection was last forgiven."""
        self.ejections: dict[EjectionReason, int] = {}
        self.why = ""
        """Reason of the latest ejection, in words."""

    @property
    def is_typical(self) -> bool:
        """Whether the pool may learn from this replica: it is neither ejected nor clearly slower than the others."""
        return self.out is None and not self.ttft.stands_out and not self.itl.stands_out

    def heard(self, now: float) -> None:
        """Record a sign of life: tokens or an answer."""
        gap_s = now - self.heard_at
        if gap_s > self.longest_s:
            self.longest_s = gap_s
        self.heard_at = self.said_at = now

    def excuse(self, late_s: float, now: float) -> None:
        """Leave out `late_s` of its silence, because the gateway did not listen."""
        self.heard_at = min(now, self.heard_at + late_s)

    def asked(self, now: float) -> None:
        """Record that the replica has work again."""
        self.heard_at = now - self.silent_s

    def has_no_work(self, now: float) -> None:
        """Record that the replica has no work left. If it was silent until then, the silence continues with its next
        work.
        """
        self.silent_s = now - self.heard_at

    def put_out(self, out: EjectionReason, why: str, ejection: Ejection, now: float) -> None:
        """Eject the replica. The duration grows with each ejection."""
        self.out, self.out_at = out, now
        self.count += 1
        self.ejections[out] = self.ejections.get(out, 0) + 1
        for_s = min(ejection.max_time_s, ejection.time_s * self.count)
        self.until = now + for_s
        self.probe_at = now + ejection.probe_s
        self.tried_at = now
        self.why = f"{why}, out for {for_s:.0f} s" if out is not EjectionReason.STALLED else why
        self.doubted = self.proven = self.lately = self.weighed = 0.0
        self.ttft, self.itl = Severity(1.0, TYPICAL), Severity(1.0, TYPICAL)
        self.answers, self.suspected = OddAnswers(now), False

    def take_back(self, now: float) -> None:
        """End the ejection, and forget all scores."""
        self.out = None
        self.well_at = self.heard_at = now
        self.silent_s = 0.0
        self.ttft, self.itl = Severity(), Severity()
        self.ttft.began_at = self.itl.began_at = now
        self.answers, self.suspected = OddAnswers(now), False

    def may_be_tried(self, in_flight: int, now: float) -> bool:
        """Whether a probe is due and the last probe has been answered. After a good probe, the next probe is due at
        once.
        """
        is_due = now >= self.probe_at or self.proven > 0.0
        return self.out is not None and is_due and (not in_flight or self.said_at > self.tried_at)

    def try_it(self, ejection: Ejection, now: float) -> None:
        """Record that a probe is sent."""
        self.tried_at = now
        if not self.proven:
            self.probe_at = max(self.probe_at, now - SWEEP_S) + ejection.probe_s

    def weigh(self, excess: float, heard: float) -> None:
        """Add the latest probe to `lately`. `heard`: total weight of the probes since the ejection."""
        news = heard - self.weighed
        if news > 0.0:
            self.lately += min(1.0, news * max(LATELY, 1.0 / heard)) * (excess - self.lately)
            self.weighed = heard

    def mend(self, ejection: Ejection, now: float) -> None:
        """Forgive one ejection for each period of `time_s` without a new ejection."""
        if self.count and now >= self.well_at + ejection.time_s:
            self.count -= 1
            self.well_at = now

    def view(self, now: float, share: float) -> HealthView:
        """A copy for the admin pages and metrics. `share` (0-1): the share of its slots that slow start allows."""
        return HealthView(
            out=None if self.out is None else self.out.value,
            why="" if self.out is None else self.why,
            back_in_s=max(0.0, self.until - now) if self.out in CAPPED else None,
            ttft_score=self.ttft.mean,
            ttft_excess=self.ttft.excess,
            ttft_z=self.ttft.z,
            itl_score=self.itl.mean,
            itl_excess=self.itl.excess,
            itl_z=self.itl.z,
            share=share,
            ejections=tuple((out.value, n) for out, n in self.ejections.items()),
        )
