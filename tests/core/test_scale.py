"""Wanted replicas of a pool: the effects of demand, the learned knee, and the hysteresis."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.fleet.autoscale import (
    BEYOND,
    FALL,
    HOLD_S,
    KNEE,
    LEAD_S,
    MIN_ENDED,
    MIN_KNEE,
    TICK_S,
    WINDOW_S,
    Demand,
    KneeEstimate,
    Trend,
)
from gateway.core.sample import Sample
from gateway.core.snapshot import ScaleView
from tests.interpreted import interpreted

from .made import policy, pool, tier
from .playbook import Story as Play
from .playbook import dispatch, play
from .test_admission import spilling
from .test_fallback import rules, told

PROMPT, ANSWER, SLOTS = 1000, 100, 64


class Story:
    """Demand, in replicas' worth of work, and the serving replicas."""

    def __init__(self, serving: float = 4.0) -> None:
        self.demand = Demand()
        self.costs = LatencyModel()
        self.serving = serving
        self.now = 0.0
        self._owed = 0.0

    def runs(self, seconds: float, worth: Callable[[float], float] | float, missed: float = 0.0) -> Story:
        """This much work arrives, by time from now; the share `missed` of the requests is not good."""
        begin, end = self.now, self.now + seconds
        each_s = self.request_s()
        while self.now < end:
            rate = (worth(self.now - begin) if callable(worth) else worth) / each_s
            self._owed += rate * TICK_S
            while self._owed >= 1.0:
                self._owed -= 1.0
                self.demand.arrived(PROMPT)
                number = self.demand.requests
                self.demand.ended(True, not missed or number % round(1 / missed) != 0, ANSWER)
            self.now += TICK_S
            self.demand.tick(self.costs, self.serving, round(SLOTS * self.serving), self.now)
        return self

    def request_s(self) -> float:
        """Seconds of a full replica that one request takes."""
        c0, c1, c2, c3 = self.costs.step.coefficients
        return PROMPT * c3 / 1e3 + ANSWER * (c1 / 1e3 + c2 * (PROMPT + ANSWER / 2) / 1e5 + c0 / SLOTS)

    @property
    def view(self) -> ScaleView:
        found = self.demand.view(self.now)
        assert found is not None
        return found

    @property
    def wanted(self) -> int:
        return self.view.wanted


# ---- demand


def test_demand_forecast_is_never_negative_after_the_load_ends() -> None:
    story = Story().runs(300.0, 2.0)
    for _ in range(40):
        view = story.runs(30.0, 0.0).view
        assert min(view.demand, view.requests_per_s, view.prompt_tokens_per_s, view.output_tokens_per_s) >= 0.0
        assert "-" not in view.why


def test_no_replica_count_is_wanted_before_enough_is_known() -> None:
    assert Demand().view(0.0) is None
    assert Story().runs(30.0, 2.0).demand.view(30.0) is None


def test_wanted_replicas_are_predicted_demand_over_the_knee() -> None:
    story = Story(serving=8.0).runs(90.0, 2.0)
    view = story.view
    assert view.demand == pytest.approx(2.0, rel=0.1)
    assert view.worth == pytest.approx(view.predicted / view.knee)
    assert view.wanted == math.ceil(view.worth)
    assert view.prompt_tokens_per_s == pytest.approx(view.requests_per_s * PROMPT)
    assert view.output_tokens_per_s == pytest.approx(view.requests_per_s * ANSWER)


def test_refused_requests_count_as_demand() -> None:
    free = tier("free", 2)
    story = play(policy(pool("p", "r1", slots=1, queue_limit=0), free))
    story.arrives("a").arrives("b").whatever()
    (found,) = story.controller.state.fleet
    assert found.demand.requests == 2


def test_growing_demand_is_met_ahead_of_time() -> None:
    story = Story(serving=8.0).runs(900.0, lambda t: 1.0 + t / 450.0)
    view = story.view
    assert view.predicted == pytest.approx(3.0 + LEAD_S / 450.0, rel=0.1)
    assert view.predicted > view.demand


