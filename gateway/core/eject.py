"""Which replicas are slower than the rest of their pool, or silent: ejected for a while, and tried now and then.

A replica's scores are the mean logarithms of what was seen over what a typical replica of its pool takes for the same
request at the same load: of TTFT, and of the time between tokens. Its own learned speed is left out: it would explain
the straggler away. What was cancelled counts from the moment at which it was overdue, what is open and overdue as if it
came now: else whoever is rescued by a hedge or a timeout hides the replica it was rescued from.

    excess = score - median of the pool        z = excess / (1.4826 MAD + .05)

    a window in which excess > ln 2 and z > 3        a strike; three in a row: out
    nothing heard for max(5 s, 8 p99 of the gap)     out, until something is heard
    its latest canary slow when its time is up       out again, for longer
    and if it is not                                 back, by slow start
    four in a row like the others, before it is up   the same; eight after the second ejection, and so on

A window is two seconds, and longer until it has five samples; what is overdue counts. Two replicas are not judged:
nobody can say which is the odd one. The share that may be out for slowness is capped; who is silent, or has an open
breaker, is counted apart. With less than half of the pool well the slow ones are used all the same (pools.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Final

from gateway.core.estimators import LogHistogram, log_edges
from gateway.core.rules import Ejection
from gateway.core.snapshot import HealthView, ReplicaState

if TYPE_CHECKING:
    from gateway.core.replica import Replica

SWEEP_S: Final = 1.0
"""How often a pool that works is looked at."""
MEMORY: Final = 0.1
"""Weight of a new sample,"""
CLIP: Final = 2.0
"""of which no one counts for more than this (7.4 times): a single one proves nothing."""
WINDOW_S: Final = 1.9
"""Two looks."""
LEAST_SAMPLES: Final = 5.0
STRIKES: Final = 3
MAX_Z: Final = 3.0
MAD_TO_SIGMA: Final = 1.4826
LEAST_SIGMA: Final = 0.05
LEAST_PEERS: Final = 3
TYPICAL: Final = 0.35
"""Excess up to which a replica is like the others: the pool learns from it, else what is slow becomes what is expected;
and its canaries speak for it."""
CANARIES: Final = 2.0
"""Canaries that have to be heard before it is said whether a replica is still slow, each held against the pool;"""
ITL_SHARE: Final = 0.5
"""of their tokens half the weight of so many samples, since short answers have next to none."""
PROOF: Final = 2.0
"""So many times as many that are like the others, in a row and for each time that it was ejected, bring it back before
its time."""
SMALL_SHARE: Final = 0.25
"""Of a pool of up to eight, what may be out for slowness; a larger one may have two."""
GAP_QUANTILE: Final = 0.99
STALL_GAPS: Final = 8.0
GAPS_HALVED_S: Final = 60.0
GAP_EDGES: Final = log_edges(0.01, 600.0, 0.1)


class Out(StrEnum):
    """Why a replica is ejected."""

    SLOW_TTFT = "slow-ttft"
    SLOW_ITL = "slow-itl"
    STALLED = "stalled"


class Score:
    """Mean logarithm of seen over expected; recent samples count most."""

    __slots__ = ("began_at", "excess", "mean", "memory", "seen", "strikes", "window", "z")

    def __init__(self, memory: float = MEMORY) -> None:
        self.memory = memory
        """Weight of a new sample."""
        self.mean = 0.0
        self.seen = 0.0
        """Weight of all samples."""
        self.window = 0.0
        """Weight of those of the window under way,"""
        self.began_at = 0.0
        """which began then."""
        self.strikes = 0
        self.excess = 0.0
        """Over the median of its pool, when that was last looked at."""
        self.z = 0.0

    def add(self, error: float, weight: float = 1.0) -> None:
        """One more sample; `weight` (0-1]."""
        seen = self.seen = self.seen + weight
        self.window += weight
        rate = self.memory
        if seen * rate < 1.0:
            rate = 1.0 / seen
        clipped = CLIP if error > CLIP else -CLIP if error < -CLIP else error
        self.mean += weight * rate * (clipped - self.mean)

    def add_overdue(self, error: float) -> None:
        """One that was called off: it would have been that late at least, which says something if that is worse."""
        if error > self.mean:
            self.add(error)

    @property
    def stands_out(self) -> bool:
        """Whether it is above those of its peers, which are alike."""
        return self.excess > TYPICAL and self.z > MAX_Z

    def ends(self, samples: float, now: float) -> bool:
        """Whether a window ends now, `samples` with what is overdue; then the next one begins."""
        if samples < LEAST_SAMPLES or now - self.began_at < WINDOW_S:
            return False
        self.window, self.began_at = 0.0, now
        return True


class Pulse:
    """What is known of one replica's pace, and whether it is out."""

    __slots__ = (
        "canary_at",
        "count",
        "doubted",
        "ejections",
        "heard_at",
        "itl",
        "longest_s",
        "mends_at",
        "out",
        "out_at",
        "proven",
        "said_at",
        "silent_s",
        "tried_at",
        "ttft",
        "until",
        "why",
    )

    def __init__(self) -> None:
        self.ttft = Score()
        self.itl = Score()
        self.said_at = 0.0
        """When it last said anything,"""
        self.heard_at = 0.0
        """and the same as if the time in which nothing was asked of it had not been."""
        self.silent_s = 0.0
        """How long it had been silent when the last that was asked of it was called off."""
        self.longest_s = 0.0
        """Its longest silence since the last look."""
        self.out: Out | None = None
        self.out_at = 0.0
        self.until = 0.0
        self.canary_at = 0.0
        """From when on it may be tried with one request,"""
        self.tried_at = 0.0
        """and when it was last."""
        self.doubted = 0.0
        """Weight of the canaries that had been heard when it last was not like the others,"""
        self.proven = 0.0
        """and of those since."""
        self.count = 0
        """Times that it was ejected, less what was forgiven since; its time out grows with it."""
        self.mends_at = 0.0
        self.ejections: dict[Out, int] = {}
        self.why = ""
        """Of the latest ejection, for people."""

    @property
    def is_typical(self) -> bool:
        """Whether its pool may learn from it."""
        return self.out is None and not self.ttft.stands_out and not self.itl.stands_out

    def heard(self, now: float) -> None:
        """It said something."""
        gap_s = now - self.heard_at
        if gap_s > self.longest_s:
            self.longest_s = gap_s
        self.heard_at = self.said_at = now

    def asked(self, now: float) -> None:
        """It has something to do again."""
        self.heard_at = now - self.silent_s

    def rests(self, now: float) -> None:
        """It has nothing to do any more. If it is called off in silence, that silence goes on."""
        self.silent_s = now - self.heard_at

    def put_out(self, out: Out, why: str, ejection: Ejection, now: float) -> None:
        """Eject it, for longer each time."""
        self.out, self.out_at = out, now
        self.count += 1
        self.ejections[out] = self.ejections.get(out, 0) + 1
        for_s = min(ejection.max_time_s, ejection.time_s * self.count)
        self.until = now + for_s
        self.canary_at = now + ejection.canary_s
        self.tried_at = now
        self.why = f"{why}, out for {for_s:.0f} s" if out is not Out.STALLED else why
        self.doubted = self.proven = 0.0
        self.ttft, self.itl = Score(1.0), Score(1.0)

    def take_back(self, ejection: Ejection, now: float) -> None:
        """Let it serve again."""
        self.out = None
        self.mends_at = now + ejection.time_s
        self.ttft, self.itl = Score(), Score()
        self.ttft.began_at = self.itl.began_at = now

    def may_be_tried(self, in_flight: int, now: float) -> bool:
        """Whether it is time for a canary, as after one that was like the others, and it is not in there still."""
        is_due = now >= self.canary_at or self.proven > 0.0
        return self.out is not None and is_due and (not in_flight or self.said_at > self.tried_at)

    def try_it(self, ejection: Ejection, now: float) -> None:
        """A canary is sent."""
        self.tried_at = now
        self.canary_at = max(self.canary_at, now - SWEEP_S) + ejection.canary_s

    def mend(self, ejection: Ejection, now: float) -> None:
        """Forgive one ejection for each time it has been well for as long as one lasts."""
        if self.count and now >= self.mends_at:
            self.count -= 1
            self.mends_at = now + ejection.time_s

    def view(self, now: float, share: float) -> HealthView:
        """A copy for people."""
        return HealthView(
            out=None if self.out is None else self.out.value,
            why="" if self.out is None else self.why,
            back_in_s=max(0.0, self.until - now) if self.out in (Out.SLOW_TTFT, Out.SLOW_ITL) else None,
            ttft_score=self.ttft.mean,
            ttft_excess=self.ttft.excess,
            ttft_z=self.ttft.z,
            itl_score=self.itl.mean,
            itl_excess=self.itl.excess,
            itl_z=self.itl.z,
            share=share,
            ejections=tuple((out.value, n) for out, n in self.ejections.items()),
        )


