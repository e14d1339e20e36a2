"""The rules of admission, in the order in which they are asked. The first that decides on a request, decides.

A request is doubtful if its forecast probability of missing an objective is above its tier's threshold, or if it would
break a percentile of its tier (estimators/ttft_judge.py). While the pool is cold, breach probabilities make no
request doubtful. Then the limits of slots and queue decide, and a queued request is refused at its turn if too little
time is left for a first token.

Rules only read. The scheduler carries their decisions out later (scheduling/scheduler.py).
"""

from __future__ import annotations

import math
from typing import Final

from gateway.core.admission.outlook import Outlook
from gateway.core.admission.patience import Patience
from gateway.core.admission.promises import Doubt
from gateway.core.admission.room import is_within_share, place
from gateway.core.decision import Decision, RuleName, Verdict
from gateway.core.fleet.fleet import Fleet
from gateway.core.fleet.pool import Replica
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode
from gateway.core.prediction import NO_CHECKS, Forecast
from gateway.core.request import Random
from gateway.core.results import Reason

LOOKED_AT: Final = 4
"""At most this many replicas with a free slot, least loaded first, are tried before a request is shed."""
PROBE_EVERY_S: Final = 1.0
"""If a tier admitted no request for this long, its next doubtful request is admitted."""
SPILL_HEADROOM: Final = 0.3
"""A pool takes requests that another pool would shed only if this share of its slots is free."""
SPILL_BREACH: Final = 0.05
"""Largest P(breach) at which a pool takes a request that another pool would shed."""
DEGRADE_MARGIN: Final = 0.8
"""A degraded answer is capped to fill this share of the time left."""
MIN_DEGRADED_TOKENS: Final = 16
"""A request is not degraded if its answer would be capped below this many tokens."""


class Case:
    """One request while it is decided on. `replica`: where it could be sent now; None if it would have to wait."""

    def __init__(
        self,
        offer: Offer,
        replica: Replica | None,
        outlook: Outlook,
        patience: Patience,
        fleet: Fleet,
        random: Random,
        now: float,
    ) -> None:
        self.offer = offer
        self.replica = replica
        self.outlook = outlook
        self.patience = patience
        self.fleet = fleet
        self.random = random
        self.now = now
        self._forecast: Forecast | None = None
        self._doubt: Doubt | None = None
        self.runner_up: tuple[str, Forecast] | None = None
        """The first other replica that was forecast."""

    @property
    def forecast(self) -> Forecast:
        """The forecast at `replica`, or in the queue."""
        if self._forecast is None:
            self._forecast = self.outlook.forecast(self.offer, self.replica, self.now)
        return self._forecast

    @property
    def doubt(self) -> Doubt:
        """The doubt about the request, by its forecast."""
        if self._doubt is None:
            self._doubt = self.outlook.doubt(self.offer, self.forecast)
        return self._doubt

    def send(self, rule: RuleName, replica: Replica, forecast: Forecast, late: list[float] = NO_CHECKS) -> Decision:
        """Send the request to another replica than the router's choice."""
        offer = self.offer if replica.pool is self.offer.pool else self.offer.at(replica.pool)
        return Decision(Verdict.SEND, rule, offer, replica, forecast, late)

    def admit(
        self, rule: RuleName, forecast: Forecast | None, late: list[float] = NO_CHECKS, offer: Offer | None = None
    ) -> Decision:
        """Send the request if a replica is free. Otherwise queue it, or shed it if the queue is full."""
        offer = offer or self.offer
        if self.replica is not None:
            return Decision(Verdict.SEND, rule, offer, self.replica, forecast, late)
        takes, victims, detail = place(offer)
        verdict = Verdict.WAIT if takes else Verdict.SHED
        return Decision(verdict, rule, offer, None, forecast, late, victims, detail=detail)


class AdmissionRule:
    """A rule: what it is called, what it says of a request that it decides on, and the decision."""

    rule = RuleName.IN_TIME
    says = ""

    def decide(self, case: Case) -> Decision | None:
        """The decision on a request; None leaves it to the next rule."""
        raise NotImplementedError


