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

from gateway.core.estimators.memory import objects_in
from gateway.core.estimators.severity import TYPICAL, Severity
from gateway.core.fleet.health.answers import AnswerCounts, LastError
from gateway.core.fleet.health.evidence import EVIDENCE, EjectionReason, Observation, Says, fails
from gateway.core.fleet.health.silence import Silence
from gateway.core.pool_spec import Ejection, Health
from gateway.core.snapshot import HealthView, ReplicaState

SWEEP_S: Final = 1.0
"""Seconds between two checks for outliers in a pool that has work."""
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

    __hash__ = object.__hash__  # Enum's own is a function in Python

    DEAD = auto()
    FULL = auto()
    """Evidence of death that fills the count."""
    OUTLIER = auto()
    SUCCESS = auto()
    TRY = auto()
    """A check passed, or the replica has been down for `open_s`."""
    MENDED = auto()


_REASONS: Final = frozenset(reason.value for reason in EjectionReason)
_UP: Final = ReplicaState.UP
_DOWN: Final = ReplicaState.DOWN
UNCHECKED: Final = "no health check has passed yet"
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
        "elsewhere",
        "error",
        "itl",
        "lately",
        "out",
        "out_at",
        "probe_at",
        "proven",
        "silence",
        "state",
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
        self.silence = Silence()
        self.out: EjectionReason | None = None
        """Set while it is ejected."""
        self.elsewhere: tuple[str, ...] = ()
        """Reasons for which other gateways have ejected it."""
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

    def memory(self) -> dict[str, object]:
        """Its ejection, and how often it was ejected; empty if never."""
        if not self.count:
            return {}
        out = None if self.out is None else self.out.value
        return {"count": self.count, "out": out, "why": self.why, "until": self.until}

    def recall(self, memory: object, shift_s: float, now: float) -> None:
        """Take over the ejection by a predecessor. Probes are sent at once. `shift_s` is added to its times."""
        match objects_in(memory):
            case {"count": int(count), "out": out, "why": str(why), "until": float(until)}:
                self.count, self.well_at = count, now
                if out in _REASONS:
                    self.state, self.out, self.why = _EJECTED, EjectionReason(out), why
                    self.out_at = self.tried_at = self.probe_at = self._down_at = now
                    self.until = until + shift_s
                    self.ttft, self.itl = Severity(1.0, TYPICAL), Severity(1.0, TYPICAL)

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

    def await_check(self) -> None:
        """Keep requests away until the first check passes, however long that takes."""
        self.state, self._down_at, self.why = _DOWN, math.inf, UNCHECKED

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
        if self._down_at == math.inf:  # no check has passed since `await_check`
            self._down_at = now
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
        self.well_at = now
        self.silence.begin(now)
        self.ttft, self.itl = Severity(), Severity()
        self.ttft.began_at = self.itl.began_at = now
        self.answers, self.suspected = AnswerCounts(now), False

    def may_be_tried(self, in_flight: int, now: float) -> bool:
        """Whether a probe is due and the last probe has been answered. After a good probe, the next probe is due at
        once.
        """
        is_due = now >= self.probe_at or self.proven > 0.0
        return self.out is not None and is_due and (not in_flight or self.silence.said_at > self.tried_at)

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
            ttft_excess=self.ttft.excess,
            itl_excess=self.itl.excess,
            share=share,
            ejections=tuple((out.value, n) for out, n in self.ejections.items()),
            elsewhere=self.elsewhere,
            error=self.error.text,
            error_count=self.error.count,
            error_age_s=now - self.error.at if self.error.count else None,
        )
