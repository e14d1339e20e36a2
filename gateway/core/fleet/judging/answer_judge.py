"""Judges the answers of a pool's replicas against each other (the rules are in judge.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gateway.core.estimators.severity import MAX_Z, MIN_SAMPLES, WINDOW_S
from gateway.core.fleet.health.evidence import EjectionReason, Observation, fails
from gateway.core.fleet.judging.terms import PROBES, PROOF, are_enough, places
from gateway.core.fleet.replica import BaseReplica
from gateway.core.pool_spec import Ejection, Health
from gateway.core.request import Request
from gateway.core.snapshot import ReplicaState

MIN_EXCESS: Final = 0.3
"""A replica differs if its share (0-1) of odd answers exceeds that of the others by more than this."""
MAX_CHANCE: Final = 0.5 * math.erfc(MAX_Z / math.sqrt(2.0))
"""Chance (0-1) of a deviation of more than `MAX_Z` spreads, for failures in a row as for shares."""
ALONE_S: Final = 300.0
"""A tenant is the only one if no other had an answer for this long, as long as quarantine remembers a body."""
MAX_DOUBTED: Final = 1024
"""Beyond this many tenants and bodies the oldest is forgotten, as in quarantine."""


class AnswerJudge:
    """Counts the answers of one pool, suspects replicas that answer oddly, and ejects them."""

    def __init__(self) -> None:
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
        """Whether these tenants are several, or the only one of late: then the replica is to blame."""
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

    def check(self, replicas: Sequence[BaseReplica], ejection: Ejection, now: float) -> list[BaseReplica]:
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
                    enough = are_enough(answers.strikes, EjectionReason.ODD_ANSWERS, own)
                    if enough and self._is_general(answers.odd_by, now):
                        found.append(replica)
        found.sort(key=_odd_share, reverse=True)
        for replica in found[: max(0, places(replicas, ejection))]:
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


def _stands_out(odd: float, seen: float, rest_seen: float, rest_odd: float) -> bool:
    if seen < MIN_SAMPLES or rest_seen < MIN_SAMPLES:
        return False
    excess = odd / seen - rest_odd / rest_seen
    p = (odd + rest_odd + 1.0) / (seen + rest_seen + 2.0)
    sigma = math.sqrt(p * (1.0 - p) * (1.0 / seen + 1.0 / rest_seen))
    return excess > MIN_EXCESS and excess > MAX_Z * sigma


def _odd_share(replica: BaseReplica) -> float:
    return replica.health.answers.share
