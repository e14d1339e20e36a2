"""Outlier detection: replicas that are silent, or slower than their pool, are ejected and then tested with probes.

A replica has two scores, one for TTFT and one for ITL. Each is the mean of log(measured latency / expected latency).
The expected latency is that of the pool's typical replica for the same request and load. The replica's own learned
speed is left out, because it would hide that the replica is slow. A cancelled request counts if it was overdue, and an
overdue request under way counts as if its token came now. Without this rule, hedges and timeouts would hide a slow
replica.

    excess = score - median of the pool        z = excess / (1.4826 MAD + .05)

    excess > ln 2 and z > 3 in a window              a strike; after three in a row the replica is ejected
    silent for max(5 s, 8 x p99 of the gaps)         ejected until it sends something; requests that wait there for a
                                                     first token for over twice the expected time move elsewhere, once
    time is up, and the latest probe was slow        ejected again, for longer
    time is up, latest and mean probe were good      back, by slow start
    time is not up, four good probes in a row        back, by slow start; eight after the second ejection, and so on
    its breaker opens                                ejection and scores are forgotten

"time" is the duration of the ejection.

A window ends when it has lasted two seconds and has five samples, overdue ones included. If the excess is n times ln 2,
an n-th of the samples is enough, but at least two: routing sends few requests to a much slower replica. In a pool of
two, no replica is judged for slowness, because either may be the outlier. Only a share of the pool may be ejected for
slowness or odd answers (odd_answers.py). Silent replicas and open breakers do not count towards this share. If too few
replicas of a pool are healthy (`panic_share`), its slow replicas serve as well (pool.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from gateway.core.fleet.odd_answers import AnswerWatch
from gateway.core.fleet.outlier_score import CAPPED, EjectionReason
from gateway.core.fleet.replica import BaseReplica
from gateway.core.forecast.severity import CLIP, MAX_Z, MIN_SAMPLES, TYPICAL
from gateway.core.policy import Ejection
from gateway.core.snapshot import ReplicaState
from gateway.core.stats import LogHistogram, log_edges

STRIKES: Final = 3
MAD_TO_SIGMA: Final = 1.4826
MIN_SIGMA: Final = 0.05
MIN_PEERS: Final = 3
PROBES: Final = 2.0
"""Total weight of probes needed to decide whether a replica is still slow."""
ITL_SHARE: Final = 0.5
"""For ITL, this part of `PROBES` is enough, because short answers have few tokens."""
PROOF: Final = 2.0
"""To come back early, a replica needs good probes in a row with a weight of `PROBES` x this x its number of
ejections.
"""
SMALL_SHARE: Final = 0.25
"""This share of a pool, but at most two replicas and at least one, may be ejected even if `max_share` allows fewer."""
GAP_QUANTILE: Final = 0.99
STALL_GAPS: Final = 8.0
GAPS_HALVED_S: Final = 60.0
GAP_EDGES: Final = log_edges(0.01, 600.0, 0.1)


class OutlierDetector:
    """Finds the outliers among the replicas of one pool."""

    def __init__(self) -> None:
        self._gaps = LogHistogram(GAP_EDGES)
        """Histogram of silences. Each outlier check adds, for each replica with work, its longest silence since the
        previous one.
        """
        self._halve_at = 0.0
        self.answers = AnswerWatch()

    def check(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> list[BaseReplica]:
        """Eject outliers. Returns the replicas whose ejection ends.

        `replicas`: all replicas of the pool that are not drained.
        """
        limit_s = self._patience_s(replicas, ejection, now)
        back = []
        for replica in replicas:
            outlier_score = replica.outlier_score
            if outlier_score.out is EjectionReason.STALLED:
                if outlier_score.said_at > outlier_score.out_at:
                    back.append(replica)
            elif outlier_score.out is None:
                outlier_score.mend(ejection, now)
                silent_s = now - outlier_score.heard_at
                if replica.is_awaited and silent_s > limit_s and replica.breaker.state is ReplicaState.UP:
                    why = f"nothing heard for {silent_s:.1f} s of {replica.in_flight} requests"
                    outlier_score.put_out(EjectionReason.STALLED, why, ejection, now)
        for kind in (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL):
            back += self._judge(kind, replicas, ejection, now)
        back += self.answers.check(replicas, ejection, _places(replicas, ejection), now)
        for replica in back:
            replica.outlier_score.take_back(now)
        return back

    def _patience_s(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> float:
        """Longest allowed silence of a replica that has work, in seconds."""
        gaps = self._gaps
        for replica in replicas:
            outlier_score = replica.outlier_score
            if outlier_score.longest_s > 0.0 and outlier_score.out is None:
                gaps.add(outlier_score.longest_s)
            outlier_score.longest_s = 0.0
        if now >= self._halve_at:
            gaps.counts = [count / 2.0 for count in gaps.counts]
            self._halve_at = now + GAPS_HALVED_S
        return max(ejection.stall_s, STALL_GAPS * (gaps.quantile(GAP_QUANTILE) or 0.0))

    def _judge(
        self, kind: EjectionReason, replicas: Sequence[BaseReplica], ejection: Ejection, now: float
    ) -> list[BaseReplica]:
        """Compare the replicas by one score, and eject the slow ones. Returns the ejected replicas that have
        recovered.
        """
        found = [_Found(replica, kind, now) for replica in replicas]
        peers = [f for f in found if f.is_peer]
        middle = median([peer.value for peer in peers]) if peers else 0.0
        spread = median([abs(peer.value - middle) for peer in peers]) if peers else 0.0
        bound = math.log(ejection.slowdown)
        back, slow = [], []
        for one in found:
            one.score.excess = one.value - middle if peers and one.score.seen > 0.0 else 0.0
            one.score.z = one.score.excess / (MAD_TO_SIGMA * spread + MIN_SIGMA)
            outlier_score = one.replica.outlier_score
            if outlier_score.out is kind:
                if self._has_mended(one, middle if peers else None, bound, ejection, now):
                    back.append(one.replica)
            elif one.is_peer and len(peers) >= MIN_PEERS and one.score.ends(one.samples, bound, now):
                is_slow = one.score.excess > bound and one.score.z > MAX_Z
                one.score.strikes = one.score.strikes + 1 if is_slow else 0
                if one.score.strikes >= STRIKES:
                    slow.append(one)
        places = _places(replicas, ejection)
        slow.sort(key=_excess, reverse=True)
        for one in slow[: max(0, places)]:
            one.replica.outlier_score.put_out(kind, f"{one.why(one.score.excess)} (z {one.score.z:.1f})", ejection, now)
        return back

    def _has_mended(self, one: _Found, middle: float | None, bound: float, ejection: Ejection, now: float) -> bool:
        """Whether the probes show that a replica ejected for slowness has recovered. If its time is up and the latest
        probe was slow, its ejection is extended.

        `middle`: median score of the other replicas, None without any. One good TTFT proves little: a replica that is
        three times as slow sometimes has a probe that is less than twice as slow. So the mean of the last few TTFTs
        must be good, too. An ITL needs no such mean, because it is itself a mean.
        """
        outlier_score, score = one.replica.outlier_score, one.score
        probes = PROBES if one.kind is EjectionReason.SLOW_TTFT else PROBES * ITL_SHARE
        if score.excess > TYPICAL:
            outlier_score.doubted = score.window
        outlier_score.proven = score.window - outlier_score.doubted
        if one.kind is EjectionReason.SLOW_TTFT and middle is not None:
            outlier_score.weigh(score.mean - middle, score.window)
        if now < outlier_score.until or one.samples < probes:
            return outlier_score.proven >= probes * PROOF * outlier_score.count
        was_slow = middle is not None and outlier_score.lately > bound
        if score.excess > bound or (was_slow and score.excess > TYPICAL):
            outlier_score.put_out(one.kind, one.why(max(score.excess, outlier_score.lately)), ejection, now)
            return False
        # If only earlier probes were slow, the replica stays ejected for now. The next probe is sent at once, so good
        # probes soon outweigh them.
        return not was_slow


def _places(replicas: Sequence[BaseReplica], ejection: Ejection) -> int:
    """Number of further replicas that may be ejected for slowness or odd answers."""
    return most_slow(len(replicas), ejection.max_share) - sum(1 for r in replicas if r.outlier_score.out in CAPPED)


def most_slow(replicas: int, share: float) -> int:
    """How many of `replicas` may be ejected for slowness or odd answers at the same time. `share`: the policy's
    `max_share`.
    """
    return max(1, min(2, int(SMALL_SHARE * replicas)), int(share * replicas))


class _Found:
    """The score of one replica at an outlier check, with overdue requests counted."""

    __slots__ = ("is_peer", "kind", "replica", "samples", "score", "value")

    def __init__(self, replica: BaseReplica, kind: EjectionReason, now: float) -> None:
        outlier_score = replica.outlier_score
        self.replica = replica
        self.kind = kind
        self.score = outlier_score.ttft if kind is EjectionReason.SLOW_TTFT else outlier_score.itl
        self.value = self.score.mean
        self.samples = self.score.window
        """Total weight of the samples in the present window, and later the number of overdue requests."""
        if kind is EjectionReason.SLOW_TTFT:
            self._count_overdue(now)
        # In slow start, a replica's load is lower than the loads from which token times were learned.
        fills_up = kind is EjectionReason.SLOW_ITL and replica.share < 1.0
        self.is_peer = (
            outlier_score.out is None
            and not fills_up
            and replica.breaker.state is ReplicaState.UP
            and self.score.seen + self.samples - self.score.window >= MIN_SAMPLES
        )

    def _count_overdue(self, now: float) -> None:
        """Count overdue first tokens as if they came now.

        They will come even later, so the score never becomes too high.
        """
        for prompt in self.replica.reading.values():
            prediction = prompt.prediction
            if prediction is None or prediction.ttft is not self.score or not prompt.visible:
                continue
            if now - prompt.opened_at <= prediction.expected_s:
                continue
            error = math.log((now - prompt.opened_at) / prediction.expected_s)
            if error <= self.score.least:
                continue
            self.samples += 1.0
            if error > self.value:
                self.value += self.score.memory * (min(CLIP, error) - self.value)

    def why(self, excess: float) -> str:
        """The reason of an ejection, in words. `excess`: log-ratio to the pool."""
        what = "time to first token" if self.kind is EjectionReason.SLOW_TTFT else "time between tokens"
        return f"{what} {math.exp(excess):.1f} times that of its pool"


def _excess(found: _Found) -> float:
    return found.score.excess
