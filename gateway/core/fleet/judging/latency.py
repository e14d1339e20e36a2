"""Judges the latencies of a pool's replicas against each other (the rules are in judge.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from gateway.core.estimators.severity import CLIP, MAX_Z, MIN_SAMPLES, TYPICAL
from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.judging.terms import PROBES, PROOF, are_enough, places
from gateway.core.fleet.replica import BaseReplica
from gateway.core.pool_spec import Ejection
from gateway.core.snapshot import ReplicaState

MAD_TO_SIGMA: Final = 1.4826
MIN_SIGMA: Final = 0.05
MIN_PEERS: Final = 3
ITL_SHARE: Final = 0.5
"""For ITL, this part of `PROBES` is enough, because short answers have few tokens."""


def judge_latency(
    kind: EjectionReason, replicas: Sequence[BaseReplica], ejection: Ejection, now: float
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
        own = one.replica.health
        if own.out is kind:
            if _mended(one, middle if peers else None, bound, ejection, now):
                back.append(one.replica)
        elif one.is_peer and len(peers) >= MIN_PEERS and one.score.ends(one.samples, bound, now):
            is_slow = one.score.excess > bound and one.score.z > MAX_Z
            one.score.strikes = one.score.strikes + 1 if is_slow else 0
            if are_enough(one.score.strikes, kind, own):
                slow.append(one)
    slow.sort(key=lambda one: one.score.excess, reverse=True)
    for one in slow[: max(0, places(replicas, ejection))]:
        one.replica.health.put_out(kind, f"{one.why(one.score.excess)} (z {one.score.z:.1f})", ejection, now)
    return back


def _mended(one: _Found, middle: float | None, bound: float, ejection: Ejection, now: float) -> bool:
    """Whether the probes show that a replica ejected for slowness has recovered. If its time is up and the latest
    probe was slow, its ejection is extended.

    `middle`: median score of the other replicas, None without any. One good TTFT proves little: a replica that is
    three times as slow sometimes has a probe that is less than twice as slow. So the mean of the last few TTFTs
    must be good, too. An ITL needs no such mean, because it is itself a mean.
    """
    own, score = one.replica.health, one.score
    probes = PROBES if one.kind is EjectionReason.SLOW_TTFT else PROBES * ITL_SHARE
    if score.excess > TYPICAL:
        own.doubted = score.window
    own.proven = score.window - own.doubted
    if one.kind is EjectionReason.SLOW_TTFT and middle is not None:
        own.weigh(score.mean - middle, score.window)
    if now < own.until or one.samples < probes:
        return own.proven >= probes * PROOF * own.count
    was_slow = middle is not None and own.lately > bound
    if score.excess > bound or (was_slow and score.excess > TYPICAL):
        own.put_out(one.kind, one.why(max(score.excess, own.lately)), ejection, now)
        return False
    # If only earlier probes were slow, the replica stays ejected for now. The next probe is sent at once, so good
    # probes soon outweigh them.
    return not was_slow


class _Found:
    """The score of one replica at an outlier check, with overdue requests counted."""

    __slots__ = ("is_peer", "kind", "replica", "samples", "score", "value")

    def __init__(self, replica: BaseReplica, kind: EjectionReason, now: float) -> None:
        own = replica.health
        self.replica = replica
        self.kind = kind
        self.score = own.ttft if kind is EjectionReason.SLOW_TTFT else own.itl
        self.value = self.score.mean
        self.samples = self.score.window
        """Total weight of the samples in the present window, and later the number of overdue requests."""
        if kind is EjectionReason.SLOW_TTFT:
            self._count_overdue(now)
        # In slow start, a replica's load is lower than the loads from which token times were learned.
        fills_up = kind is EjectionReason.SLOW_ITL and replica.share < 1.0
        self.is_peer = (
            own.out is None
            and not fills_up
            and own.state is ReplicaState.UP
            and self.score.seen + self.samples - self.score.window >= MIN_SAMPLES
        )

    def _count_overdue(self, now: float) -> None:
        """Count overdue first tokens as if they came now.

        They will come even later, so the score never becomes too high.
        """
        for prompt in self.replica.reading.values():
            prediction = prompt.prediction
            if prediction is None or prediction.ttft is not self.score or not prompt.visible or not prediction.counts:
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