def test_falling_trend_never_forecasts_a_negative_rate() -> None:
    trend = Trend()
    for step in range(200):
        trend.add(max(0.0, 100.0 - step), 5.0)
    assert trend.ahead(1e6) == 0.0


def test_trend_level_is_never_negative_as_the_rate_falls_to_zero() -> None:
    trend = Trend()
    for step in range(200):
        trend.add(max(0.0, 100.0 - step), 5.0)
        assert trend.level >= 0.0


def test_the_trend_of_a_steady_rate_of_demand_is_flat() -> None:
    trend = Trend()
    for _ in range(100):
        trend.add(7.0, 5.0)
    assert trend.level == pytest.approx(7.0)
    assert trend.slope == pytest.approx(0.0, abs=1e-9)


# ---- up fast, down slowly


def test_wanted_replicas_rise_at_once_to_at_most_twice_the_serving() -> None:
    story = Story(serving=2.0).runs(120.0, 0.5)
    before = story.wanted
    story.runs(60.0, 6.0)
    assert before <= 2
    assert story.wanted == 4
    story.serving = 4.0
    story.runs(TICK_S, 6.0)
    assert story.wanted == 8


@pytest.mark.parametrize("left", [2.0, 0.0])
def test_dead_replicas_do_not_lower_the_wanted_count(left: float) -> None:
    story = Story(serving=10.0).runs(600.0, 6.0)
    wanted = story.wanted
    story.serving = left
    story.runs(3.0 * HOLD_S, 6.0, missed=0.5)
    assert story.wanted >= min(wanted, math.ceil(6.0 / KNEE))


def test_wanted_replicas_fall_after_the_hold_to_the_most_wanted_meanwhile() -> None:
    story = Story(serving=8.0).runs(600.0, 3.0)
    high = story.wanted
    story.runs(HOLD_S - 60.0, 0.5)
    assert story.wanted == high
    assert "stay for" in story.view.why
    story.runs(120.0 + HOLD_S, 0.5)
    assert 1 <= story.wanted < high
    story.runs(3 * HOLD_S, 0.0)
    assert story.wanted == 1


def test_noise_does_not_change_the_wanted_count() -> None:
    story = Story(serving=4.0).runs(900.0, 1.3)
    story.demand.knee.rise = 0.0
    seen = set()
    for number in range(120):
        story.runs(15.0, 1.3 * (1.15 if number % 2 else 0.85))
        seen.add(story.wanted)
    assert len(seen) == 1


def test_short_lull_does_not_change_the_wanted_count() -> None:
    story = Story(serving=8.0).runs(600.0, 3.0)
    before = story.wanted
    story.runs(120.0, 0.0)
    assert story.wanted == before


# ---- the knee


def window(knee: KneeEstimate, demand: float, missed: int, at: float, ended: int = 1000) -> float:
    knee.ended, knee.missed = ended, missed
    knee.passed(demand * WINDOW_S, WINDOW_S, at)
    return knee.value


@pytest.fixture
def knee() -> KneeEstimate:
    found = KneeEstimate()
    found.passed(0.0, 0.0, 0.0)
    return found


def test_knee_rises_after_a_window_near_it_without_misses(knee: KneeEstimate) -> None:
    assert window(knee, KNEE, 0, WINDOW_S) > KNEE


def test_knee_never_rises_far_beyond_the_carried_load(knee: KneeEstimate) -> None:
    for number in range(1, 100):
        window(knee, 0.7, 0, number * WINDOW_S)
    assert knee.value == pytest.approx(0.7 * BEYOND)
    assert window(knee, 0.1, 0, 100 * WINDOW_S) == pytest.approx(0.7 * BEYOND)


def test_misses_at_the_knee_lower_it_and_slow_its_rise(knee: KneeEstimate) -> None:
    rise = knee.rise
    assert window(knee, 0.8 * KNEE, 100, WINDOW_S) == pytest.approx(0.8 * KNEE * (1 - FALL))
    assert knee.rise < rise


def test_knee_falls_once_for_the_same_misses(knee: KneeEstimate) -> None:
    fallen = window(knee, KNEE, 100, WINDOW_S)
    assert window(knee, KNEE, 100, 2 * WINDOW_S) == fallen
    assert window(knee, KNEE, 100, WINDOW_S + LEAD_S) < fallen


