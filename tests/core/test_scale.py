"""The demand of a pool, in replicas' worth of work."""

from __future__ import annotations

import pytest

from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.fleet.autoscale import TICK_S, Demand
from gateway.core.sample import Sample
from gateway.core.snapshot import DemandView
from tests.interpreted import interpreted

from .made import policy, pool, tier
from .playbook import Story as Play
from .playbook import dispatch, play
from .test_admission import spilling
from .test_fallback import rules, told

PROMPT, ANSWER, SLOTS = 1000, 100, 64


class Story:
    """Work that arrives at four replicas, in replicas' worth."""

    def __init__(self) -> None:
        self.demand = Demand()
        self.costs = LatencyModel()
        self.now = 0.0
        self._owed = 0.0

    def runs(self, seconds: float, worth: float) -> Story:
        """This much work arrives per second."""
        end = self.now + seconds
        while self.now < end:
            self._owed += worth / self.request_s() * TICK_S
            while self._owed >= 1.0:
                self._owed -= 1.0
                self.demand.arrived(PROMPT)
                self.demand.ended(True, ANSWER)
            self.now += TICK_S
            self.demand.tick(self.costs, 4.0, 4 * SLOTS, self.now)
        return self

    def request_s(self) -> float:
        """Seconds of a full replica that one request takes."""
        c0, c1, c2, c3 = self.costs.step.coefficients
        return PROMPT * c3 / 1e3 + ANSWER * (c1 / 1e3 + c2 * (PROMPT + ANSWER / 2) / 1e5 + c0 / SLOTS)

    @property
    def view(self) -> DemandView:
        found = self.demand.view()
        assert found is not None
        return found


def test_demand_is_unknown_in_the_first_minute_and_before_a_request_ended() -> None:
    assert Story().runs(50.0, 2.0).demand.view() is None
    assert Story().runs(90.0, 0.0).demand.view() is None


def test_demand_is_the_work_that_arrives_in_replicas() -> None:
    view = Story().runs(90.0, 2.0).view
    assert view.replicas == pytest.approx(2.0, rel=0.1)
    assert view.serving == 4.0
    assert view.prompt_tokens_per_s == pytest.approx(view.requests_per_s * PROMPT)
    assert view.output_tokens_per_s == pytest.approx(view.requests_per_s * ANSWER)


def test_demand_follows_a_change_within_minutes_and_ends_at_none() -> None:
    story = Story().runs(300.0, 2.0)
    assert story.runs(300.0, 3.0).view.replicas == pytest.approx(3.0, rel=0.05)
    view = story.runs(600.0, 0.0).view
    assert 0.0 <= view.replicas < 0.01


def test_refused_requests_count_as_demand() -> None:
    free = tier("free", 2)
    story = play(policy(pool("p", "r1", slots=1, queue_limit=0), free))
    story.arrives("a").arrives("b").whatever()
    (found,) = story.controller.state.fleet
    assert found.demand.requests == 2


# ---- in the controller


def test_observations_of_replicas_set_the_demand_shown_by_the_pool() -> None:
    free = tier("free", 2)
    story = play(policy(pool("p", "r1", "r2", slots=8), free))
    for number in range(40):
        name = f"a{number}"
        story.arrives(name).sent(name).first_token(name).finishes(name).whatever()
        story.after(2.5).observes("r1", Sample(waiting=0, running=0)).whatever()
    demand = story.pool("p").demand
    assert demand is not None
    assert demand.serving == 2.0
    assert demand.requests_per_s == pytest.approx(0.4, rel=0.3)
    assert 0.0 < demand.replicas < 1.0


# ---- requests that another pool serves


def counted(story: Play, name: str) -> int:
    """Arrivals that a pool has counted."""
    found = story.controller.state.fleet.pool(name)
    assert found is not None
    return found.demand.requests


@interpreted
def test_spilled_request_is_demand_of_both_pools() -> None:
    story, _ = spilling(0.0)
    story.arrives("a").expect(dispatch("l1"))
    story.served("a").whatever()
    assert (counted(story, "p"), counted(story, "long")) == (1, 1)


@interpreted
def test_request_served_by_the_fallback_is_demand_of_both_pools() -> None:
    story, _ = told(rules(), large=0.9)
    story.arrives("a").expect(dispatch("s1"))
    story.served("a").whatever()
    assert (counted(story, "large"), counted(story, "small")) == (1, 1)


@interpreted
def test_request_refused_by_the_fallback_too_does_not_count_as_its_demand() -> None:
    story, _ = told(rules(), large=0.9, small=0.9)
    story.arrives("a").whatever()
    assert (counted(story, "large"), counted(story, "small")) == (1, 0)


def test_queued_request_of_a_dead_pool_is_demand_of_the_pool_that_serves_it() -> None:
    story = play(policy(pool("first", "r1"), pool("second", "s1"))).arrives("a").arrives("b").sent("a").first_token("a")
    story.fails("r1").served("b").whatever()
    assert story.records["b"].pool == "second"
    assert (counted(story, "first"), counted(story, "second")) == (2, 1)


def test_retry_at_another_pool_counts_as_demand_of_that_pool() -> None:
    story = play(policy(pool("first", "r1"), pool("second", "s1"))).arrives("a").fails("r1").cancelled("a")
    story.served("a").whatever()
    assert story.records["a"].pool == "second"
    assert (counted(story, "first"), counted(story, "second")) == (1, 1)


@interpreted
def test_demand_of_a_pool_that_serves_only_spilled_requests_agrees_with_littles_law() -> None:
    """One request a second, each in the pool for two seconds: two are in flight."""
    story, _ = spilling(0.0, slots=8)
    for number in range(100):
        story.after(1.0).arrives(str(number)).sent(str(number)).first_token(str(number))
        if number > 1:
            story.finishes(str(number - 2), output_tokens=10)
        story.observes("l1", Sample()).whatever()
    seen = story.pool("long")
    assert seen.demand is not None
    assert seen.in_flight == pytest.approx(2.0 * seen.demand.requests_per_s, rel=0.05)
    assert seen.demand.prompt_tokens_per_s == pytest.approx(100 * seen.demand.requests_per_s)
