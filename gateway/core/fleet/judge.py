"""The judge of one pool: compares its replicas, and ejects those that are slow, silent, odd or failing.

A replica is dead or alive by itself (health.py). Latencies, and failures that a request may have caused, are compared
with the pool: where all are alike, or there is one, nobody is ejected.

Latency. A score is the mean of log(measured / expected), one for TTFT and one for ITL. The expected latency is that of
the pool's typical replica for the same request and load. The replica's own learned speed is left out, because it would
hide that the replica is slow. A cancelled request counts if it was overdue, and an overdue request under way counts as
if its token came now. Without this rule, hedges and timeouts would hide a slow replica.

    excess = score - median of the pool        z = excess / (1.4826 MAD + .05)

Answers. Refusals (4xx), empty and failed ones that clients cause are spread evenly over all replicas. A broken replica
has a larger share of them, and attracts requests, because it answers at once.

    z = (share - rest's) / sqrt(p (1 - p) (1 / answers + 1 / rest's answers))        p: share of the pool

    latency: excess > ln 2 and z > 3 in a window            a strike; after three in a row slow-ttft or slow-itl
    answers: share > rest's + .3 and z > 3                  suspected: gets one request of ten
    the same in a window                                    a strike; after three in a row odd-answers
    `failures` or more fail in a row, which has a chance    failing, if they are of two bodies and two tenants
        below that of z > 3 at the rest's share meanwhile
    silent for max(5 s, 8 x p99 of the gaps)                stalled, until it sends something; requests that wait there
                                                            for over twice the expected time move elsewhere, once
    time is up, and the latest probe was bad                ejected again, for longer
    time is up, latest and mean probe were good             back, by slow start
    time is not up, four good probes in a row               back, by slow start; eight after the second ejection, ...

Two tenants, so that nobody takes replicas from others; one is enough where no other tenant came for five minutes.

Silence is that of streams, or of the engine's own count of tokens. An unstreamed answer shows nothing until it is
complete, so its silence is no evidence. Nor is silence while a prompt is being read, up to twice the expected time.

A window ends when it has lasted two seconds and has five samples, overdue ones included. If the excess is n times ln 2,
an n-th of the samples is enough, but at least two: routing sends few requests to a much slower replica. In a pool of
two, no replica is judged for slowness, because either may be the outlier. Only a share of the pool may be ejected for
slowness or odd answers. Silent, failing and dead ones do not count towards it: they serve nobody. If too few replicas
of a pool are healthy (`panic_share`), its slow replicas serve as well (pool.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from gateway.core.estimators.histograms import LogHistogram, log_edges
from gateway.core.estimators.severity import CLIP, MAX_Z, MIN_SAMPLES, TYPICAL, WINDOW_S
from gateway.core.fleet.evidence import EVIDENCE, EjectionReason, Observation, fails
from gateway.core.fleet.health import CAPPED
from gateway.core.fleet.replica import BaseReplica
from gateway.core.policy import Ejection, Health
from gateway.core.request import Request
from gateway.core.snapshot import ReplicaState

STRIKES: Final = 3
MAD_TO_SIGMA: Final = 1.4826
MIN_SIGMA: Final = 0.05
MIN_PEERS: Final = 3
PROBES: Final = 2.0
"""Total weight, or number, of probes needed to decide whether a replica is still an outlier."""
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
MIN_EXCESS: Final = 0.3
"""A replica differs if its share (0-1) of odd answers exceeds that of the others by more than this."""
MAX_CHANCE: Final = 0.5 * math.erfc(MAX_Z / math.sqrt(2.0))
"""Chance (0-1) of a deviation of more than `MAX_Z` spreads, for failures in a row as for shares."""
ALONE_S: Final = 300.0
"""A tenant is the only one if no other had an answer for this long, as long as quarantine remembers a body."""
MAX_DOUBTED: Final = 1024
"""Beyond this many tenants and bodies the oldest is forgotten, as in quarantine."""
LATE_FACTOR: Final = 2.0
"""A first token is far too late after this multiple of its expected time."""


class Judge:
    """Judges the replicas of one pool."""

    def __init__(self) -> None:
        self._gaps = LogHistogram(GAP_EDGES)
        """Histogram of silences. Each outlier check adds, for each replica with work, its longest silence since the
        previous one.
        """
        self._halve_at = 0.0
        self._seen = self._odd = 0.0
        """Numbers of answers and of odd ones of all replicas that are not ejected; they fade."""
        self._all = self._all_odd = 0
        """The same since the start."""
        self._shares, self._answering = 0.0, 0
        """Sum of their shares of odd answers, and the number of these replicas that answered lately."""
        self.suspects = False
        """Whether any replica is suspected. Between calls of `check` it may stay True too long, but it is never wrongly
        False.
        """
        self._tenant, self._other_at = "", -math.inf
        """The tenant of the latest answer, and the time of the latest answer of any other."""
        self._tenant_at = -math.inf
        self.doubted: dict[str | int | None, None] = {}
        """Tenants whose latest answer failed, and bodies that failed, while a replica has failed or is out."""

    # ---- answers

    def answered(
        self, replica: BaseReplica, seen: Observation, tenant: str, body: int | None, health: Health, now: float
    ) -> None:
        """Count an answer of `replica`, and eject it if it fails alone."""
        own = replica.health
        if tenant != self._tenant:
            self._tenant, self._other_at = tenant, self._tenant_at
        self._tenant_at = now
        answers = own.answers
        share, answered = answers.share, answers.seen >= 1.0
        answers.add(seen, tenant, body)
        odd = answers.useful == 0
        if odd and fails(seen):
            self.doubted[tenant] = None
            if body is not None:
                self.doubted[body] = None
            if len(self.doubted) > MAX_DOUBTED:
                del self.doubted[next(iter(self.doubted))]
        elif not odd and self.doubted:
            self.doubted.pop(tenant, None)
            self.doubted.pop(body, None)
        if own.out is not None:
            return
        self._seen += 1.0
        self._all += 1
        self._shares += answers.share - (share if answered else 0.0)
        self._answering += not answered
        if not odd:
            return
        self._odd += 1.0
        self._all_odd += 1
        self._suspect(replica)
        if answers.streak == 1 and fails(seen):
            answers.rest, answers.rest_odd = self._all - answers.all, self._all_odd - answers.all_odd
        if own.state is ReplicaState.UP and health.ejection is not None:
            self._judge_streak(replica, health.failures, health.ejection, now)

    def _judge_streak(self, replica: BaseReplica, failures: int, ejection: Ejection, now: float) -> None:
        """Eject `replica` if its failures in a row show that it is broken, and not the requests."""
        answers = replica.health.answers
        if answers.streak < failures or len(answers.bodies) < 2 or not self._is_general(answers.failed_by, now):
            return
        seen = self._all - answers.all - answers.rest
        odd = self._all_odd - answers.all_odd - answers.rest_odd
        # Jeffreys' estimate of the share at the others since then: after no answers it is a half
        if ((odd + 0.5) / (seen + 1.0)) ** answers.streak < MAX_CHANCE:
            why = (
                f"{replica.health.error}: it failed {answers.streak} times in a row, its pool {odd} of {seen} meanwhile"
            )
            replica.health.put_out(EjectionReason.FAILING, why, ejection, now)

    def _is_general(self, tenants: set[str], now: float) -> bool:
        """Whether answers of these tenants are not those of one tenant among several."""
        return len(tenants) > 1 or (self._tenant in tenants and self._other_at < now - ALONE_S)

    def doubts(self, request: Request) -> bool:
        """Whether the body or the tenant of a request failed lately, so that another one is the better probe."""
        doubted = self.doubted
        return bool(doubted) and (request.tenant in doubted or request.body_hash in doubted)

    def differs(self, replica: BaseReplica) -> bool:
        """Whether `replica` itself may be the cause of its odd answers, because the others give fewer or have not
        answered yet.
        """
        return replica.health.answers.share > MIN_EXCESS + self._rest_share(replica)

    def is_its_own(self, replica: BaseReplica) -> bool:
        """Whether the odd answers that `replica` gave since its last useful one are too many for requests to cause.

        Each of the others counts alike: a replica that answers oddly at once attracts requests. Before any of them has
        answered, half of the requests may be bad.
        """
        answers = replica.health.answers
        counts = replica.health.out is None and answers.seen >= 1.0
        others, shares = self._answering - counts, self._shares - (answers.share if counts else 0.0)
        return (shares / others if others else 0.5) ** answers.odd_streak < MAX_CHANCE

    def fade(self, replicas: Sequence[BaseReplica]) -> None:
        """Forget part of the counts. Called before each `check`, with all replicas of the pool."""
        self._seen = self._odd = self._shares = 0.0
        self._answering = 0
        self.suspects = any(replica.health.suspected for replica in replicas)
        for replica in replicas:
            if replica.health.out is None:
                answers = replica.health.answers
                answers.fade()
                self._seen += answers.seen
                self._odd += answers.odd
                if answers.seen >= 1.0:
                    self._shares += answers.share
                    self._answering += 1
        if self.doubted and all(r.health.state is ReplicaState.UP and not r.health.failures for r in replicas):
            self.doubted.clear()

    def _suspect(self, replica: BaseReplica) -> None:
        own = replica.health
        own.suspected = _stands_out(own.answers.odd, own.answers.seen, *self._rest(replica))
        self.suspects = self.suspects or own.suspected

    def _rest(self, replica: BaseReplica) -> tuple[float, float]:
        """(number of answers, number of odd answers) of all other replicas that are not ejected."""
        if replica.health.out is not None:
            return self._seen, self._odd
        answers = replica.health.answers
        return max(0.0, self._seen - answers.seen), max(0.0, self._odd - answers.odd)

    def _rest_share(self, replica: BaseReplica, otherwise: float = 0.0) -> float:
        """Share (0-1) of odd answers of the others; `otherwise` without any answers."""
        seen, odd = self._rest(replica)
        return odd / seen if seen >= 1.0 else otherwise

    # ---- all

    def check(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> list[BaseReplica]:
        """Eject outliers. Returns the replicas whose ejection ends.

        `replicas`: all replicas of the pool that are not drained.
        """
        limit_s = self._patience_s(replicas, ejection, now)
        back = []
        for replica in replicas:
            own = replica.health
            if own.out is EjectionReason.STALLED:
                if own.said_at > own.out_at:
                    back.append(replica)
            elif own.out is None:
                own.mend(ejection, now)
                silent, silent_s = replica.silence(now)
                out = EVIDENCE[silent].out
                if out is not None and silent_s > limit_s and not _is_reading(replica, now):
                    why = f"{silent}: nothing for {silent_s:.1f} s of {replica.in_flight} requests"
                    own.put_out(out, why, ejection, now)
        for kind in (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL):
            back += self._judge_latency(kind, replicas, ejection, now)
        back += self._judge_answers(replicas, ejection, now)
        for replica in back:
            replica.health.take_back(now)
        return back

    def _patience_s(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> float:
        """Longest allowed silence of a replica that has work, in seconds."""
        gaps = self._gaps
        for replica in replicas:
            own = replica.health
            if own.longest_s > 0.0 and own.out is None:
                gaps.add(own.longest_s)
            own.longest_s = 0.0
        if now >= self._halve_at:
            gaps.counts = [count / 2.0 for count in gaps.counts]
            self._halve_at = now + GAPS_HALVED_S
        return max(ejection.stall_s, STALL_GAPS * (gaps.quantile(GAP_QUANTILE) or 0.0))

    def _judge_answers(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> list[BaseReplica]:
        """Mark replicas that are suspected of odd answers, and eject them. Returns the ejected ones that answer like
        the others again.
        """
        back, found = [], []
        for replica in replicas:
            own = replica.health
            answers = own.answers
            if own.out is EjectionReason.ODD_ANSWERS or own.out is EjectionReason.FAILING:
                if self._answers_mended(replica, own.out, ejection, now):
                    back.append(replica)
            elif own.out is None:
                self._suspect(replica)
                if answers.window >= MIN_SAMPLES and now - answers.began_at >= WINDOW_S:
                    struck = _stands_out(answers.window_odd, answers.window, *self._rest(replica))
                    answers.begin(struck, now)
                    if answers.strikes >= STRIKES and self._is_general(answers.odd_by, now):
                        found.append(replica)
        found.sort(key=_odd_share, reverse=True)
        for replica in found[: max(0, _places(replicas, ejection))]:
            share, rest = _odd_share(replica), self._rest_share(replica)
            why = f"{share:.0%} of its answers are refused, empty, unreadable or failed, {rest:.0%} of its pool's"
            replica.health.put_out(EjectionReason.ODD_ANSWERS, why, ejection, now)
        return back

    def _answers_mended(self, replica: BaseReplica, out: EjectionReason, ejection: Ejection, now: float) -> bool:
        """Whether an ejected replica answers its probes as the others answer requests."""
        own = replica.health
        answers = own.answers
        own.proven = float(answers.useful)
        if now < own.until or answers.seen < PROBES:
            return answers.useful >= PROBES * PROOF * own.count
        if answers.useful < PROBES and answers.share > self._rest_share(replica, 1.0) + MIN_EXCESS:
            why = f"{answers.share:.0%} of the requests that tried it are refused, empty, unreadable or failed"
            own.put_out(out, why, ejection, now)
            return False
        return True

    def _judge_latency(
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
            own = one.replica.health
            if own.out is kind:
                if self._latency_mended(one, middle if peers else None, bound, ejection, now):
                    back.append(one.replica)
            elif one.is_peer and len(peers) >= MIN_PEERS and one.score.ends(one.samples, bound, now):
                is_slow = one.score.excess > bound and one.score.z > MAX_Z
                one.score.strikes = one.score.strikes + 1 if is_slow else 0
                if one.score.strikes >= STRIKES:
                    slow.append(one)
        slow.sort(key=_excess, reverse=True)
        for one in slow[: max(0, _places(replicas, ejection))]:
            one.replica.health.put_out(kind, f"{one.why(one.score.excess)} (z {one.score.z:.1f})", ejection, now)
        return back

    def _latency_mended(self, one: _Found, middle: float | None, bound: float, ejection: Ejection, now: float) -> bool:
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


def _is_reading(replica: BaseReplica, now: float) -> bool:
    """Whether the engine is expected to read prompts still, none for longer than `LATE_FACTOR` times as expected."""
    return bool(replica.reading) and all(
        prompt.prediction is not None and now - prompt.opened_at <= LATE_FACTOR * prompt.prediction.expected_s
        for prompt in replica.reading.values()
    )


def _stands_out(odd: float, seen: float, rest_seen: float, rest_odd: float) -> bool:
    if seen < MIN_SAMPLES or rest_seen < MIN_SAMPLES:
        return False
    excess = odd / seen - rest_odd / rest_seen
    p = (odd + rest_odd + 1.0) / (seen + rest_seen + 2.0)
    sigma = math.sqrt(p * (1.0 - p) * (1.0 / seen + 1.0 / rest_seen))
    return excess > MIN_EXCESS and excess > MAX_Z * sigma


def _odd_share(replica: BaseReplica) -> float:
    return replica.health.answers.share


def _places(replicas: Sequence[BaseReplica], ejection: Ejection) -> int:
    """Number of further replicas that may be ejected for slowness or odd answers."""
    return most_slow(len(replicas), ejection.max_share) - sum(1 for r in replicas if r.health.out in CAPPED)


def most_slow(replicas: int, share: float) -> int:
    """How many of `replicas` may be ejected for slowness or odd answers at the same time. `share`: the policy's
    `max_share`.
    """
    return max(1, min(2, int(SMALL_SHARE * replicas)), int(share * replicas))


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


def _excess(found: _Found) -> float:
    return found.score.excess