def test_misses_far_below_the_knee_do_not_lower_it(knee: KneeEstimate) -> None:
    assert window(knee, 0.2 * KNEE, 500, WINDOW_S) == KNEE


def test_few_requests_do_not_change_the_knee(knee: KneeEstimate) -> None:
    assert window(knee, 1.0, 3, WINDOW_S, ended=MIN_ENDED) == KNEE
    assert window(knee, 1.0, 40, 2 * WINDOW_S, ended=MIN_ENDED - 1) == KNEE  # the window goes on
    assert knee.ended == MIN_ENDED - 1


def test_the_knee_of_the_autoscaler_never_falls_below_its_minimum(knee: KneeEstimate) -> None:
    for number in range(1, 400):
        window(knee, knee.value, 1000, number * LEAD_S)
    assert knee.value == MIN_KNEE


# ---- in the controller


def test_observations_of_replicas_set_the_scale_shown_by_the_pool() -> None:
    free = tier("free", 2)
    story = play(policy(pool("p", "r1", "r2", slots=8), free))
    for number in range(40):
        name = f"a{number}"
        story.arrives(name).sent(name).first_token(name).finishes(name).whatever()
        story.after(2.5).observes("r1", Sample(waiting=0, running=0)).whatever()
    scale = story.pool("p").scale
    assert scale is not None
    assert scale.wanted == 1
    assert scale.serving == 2.0
    assert scale.requests_per_s == pytest.approx(0.4, rel=0.3)
    assert "replicas' worth of work arrives" in scale.why


# ---- requests that another pool serves


def counted(story: Play, name: str) -> tuple[int, int, int]:
    """Arrivals, ends and misses that a pool has counted."""
    found = story.controller.state.fleet.pool(name)
    assert found is not None
    return found.demand.requests, found.demand.knee.ended, found.demand.knee.missed


@interpreted
def test_spilled_request_is_demand_of_both_pools_and_a_miss_of_the_first() -> None:
    story, _ = spilling(0.0)
    story.arrives("a").expect(dispatch("l1"))
    story.served("a").whatever()
    assert (counted(story, "p"), counted(story, "long")) == ((1, 1, 1), (1, 1, 0))


@interpreted
def test_request_served_by_the_fallback_is_demand_of_both_pools_and_a_miss_of_the_first() -> None:
    story, _ = told(rules(), large=0.9)
    story.arrives("a").expect(dispatch("s1"))
    story.served("a").whatever()
    assert (counted(story, "large"), counted(story, "small")) == ((1, 1, 1), (1, 1, 0))


@interpreted
def test_request_refused_by_the_fallback_too_does_not_count_as_its_demand() -> None:
    story, _ = told(rules(), large=0.9, small=0.9)
    story.arrives("a").whatever()
    assert (counted(story, "large"), counted(story, "small")) == ((1, 1, 1), (0, 0, 0))


def test_queued_request_of_a_dead_pool_is_demand_of_the_pool_that_serves_it() -> None:
    story = play(policy(pool("first", "r1"), pool("second", "s1"))).arrives("a").arrives("b").sent("a").first_token("a")
    story.fails("r1").served("b").whatever()
    assert story.records["b"].pool == "second"
    assert (counted(story, "first"), counted(story, "second")) == ((2, 0, 0), (1, 1, 0))


def test_retry_at_another_pool_counts_as_demand_of_that_pool() -> None:
    story = play(policy(pool("first", "r1"), pool("second", "s1"))).arrives("a").fails("r1").cancelled("a")
    story.served("a").whatever()
    assert story.records["a"].pool == "second"
    assert (counted(story, "first"), counted(story, "second")) == ((1, 0, 0), (1, 1, 0))


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
    assert seen.scale is not None
    assert seen.in_flight == pytest.approx(2.0 * seen.scale.requests_per_s, rel=0.05)
    assert seen.scale.prompt_tokens_per_s == pytest.approx(100 * seen.scale.requests_per_s)