class Watch:
    """Judges the replicas of one pool."""

    def __init__(self) -> None:
        self._gaps = LogHistogram(GAP_EDGES)
        """The longest silence of each replica that worked, of every second."""
        self._halve_at = 0.0

    def look(self, replicas: Sequence[Replica], ejection: Ejection, now: float) -> list[Replica]:
        """Eject, and take back; the latter are what is returned. `replicas`: those that are meant to serve."""
        limit_s = self._patience_s(replicas, ejection, now)
        back = []
        for replica in replicas:
            pulse = replica.pulse
            if pulse.out is Out.STALLED:
                if pulse.said_at > pulse.out_at:
                    back.append(replica)
            elif pulse.out is None:
                pulse.mend(ejection, now)
                silent_s = now - pulse.heard_at
                if replica.is_awaited and silent_s > limit_s and replica.breaker.state is ReplicaState.UP:
                    why = f"nothing heard for {silent_s:.1f} s of {replica.in_flight} requests"
                    pulse.put_out(Out.STALLED, why, ejection, now)
        for kind in (Out.SLOW_TTFT, Out.SLOW_ITL):
            back += self._judge(kind, replicas, ejection, now)
        for replica in back:
            replica.pulse.take_back(ejection, now)
        return back

    def _patience_s(self, replicas: Sequence[Replica], ejection: Ejection, now: float) -> float:
        """How long a replica may be silent while something is asked of it."""
        gaps = self._gaps
        for replica in replicas:
            pulse = replica.pulse
            if pulse.longest_s > 0.0 and pulse.out is None:
                gaps.add(pulse.longest_s)
            pulse.longest_s = 0.0
        if now >= self._halve_at:
            gaps.counts = [count / 2.0 for count in gaps.counts]
            self._halve_at = now + GAPS_HALVED_S
        return max(ejection.stall_s, STALL_GAPS * (gaps.quantile(GAP_QUANTILE) or 0.0))

    def _judge(self, kind: Out, replicas: Sequence[Replica], ejection: Ejection, now: float) -> list[Replica]:
        """Hold all against each other; those whose time is up and who are no longer slow."""
        found = [_Found(replica, kind, now) for replica in replicas]
        peers = [f for f in found if f.is_peer]
        middle = median([peer.value for peer in peers]) if peers else 0.0
        spread = median([abs(peer.value - middle) for peer in peers]) if peers else 0.0
        bound = math.log(ejection.slowdown)
        back, slow = [], []
        for one in found:
            one.score.excess = one.value - middle if peers and one.score.seen > 0.0 else 0.0
            one.score.z = one.score.excess / (MAD_TO_SIGMA * spread + LEAST_SIGMA)
            pulse = one.replica.pulse
            if pulse.out is kind:
                if self._has_mended(one, bound, ejection, now):
                    back.append(one.replica)
            elif one.is_peer and len(peers) >= LEAST_PEERS and one.score.ends(one.samples, now):
                is_slow = one.score.excess > bound and one.score.z > MAX_Z
                one.score.strikes = one.score.strikes + 1 if is_slow else 0
                if one.score.strikes >= STRIKES:
                    slow.append(one)
        places = most_slow(len(replicas), ejection.max_share) - sum(
            1 for replica in replicas if replica.pulse.out in (Out.SLOW_TTFT, Out.SLOW_ITL)
        )
        slow.sort(key=_excess, reverse=True)
        for one in slow[: max(0, places)]:
            one.replica.pulse.put_out(kind, one.why(), ejection, now)
        return back

    def _has_mended(self, one: _Found, bound: float, ejection: Ejection, now: float) -> bool:
        """What the canaries say of one that is out for slowness; if it is slow when its time is up, it is out anew."""
        pulse, score = one.replica.pulse, one.score
        canaries = CANARIES if one.kind is Out.SLOW_TTFT else CANARIES * ITL_SHARE
        if score.excess > TYPICAL:
            pulse.doubted = score.window
        pulse.proven = score.window - pulse.doubted
        if now < pulse.until or one.samples < canaries:
            return pulse.proven >= canaries * PROOF * pulse.count
        if score.excess > bound:
            pulse.put_out(one.kind, one.why(), ejection, now)
            return False
        return True


