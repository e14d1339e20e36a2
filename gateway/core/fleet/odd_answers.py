"""Detection of replicas with odd answers: refusals, empty and unreadable answers that no client caused.

Odd answers that clients cause are spread over all replicas. A broken replica alone has many of its own. A replica
without the model refuses every request at once with 404, and so looks idle. So the share of odd answers of a replica
(4xx, empty or unreadable) is compared with that of the others in its pool:

    z = (share - rest's) / sqrt(p (1 - p) (1 / answers + 1 / rest's answers))        p: share of all

    of the last seconds, share > rest's + .3 and z > 3      suspected: gets one request of ten
    the same of a window                                    a strike; three in a row: ejected (outliers.py)
    its probes no longer differ when its time is up       back, by slow start
    four useful ones in a row for each ejection             the same, before it is up

A 403 or 404 of a replica that refuses more than the others is tried elsewhere (redundancy/retries.py). A window lasts
two seconds, or until it has five answers. If all replicas behave like this, or there is only one, none is ejected.
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
"""A replica differs if its share of odd answers exceeds the others' by this."""
STRIKES: Final = 3
PROBES: Final = 2
PROOF: Final = 4


def is_odd(finish: AttemptResult) -> bool:
    """Whether an attempt was refused, or its answer was useless to its client."""
    return finish.end is AttemptOutcome.REJECTED or finish.end is AttemptOutcome.UNREADABLE or finish.empty


class AnswerWatch:
    """Compares the answers of one pool's replicas."""

    def __init__(self) -> None:
        self._seen = 0.0
        """Answers of all replicas that are not ejected."""
        self._odd = 0.0
        """Odd answers among them."""
        self.suspects = False
        """Whether any replica may be suspected. It is exact after each look, and never wrongly False."""

    def add(self, replica: BaseReplica, odd: bool) -> None:
        """Count an answer of `replica`."""
        replica.outlier_score.answers.add(odd)
        if replica.outlier_score.out is None:
            self._seen += 1.0
            if odd:
                self._odd += 1.0
                self._suspect(replica)

    def differs(self, replica: BaseReplica) -> bool:
        """Whether `replica` may have caused its own odd answers: the others have fewer, or are unknown yet."""
        answers = replica.outlier_score.answers
        seen, odd = self._rest(replica)
        return answers.share > MIN_EXCESS + (odd / seen if seen >= 1.0 else 0.0)

    def fade(self, replicas: Sequence[BaseReplica]) -> None:
        """Forget part of the counts; called at each look, with all replicas."""
        self._seen = self._odd = 0.0
        self.suspects = any(replica.outlier_score.suspected for replica in replicas)
        for replica in replicas:
            if replica.outlier_score.out is None:
                answers = replica.outlier_score.answers
                answers.fade()
                self._seen += answers.seen
                self._odd += answers.odd

    def look(self, replicas: Sequence[BaseReplica], ejection: Ejection, places: int, now: float) -> list[BaseReplica]:
        """Suspect replicas, and eject up to `places`.

        Returns the ejected replicas whose answers are like the others' again.
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
        """Answers of all other replicas that are not ejected, and the odd ones among them."""
        if replica.outlier_score.out is not None:
            return self._seen, self._odd
        answers = replica.outlier_score.answers
        return max(0.0, self._seen - answers.seen), max(0.0, self._odd - answers.odd)


def _has_mended(replica: BaseReplica, rest: float, ejection: Ejection, now: float) -> bool:
    """Whether an ejected replica's probes answer like the others, whose share of odd answers is `rest`."""
    outlier_score = replica.outlier_score
    answers = outlier_score.answers
    outlier_score.proven = float(answers.useful)
    if now < outlier_score.until or answers.seen < PROBES:
        return answers.useful >= PROBES * PROOF // 2 * outlier_score.count
    if answers.useful < PROBES and answers.share > rest + MIN_EXCESS:
        why = f"{answers.share:.0%} of its probes are refused, empty or unreadable"
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
