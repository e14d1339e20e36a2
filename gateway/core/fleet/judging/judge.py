"""The judge of one pool: compares its replicas, and ejects those that are slow, silent, odd or failing.

A replica is dead or alive by itself (replica_health.py). Latencies, and failures that a request may have caused, are
compared within the pool: if all replicas are alike, or there is only one, nobody is ejected. latency.py and
answer_judge.py beside this file compare them; silence is judged here.

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

One strike is enough where another gateway has ejected the replica for the same reason.

Two tenants, so that nobody takes replicas from others; one is enough where no other tenant came for five minutes.

Silence is that of streams, or of the engine's own count of tokens. An unstreamed answer shows nothing until it is
complete, so its silence is no evidence. Nor is silence while a prompt is being read, up to twice the expected time.

A window ends when it has lasted two seconds and has five samples, overdue ones included. If the excess is n times ln 2,
an n-th of the samples is enough, but at least two: routing sends few requests to a much slower replica. In a pool of
two, no replica is judged for slowness, because either may be the outlier. Only a share of the pool may be ejected for
slowness or odd answers. Silent, failing and dead ones do not count towards it: they serve nobody. If too few replicas
of a pool are healthy (`panic_share`), its slow replicas serve as well (bounds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.estimators.histograms import LogHistogram, log_edges
from gateway.core.fleet.health.evidence import EVIDENCE, EjectionReason
from gateway.core.fleet.judging.answer_judge import AnswerJudge
from gateway.core.fleet.judging.latency import judge_latency
from gateway.core.fleet.replica import BaseReplica
from gateway.core.pool_spec import Ejection

GAP_QUANTILE: Final = 0.99
STALL_GAPS: Final = 8.0
GAPS_HALVED_S: Final = 60.0
GAP_EDGES: Final = log_edges(0.01, 600.0, 0.1)
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
        self.answers = AnswerJudge()

    def check(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> list[BaseReplica]:
        """Eject outliers. Returns the replicas whose ejection ends.

        `replicas`: all replicas of the pool that are not drained.
        """
        limit_s = self._patience_s(replicas, ejection, now)
        back = []
        for replica in replicas:
            own = replica.health
            if own.out is EjectionReason.STALLED:
                if own.silence.said_at > own.out_at:
                    back.append(replica)
            elif own.out is None:
                own.mend(ejection, now)
                silent, silent_s = own.silence.of(replica.streams, replica.in_flight, now)
                out = EVIDENCE[silent].out
                if out is not None and silent_s > limit_s and not _is_reading(replica, now):
                    why = f"{silent}: nothing for {silent_s:.1f} s of {replica.in_flight} requests"
                    own.put_out(out, why, ejection, now)
        for kind in (EjectionReason.SLOW_TTFT, EjectionReason.SLOW_ITL):
            back += judge_latency(kind, replicas, ejection, now)
        back += self.answers.check(replicas, ejection, now)
        for replica in back:
            replica.health.take_back(now)
        return back

    def _patience_s(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> float:
        """Longest allowed silence of a replica that has work, in seconds."""
        gaps = self._gaps
        for replica in replicas:
            own = replica.health
            if own.silence.longest_s > 0.0 and own.out is None:
                gaps.add(own.silence.longest_s)
            own.silence.longest_s = 0.0
        if now >= self._halve_at:
            gaps.counts = [count / 2.0 for count in gaps.counts]
            self._halve_at = now + GAPS_HALVED_S
        return max(ejection.stall_s, STALL_GAPS * (gaps.quantile(GAP_QUANTILE) or 0.0))


def _is_reading(replica: BaseReplica, now: float) -> bool:
    """Whether the engine is expected to read prompts still, none for longer than `LATE_FACTOR` times as expected."""
    return bool(replica.reading) and all(
        prompt.prediction is not None and now - prompt.opened_at <= LATE_FACTOR * prompt.prediction.expected_s
        for prompt in replica.reading.values()
    )