class OwnCache(AdmissionRule):
    """A request waits for the busy replica that has its prompt cached, if it will still be in time."""

    rule = RuleName.OWN_CACHE
    says = "the replica with its prompt in the cache is busy"

    def decide(self, case: Case) -> Decision | None:
        offer, now = case.offer, case.now
        if case.replica is None or not case.patience.waits_for_own(offer, case.replica, now):
            return None
        takes, victims, _ = place(offer)
        if not takes or victims:
            return None
        forecast = case.outlook.forecast(offer, None, now)
        doubt = case.outlook.doubt(offer, forecast)
        if doubt.is_doubtful:
            return None
        return Decision(Verdict.WAIT, self.rule, offer, None, forecast if offer.slo.bounded else None, doubt.late)


class NoObjective(AdmissionRule):
    """Without an objective, or with admission switched off, only limits of slots and queue decide."""

    rule = RuleName.NO_OBJECTIVE
    says = "no objective of its tier is enforced"

    def decide(self, case: Case) -> Decision | None:
        if case.offer.slo.bounded and case.offer.request.tier.admission.mode is not AdmissionMode.OFF:
            return None
        return case.admit(self.rule, None)


class InTime(AdmissionRule):
    """A request that is not doubtful takes a slot, or waits for one."""

    rule = RuleName.IN_TIME
    says = "P(breach) is within the threshold, and no constraint of the tier would break"

    def decide(self, case: Case) -> Decision | None:
        return None if case.doubt.is_doubtful else case.admit(self.rule, case.forecast, case.doubt.late)


class FasterReplica(AdmissionRule):
    """Another replica at which the request is not doubtful. Routers ignore how fast replicas are, so the choice may be
    a slow one.
    """

    rule = RuleName.FASTER_REPLICA
    says = "the router's choice would be too slow, and this replica is faster"

    def decide(self, case: Case) -> Decision | None:
        offer, pool = case.offer, case.offer.pool
        if case.replica is None or pool.is_pinned(offer.request):
            return None
        for replica in pool.candidates(offer.request)[:LOOKED_AT]:
            if replica is case.replica or not pool.contexts.fits(offer.needs_tokens, replica):
                continue
            forecast = case.outlook.forecast(offer, replica, case.now)
            doubt = case.outlook.doubt(offer, forecast)
            if not doubt.is_doubtful:
                case.runner_up = case.replica.spec.name, case.forecast
                return case.send(self.rule, replica, forecast, doubt.late)
            if case.runner_up is None:
                case.runner_up = replica.spec.name, forecast
        return None


class OwedShare(AdmissionRule):
    """A doubtful request is admitted for its share. It overtakes queued requests with a later latest start, so its
    forecast is made again without them.
    """

    def owed(self, case: Case) -> Decision:
        """Admit the request."""
        forecast, late = case.forecast, case.doubt.late
        if forecast.wait_s > 0.0:
            start_by = case.offer.deadline - forecast.engine_s(case.offer.request.body_at)
            forecast, late = case.outlook.forecast(case.offer, None, case.now, start_by), NO_CHECKS
        return case.admit(self.rule, forecast, late)


class TenantShare(OwedShare):
    """The tenant is within its share while others of its tier are not, and the request is likely to be in time."""

    rule = RuleName.TENANT_SHARE
    says = "it is doubtful, but its tenant is within its share while others are not"

    def decide(self, case: Case) -> Decision | None:
        offer, outlook = case.offer, case.outlook
        is_timely = case.forecast.breach <= offer.max_breach or not outlook.trusted(offer.pool)
        return self.owed(case) if is_timely and is_within_share(offer, case.now) else None


class LengthShare(OwedShare):
    """Too few requests with prompts of similar length were admitted lately (admission/fairness.py)."""

    rule = RuleName.LENGTH_SHARE
    says = "it is doubtful, but too few prompts of its length were admitted"

    def decide(self, case: Case) -> Decision | None:
        return self.owed(case) if case.outlook.is_length_owed(case.offer, case.now) else None


