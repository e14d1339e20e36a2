"""A forecaster with scripted forecasts, which records the outcomes that it is told."""

from __future__ import annotations

from typing import Any

from gateway.core.fleet.pool import Replica
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionMode, AdmissionSpec, Caps
from gateway.core.prediction import Ahead, Forecast
from gateway.core.request_state import RequestState
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import Trust

from .made import policy, pool, tier
from .playbook import Story, dispatch, play

SLO = Slo(ttft=(Objective(0.99, 1.0),))
ENFORCE = AdmissionSpec(AdmissionMode.ENFORCE, max_breach_probability=0.5, exploration=0.0)
STRICT = tier("std", slo=SLO, admission=ENFORCE)


class Oracle:
    """Returns P(breach) by pool, or by replica if one is named."""

    def __init__(self, story: Story, **breach: float) -> None:
        self.breach = breach
        self.trusted = True
        self.e2e = False
        self.ttft_s = 0.5
        self.asked: list[tuple[str, str | None]] = []
        forecaster: Any = story.controller.forecaster
        forecaster.forecast = self.forecast
        forecaster.trust = self.trust
        forecaster.judged = self.judged
        forecaster.dropped = self.dropped
        self.labels: list[tuple[object, ...]] = []
        """The labels that were given: whether a request missed its objectives, or that this will never be known."""

    def forecast(self, offer: Offer, replica: Replica | None, ahead: Ahead, now: float) -> Forecast:
        at = offer.pool
        self.asked.append((at.spec.name, None if replica is None else replica.spec.name))
        breach = self.breach[at.spec.name]
        if replica is not None:
            breach = self.breach.get(replica.spec.name, breach)
        if self.e2e:
            breach = 0.1 if offer.max_tokens * 0.1 <= offer.slo.e2e_bound_s else 0.9
        return made_forecast(breach, at.spec.name, now, self.ttft_s)

    def judged(self, state: RequestState, breached: bool) -> None:
        """Do nothing: nobody learns from an oracle."""
        self.labels.append(("judged", state.request.id, breached))

    def dropped(self, state: RequestState) -> None:
        """Likewise."""
        self.labels.append(("dropped", state.request.id))

    def trust(self, name: str) -> Trust:
        return Trust.TRUSTED if self.trusted else Trust.COLD


def made_forecast(breach: float, pool_name: str, now: float, ttft_s: float = 0.5) -> Forecast:
    """A forecast with these times."""
    made = Forecast(pool_name, now, 0.0, ttft_s, 0.1, 5.0)
    made.breach = breach
    return made


def story_of(
    *parts: Any, breach: dict[str, float] | None = None, draws: tuple[float, ...] = (0.5,)
) -> tuple[Story, Oracle]:
    story = play(policy(*parts), *draws)
    return story, Oracle(story, **(breach or {"p": 0.0}))


def late(story: Story) -> Story:
    """A request waits behind another until little time is left."""
    return story.arrives("running").arrives("a").expect(dispatch("r1", of="running")).at(0.4)


def degrading(*, allowed: bool = True) -> tuple[Story, Oracle]:
    caps = Caps(max_tokens_default=100, max_tokens_limit=1000, degrade=allowed)
    slo = Slo(e2e=(Objective(0.99, 10.0),))
    story, oracle = story_of(pool("p", "r1"), tier("std", slo=slo, admission=ENFORCE, caps=caps))
    oracle.e2e = True
    return story, oracle
