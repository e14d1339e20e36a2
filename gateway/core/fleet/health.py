"""Health of one replica: its one state, why it is out, and the evidence that it has given so far (evidence.py).

                     dead    dead, count full   outlier    success   check passed, or `open_s` over   mended
    up               up      down               ejected    up        up                               up
    down             down    down               down       down      probing                          down
    probing          down    down               probing    up        probing                          probing
    ejected          ejected down               ejected    ejected   ejected                          up

"Dead" is a failed check, no connection, or an answer that the engine shuts down. `failures` of them in a row fill the
count; a success or a passing check empties it. A check that began before the latest of them is ignored: the replica may
have died after it. A success is a useful answer, or the gateway's own probe. After lost connections any complete HTTP
answer is one, whatever its status, since it proves that the process lives. "Outlier" is the verdict of judge.py.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

from gateway.core.estimators.severity import TYPICAL, Severity
from gateway.core.fleet.evidence import EVIDENCE, EjectionReason, Observation, Says, fails
from gateway.core.policy import Ejection, Health
from gateway.core.snapshot import HealthView, ReplicaState

SWEEP_S: Final = 1.0
"""Seconds between two checks for outliers in a pool that has work."""
FADE: Final = 0.9
"""Each outlier check multiplies the counts of answers by this, so they cover about the last ten seconds."""
LATELY: Final = 0.25
"""Weight of the latest probe in the running mean of probes."""

_CHECKS: Final = (Observation.CHECK_PASSED, Observation.LISTED, Observation.PROVED)
UNREACHED: Final = (Observation.UNREACHABLE, Observation.CONNECT_TIMEOUT)

CAPPED: Final = (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL, EjectionReason.ODD_ANSWERS)
"""Replicas ejected for these reasons serve, but badly. Together they are limited to a share of the pool."""
_USELESS: Final = (EjectionReason.STALLED, EjectionReason.FAILING)
"""Replicas ejected for these reasons serve nobody. One completion shows that they do."""


class HealthEvent(Enum):
    """Input of the transition table."""

    DEAD = auto()
    FULL = auto()
    """Evidence of death that fills the count."""
    OUTLIER = auto()
    SUCCESS = auto()
    TRY = auto()
    """A check passed, or the replica has been down for `open_s`."""
    MENDED = auto()


_UP: Final = ReplicaState.UP
_DOWN: Final = ReplicaState.DOWN
_PROBING: Final = ReplicaState.PROBING
_EJECTED: Final = ReplicaState.EJECTED

# A passing check alone does not bring a replica back: engines answer /health with 200 while they shut down.
TRANSITIONS: Final[dict[tuple[ReplicaState, HealthEvent], ReplicaState]] = {
    (_UP, HealthEvent.FULL): _DOWN,
    (_UP, HealthEvent.OUTLIER): _EJECTED,
    (_DOWN, HealthEvent.TRY): _PROBING,
    (_PROBING, HealthEvent.DEAD): _DOWN,
    (_PROBING, HealthEvent.FULL): _DOWN,
    (_PROBING, HealthEvent.SUCCESS): _UP,
    (_EJECTED, HealthEvent.FULL): _DOWN,
    (_EJECTED, HealthEvent.MENDED): _UP,
}


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


class ReplicaHealth:
    """State, evidence and ejection of one replica."""

    __slots__ = (
        "_dead_at",
        "_down_at",
        "answers",
        "cause",
        "count",
        "deaths",
        "doubted",
        "ejections",
        "error",
        "generated",
        "heard_at",
        "is_awaited",
        "itl",
        "lately",
        "longest_s",
        "moved_at",
        "out",
        "out_at",
        "probe_at",
        "proven",
        "said_at",
        "silent_s",
        "state",
        "stood_at",
        "suspected",
        "tried_at",
        "ttft",
        "until",
        "weighed",
        "well_at",
        "why",
    )

    def __init__(self) -> None:
        self.state = ReplicaState.UP
        self.why = ""
        """Why it is out, in words."""
        self.error = LastError()
        self.deaths = 0
        """Evidence of death in a row."""
        self.cause = Observation.CHECK_FAILED
        """The latest of it."""
        self._dead_at = -math.inf
        self._down_at = 0.0
        self.ttft = Severity()
        self.itl = Severity()
        self.answers = AnswerCounts()
        self.suspected = False
        """Whether its share of odd answers exceeds that of the others in its pool."""
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
        self.out: EjectionReason | None = None
        """Set while it is ejected."""
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

    # ---- dead or alive

    def saw(self, seen: Observation, health: Health, now: float, text: str, asked_at: float | None = None) -> None:
        """Judge one observation. `text`: the error in words. `asked_at`: when a check began; None stands for now."""
        evidence = EVIDENCE[seen]
        if evidence.says is Says.DEAD:
            self.error.add(text, now)
            self.deaths += 1
            self.cause, self._dead_at = seen, now
            self._step(HealthEvent.FULL if self.deaths >= health.failures else HealthEvent.DEAD, now)
        elif seen in _CHECKS:
            if asked_at is None or asked_at >= self._dead_at:
                self.deaths = 0
                self._step(HealthEvent.TRY, now)
                # An engine that shuts down still lists its models.
                if seen is Observation.PROVED or (seen is Observation.LISTED and self.cause is not Observation.CLOSING):
                    self._step(HealthEvent.SUCCESS, now)
            if seen is Observation.PROVED and self.out in _USELESS and (asked_at is None or asked_at >= self.out_at):
                self.take_back(now)
        elif evidence.is_answer and (evidence.says is Says.ALIVE or self.cause in UNREACHED):
            self.deaths = 0
            self.error.is_over = True
            self._step(HealthEvent.SUCCESS, now)
        if fails(seen):
            self.error.add(text, now)
            if not evidence.is_answer and self.state is _PROBING:
                self._step(HealthEvent.DEAD, now)

    def cooled(self, health: Health, now: float) -> None:
        """Try a replica again that has been down for `open_s`."""
        if self.state is _DOWN and now >= self._down_at + health.open_s:
            self._step(HealthEvent.TRY, now)

    def cools_in_s(self, health: Health, now: float) -> float:
        """Seconds until a replica that is down is tried again; 0 if it is not down."""
        return max(0.0, self._down_at + health.open_s - now) if self.state is _DOWN else 0.0

    def _step(self, event: HealthEvent, now: float) -> bool:
        """Apply one event. Returns whether the state changed."""
        before, new = self.state, TRANSITIONS.get((self.state, event), self.state)
        if new is before:
            return False
        self.state = new
        if new is _DOWN:
            self._down_at = now
            if before is not _PROBING:
                self.why = str(self.error)
            if before is _EJECTED:
                self._forget(now)  # its scores tell nothing about its next process or connection
        elif new is _UP:
            self.why = ""
        return True

    @property
    def failures(self) -> int:
        """Failures in a row: evidence of death, and failed answers."""
        return self.deaths + self.answers.streak

    # ---- silence

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

    # ---- ejection and probes

    @property
    def is_typical(self) -> bool:
        """Whether the pool may learn from this replica: it is neither ejected nor clearly slower than the others."""
        return self.out is None and not self.ttft.stands_out and not self.itl.stands_out

    def put_out(self, out: EjectionReason, why: str, ejection: Ejection, now: float) -> None:
        """Eject the replica, or extend its ejection. The duration grows with each ejection."""
        if not self._step(HealthEvent.OUTLIER, now) and self.state is not _EJECTED:
            return
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
        self.answers, self.suspected = AnswerCounts(now), False

    def take_back(self, now: float) -> None:
        """End the ejection, and forget all scores."""
        self._step(HealthEvent.MENDED, now)
        self._forget(now)

    def _forget(self, now: float) -> None:
        self.out = None
        self.well_at = self.heard_at = now
        self.silent_s = 0.0
        self.ttft, self.itl = Severity(), Severity()
        self.ttft.began_at = self.itl.began_at = now
        self.answers, self.suspected = AnswerCounts(now), False

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
            why=self.why,
            back_in_s=max(0.0, self.until - now) if self.out in CAPPED else None,
            ttft_score=self.ttft.mean,
            ttft_excess=self.ttft.excess,
            ttft_z=self.ttft.z,
            itl_score=self.itl.mean,
            itl_excess=self.itl.excess,
            itl_z=self.itl.z,
            share=share,
            ejections=tuple((out.value, n) for out, n in self.ejections.items()),
            error=self.error.text,
            error_count=self.error.count,
            error_age_s=now - self.error.at if self.error.count else None,
        )