class Shadow(AdmissionRule):
    """The admission mode of the tier is `shadow`: the refusal is only counted."""

    rule = RuleName.SHADOW
    says = "the tier is in shadow, so it is only counted"

    def decide(self, case: Case) -> Decision | None:
        if case.offer.request.tier.admission.mode is not AdmissionMode.SHADOW:
            return None
        return case.admit(self.rule, case.forecast, case.doubt.late)


class Exploration(AdmissionRule):
    """A few doubtful requests are admitted: only admitted requests show whether the forecast was right."""

    rule = RuleName.EXPLORATION
    says = "it is doubtful, but a few such requests of each tier are admitted to learn from"

    def decide(self, case: Case) -> Decision | None:
        tier = case.offer.request.tier
        if tier.admission.exploration <= 0.0:
            return None
        idle_s = case.now - case.offer.pool.queue.admitted_at(tier)
        if idle_s < PROBE_EVERY_S and case.random.random() >= tier.admission.exploration:
            return None
        return case.admit(self.rule, case.forecast, case.doubt.late)


class Spill(AdmissionRule):
    """A replica of another pool whose `spill_from` names this one, if that pool has room to spare."""

    rule = RuleName.SPILL
    says = "its own pool would refuse it, and this pool has room to spare"

    def decide(self, case: Case) -> Decision | None:
        offer, request = case.offer, case.offer.request
        if offer.pool.is_pinned(request):
            return None
        for spec in request.policy.route(request.model, request.tier):
            if offer.pool.spec.name not in spec.spill_from or not spec.takes(offer.prompt_tokens, request.batch):
                continue
            other = case.fleet.pool(spec.name)
            if other is None or other.queue or other.headroom < SPILL_HEADROOM or not case.outlook.trusted(other):
                continue
            replica = other.pick(request, offer.needs_tokens, case.random.random())
            if replica is None:
                continue
            forecast = case.outlook.forecast(offer.at(other), replica, case.now)
            if forecast.breach < SPILL_BREACH:
                return case.send(self.rule, replica, forecast)
        return None


class ShorterAnswer(AdmissionRule):
    """The answer is capped so that it is complete in time, if the tier allows that.

    With several choices, a client could not tell which of them were cut short.
    """

    rule = RuleName.SHORTER_ANSWER
    says = "only a shorter answer is in time"

    def decide(self, case: Case) -> Decision | None:
        offer, forecast = case.offer, case.forecast
        bound_s, request = offer.slo.e2e_bound_s, offer.request
        if not request.tier.caps.degrade or bound_s == math.inf or request.choices > 1:
            return None
        tokens = int(DEGRADE_MARGIN * (bound_s - forecast.ttft_s) / max(forecast.tpot_s, 1e-6))
        if not MIN_DEGRADED_TOKENS <= tokens < offer.max_tokens:
            return None
        shorter = offer.capped(tokens)
        forecast = case.outlook.forecast(shorter, case.replica, case.now)
        return case.admit(self.rule, forecast, offer=shorter) if forecast.breach <= shorter.max_breach else None


class PredictedBreach(AdmissionRule):
    """All others are refused."""

    rule = RuleName.PREDICTED_BREACH
    says = "an objective would be missed"

    def decide(self, case: Case) -> Decision:
        detail, broken = case.outlook.why(case.offer, case.forecast, case.doubt), case.doubt.broken
        binds = "" if broken is None else broken.name
        why = Reason.PREDICTED
        return Decision(
            Verdict.SHED, self.rule, case.offer, case.replica, case.forecast, why=why, detail=detail, binds=binds
        )


RULES: Final[tuple[AdmissionRule, ...]] = (
    OwnCache(),
    NoObjective(),
    InTime(),
    FasterReplica(),
    TenantShare(),
    LengthShare(),
    Shadow(),
    Exploration(),
    Spill(),
    ShorterAnswer(),
    PredictedBreach(),
)
SAYS: Final = {row.rule: row.says for row in RULES}
"""The sentence of each rule about a request that it decides on."""