def most_slow(replicas: int, share: float) -> int:
    """How many of so many replicas may be out for slowness at the same time."""
    return max(1, min(2, int(SMALL_SHARE * replicas)), int(share * replicas))


class _Found:
    """One replica at the moment of a look, with what is overdue there."""

    __slots__ = ("is_peer", "kind", "replica", "samples", "score", "value")

    def __init__(self, replica: Replica, kind: Out, now: float) -> None:
        pulse = replica.pulse
        self.replica = replica
        self.kind = kind
        self.score = pulse.ttft if kind is Out.SLOW_TTFT else pulse.itl
        self.value = self.score.mean
        self.samples = self.score.window
        """Weight of this window so far."""
        if kind is Out.SLOW_TTFT:
            self._count_overdue(now)
        # One that fills up has fewer answers under way than any from which it was learned what a token takes.
        fills_up = kind is Out.SLOW_ITL and replica.share < 1.0
        self.is_peer = (
            pulse.out is None
            and not fills_up
            and replica.breaker.state is ReplicaState.UP
            and self.score.seen + self.samples - self.score.window >= LEAST_SAMPLES
        )

    def _count_overdue(self, now: float) -> None:
        """As if what is overdue came now; it can only come later, so it never makes the score better."""
        for attempt in self.replica.reading.values():
            facts = attempt.facts
            if facts is None or facts.ttft is not self.score or not attempt.live.ask.visible:
                continue
            if now - attempt.opened_at <= facts.expected_s:
                continue
            self.samples += 1.0
            error = math.log((now - attempt.opened_at) / facts.expected_s)
            if error > self.value:
                self.value += self.score.memory * (min(CLIP, error) - self.value)

    def why(self) -> str:
        """For people."""
        what = "time to first token" if self.kind is Out.SLOW_TTFT else "time between tokens"
        return f"{what} {math.exp(self.score.excess):.1f} times that of its pool (z {self.score.z:.1f})"


def _excess(found: _Found) -> float:
    return found.score.excess
