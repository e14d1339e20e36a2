"""Which replicas answer otherwise than their pool: refusals, empty and unreadable answers that no client caused.

What clients cause is spread over all replicas; what one replica causes is not. A replica without the model refuses
everything at once with 404, and looks idle for it. So the share of odd answers of a replica (4xx, nothing in
them, or nothing that can be read) is held against that of the others in its pool:

    z = (share - rest's) / sqrt(p (1 - p) (1 / answers + 1 / rest's answers))        p: share of all

    of the last seconds, share > rest's + .3 and z > 3      suspected: gets one request of ten
    the same of a window                                    a strike; three in a row: ejected (eject.py)
    its canaries no longer differ when its time is up       back, by slow start
    four useful ones in a row for each ejection             the same, before it is up

A 403 or 404 of a replica that refuses more than the others is tried elsewhere (retry.py). A window is two seconds, and
longer until it has five answers. Where all answer so, or there is one replica, nothing is ejected.
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
"""Share of odd answers above that of the others from which a replica is another one."""
STRIKES: Final = 3
CANARIES: Final = 2
PROOF: Final = 4


def is_odd(finish: AttemptResult) -> bool:
    """Whether an attempt was refused, or its answer was of no use to its client."""
    return finish.end is AttemptOutcome.REJECTED or finish.end is AttemptOutcome.UNREADABLE or finish.empty


class AnswerWatch:
    """Holds the answers of one pool's replicas against each other."""

    def __init__(self) -> None:
        self._seen = 0.0
        """Answers of all replicas that are not out."""
        self._odd = 0.0
        """The odd ones among them."""
        self.suspects = False
        """Whether any replica may be suspected: exact at each look, and never False wrongly."""

    def add(self, replica: BaseReplica, odd: bool) -> None:
        """One more answer of `replica`."""
        replica.pulse.answers.add(odd)
        if replica.pulse.out is None:
            self._seen += 1.0
            if odd:
                self._odd += 1.0
                self._suspect(replica)

    def differs(self, replica: BaseReplica) -> bool:
        """Whether an odd answer of `replica` may be its own doing: the others have fewer, or are not known yet."""
        answers = replica.pulse.answers
        seen, odd = self._rest(replica)
        return answers.share > MIN_EXCESS + (odd / seen if seen >= 1.0 else 0.0)

    def fade(self, replicas: Sequence[BaseReplica]) -> None:
        """Forget some; to be called with all replicas once in a while."""
        self._seen = self._odd = 0.0
        self.suspects = any(replica.pulse.suspected for replica in replicas)
        for replica in replicas:
            if replica.pulse.out is None:
                answers = replica.pulse.answers
                answers.fade()
                self._seen += answers.seen
                self._odd += answers.odd

    def look(self, replicas: Sequence[BaseReplica], ejection: Ejection, places: int, now: float) -> list[BaseReplica]:
        """Suspect, and eject up to `places`; those whose time is up and that no longer differ."""
        back: list[BaseReplica] = []
        found: list[BaseReplica] = []
        for replica in replicas:
            pulse = replica.pulse
            answers = pulse.answers
            seen, odd = self._rest(replica)
            if pulse.out is EjectionReason.ODD_ANSWERS:
                if _has_mended(replica, odd / seen if seen >= 1.0 else 1.0, ejection, now):
                    back.append(replica)
            elif pulse.out is None:
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
            replica.pulse.put_out(EjectionReason.ODD_ANSWERS, why, ejection, now)
        return back

    def _suspect(self, replica: BaseReplica) -> None:
        answers = replica.pulse.answers
        seen, odd = self._rest(replica)
        replica.pulse.suspected = _stands_out(answers.odd, answers.seen, odd, seen)
        self.suspects = self.suspects or replica.pulse.suspected

    def _rest(self, replica: BaseReplica) -> tuple[float, float]:
        """Answers of all others that are not out, and the odd ones."""
        if replica.pulse.out is not None:
            return self._seen, self._odd
        answers = replica.pulse.answers
        return max(0.0, self._seen - answers.seen), max(0.0, self._odd - answers.odd)


def _has_mended(replica: BaseReplica, rest: float, ejection: Ejection, now: float) -> bool:
    """Whether the canaries of a replica that is out answer like the others, whose share of odd answers is `rest`."""
    pulse = replica.pulse
    answers = pulse.answers
    pulse.proven = float(answers.useful)
    if now < pulse.until or answers.seen < CANARIES:
        return answers.useful >= CANARIES * PROOF // 2 * pulse.count
    if answers.useful < CANARIES and answers.share > rest + MIN_EXCESS:
        why = f"{answers.share:.0%} of its canaries are refused, empty or unreadable"
        pulse.put_out(EjectionReason.ODD_ANSWERS, why, ejection, now)
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
    return replica.pulse.answers.share
