"""Detects replicas that give odd answers: refusals (4xx), empty and unreadable answers that no client caused.

Odd answers that clients cause are spread evenly over all replicas. A broken replica has a larger share of them. An
example is a replica without the model. It refuses every request at once with 404, so it looks idle and gets more
requests. So a replica's share of odd answers is compared with that of the other replicas of its pool:

    z = (share - rest's) / sqrt(p (1 - p) (1 / answers + 1 / rest's answers))        p: share of the pool

    share > rest's + .3 and z > 3, over about ten seconds   suspected: gets one request of ten
    share > rest's + .3 and z > 3 in a window               a strike; after three in a row it is ejected (outliers.py)
    the ejection is over and its probes no longer differ    back, by slow start
    four useful probes in a row for each ejection so far    back, by slow start, even before the ejection is over

A request that gets 403 or 404 from a replica that refuses more than the others is tried elsewhere
(redundancy/retries.py). A window ends when it has lasted two seconds and has five answers. If all replicas give odd
answers alike, or if there is only one replica, none is ejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gateway.core.fleet.outlier_score import EjectionReason
from gateway.core.fleet.replica import BaseReplica
from gateway.core.forecast.severity import MAX_Z, MIN_SAMPLES, WINDOW_S
from gateway.core.policy import Ejection
from gateway.core.request import AttemptOutcome, AttemptResult

MIN_EXCESS: Final = 0.3
"""A replica differs if its share (0-1) of odd answers exceeds that of the others by more than this."""
STRIKES: Final = 3
PROBES: Final = 2
PROOF: Final = 4


def is_odd(finish: AttemptResult) -> bool:
    """Whether an attempt was refused by the replica (4xx), or its answer was empty or unreadable."""
    return finish.end is AttemptOutcome.REJECTED or finish.end is AttemptOutcome.UNREADABLE or finish.empty


class AnswerWatch:
    """Counts and compares the odd answers of one pool's replicas."""

    def __init__(self) -> None:
        self._seen = 0.0
        """Number of answers of all replicas that are not ejected; it fades."""
        self._odd = 0.0
        """Number of odd answers among `_seen`."""
        self.suspects = False
        """Whether any replica is suspected. Between calls of `check` it may stay True too long, but it is never wrongly
        False.
        """

    def add(self, replica: BaseReplica, odd: bool) -> None:
        """Count an answer of `replica`."""
        replica.outlier_score.answers.add(odd)
        if replica.outlier_score.out is None:
            self._seen += 1.0
            if odd:
                self._odd += 1.0
                self._suspect(replica)

    def differs(self, replica: BaseReplica) -> bool:
        """Whether `replica` itself may be the cause of its odd answers, because the others give fewer or have not
        answered yet.
        """
        answers = replica.outlier_score.answers
        seen, odd = self._rest(replica)
        return answers.share > MIN_EXCESS + (odd / seen if seen >= 1.0 else 0.0)

    def fade(self, replicas: Sequence[BaseReplica]) -> None:
        """Forget part of the counts. Called before each `check`, with all replicas of the pool."""
        self._seen = self._odd = 0.0
        self.suspects = any(replica.outlier_score.suspected for replica in replicas)
        for replica in replicas:
            if replica.outlier_score.out is None:
                answers = replica.outlier_score.answers
                answers.fade()
                self._seen += answers.seen
                self._odd += answers.odd

    def check(self, replicas: Sequence[BaseReplica], ejection: Ejection, places: int, now: float) -> list[BaseReplica]:
        """Mark suspected replicas, and eject at most `places` of them.

        Returns the ejected replicas that answer like the others again.
        """
        back: list[BaseReplica] = []
        found: list[BaseReplica] = []
        for replica in replicas:
            outlier_score = replica.outlier_score
            answers = outlier_score.answers
            seen, odd = self._rest(replica)
            if outlier_score.out is EjectionReason.ODD_ANSWERS:
                if _has_mended(replica, odd / seen if seen >= 1.0 else 1.0, ejection, now):
                    back.append(replica)
            elif outlier_score.out is None:
                self._suspect(replica)
                if answers.window >= MIN_SAMPLES and now - answers.began_at >= WINDOW_S:
                    struck = _stands_out(answers.window_odd, answers.window, odd, seen)
                    answers.strikes = answers.strikes + 1 if struck else 0
                    answers.begin(now)
                    if answers.strikes >= STRIKES:
                        found.append(replica)
        found.sort(key=_share, reverse=True)
        for replica in found[: max(0, places)]:
            seen, odd = self._rest(replica)
            why = (
                f"{_share(replica):.0%} of its answers are refused, empty or unreadable, {odd / seen:.0%} of its pool's"
            )
            replica.outlier_score.put_out(EjectionReason.ODD_ANSWERS, why, ejection, now)
        return back

    def _suspect(self, replica: BaseReplica) -> None:
        answers = replica.outlier_score.answers
        seen, odd = self._rest(replica)
        replica.outlier_score.suspected = _stands_out(answers.odd, answers.seen, odd, seen)
        self.suspects = self.suspects or replica.outlier_score.suspected

    def _rest(self, replica: BaseReplica) -> tuple[float, float]:
        """(number of answers, number of odd answers) of all other replicas that are not ejected."""
        if replica.outlier_score.out is not None:
            return self._seen, self._odd
        answers = replica.outlier_score.answers
        return max(0.0, self._seen - answers.seen), max(0.0, self._odd - answers.odd)


def _has_mended(replica: BaseReplica, rest: float, ejection: Ejection, now: float) -> bool:
    """Whether an ejected replica answers its probes as the others answer requests. `rest`: share (0-1) of odd answers
    of the others.
    """
    outlier_score = replica.outlier_score
    answers = outlier_score.answers
    outlier_score.proven = float(answers.useful)
    if now < outlier_score.until or answers.seen < PROBES:
        return answers.useful >= PROBES * PROOF // 2 * outlier_score.count
    if answers.useful < PROBES and answers.share > rest + MIN_EXCESS:
        why = f"{answers.share:.0%} of the requests that tried it are refused, empty or unreadable"
        outlier_score.put_out(EjectionReason.ODD_ANSWERS, why, ejection, now)
        return False
    return True


def _stands_out(odd: float, seen: float, rest_odd: float, rest_seen: float) -> bool:
    if seen < MIN_SAMPLES or rest_seen < MIN_SAMPLES:
        return False
    excess = odd / seen - rest_odd / rest_seen
    p = (odd + rest_odd + 1.0) / (seen + rest_seen + 2.0)
    sigma = math.sqrt(p * (1.0 - p) * (1.0 / seen + 1.0 / rest_seen))
    return excess > MIN_EXCESS and excess > MAX_Z * sigma


def _share(replica: BaseReplica) -> float:
    return replica.outlier_score.answers.share
