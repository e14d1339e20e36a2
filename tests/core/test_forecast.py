"""Forecasts of requests, and what they learn from outcomes."""

from __future__ import annotations

import gc
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.latency_model import LatencyModel
from gateway.core.estimators.spread import DIRECT, QUEUED, tpot_kind
from gateway.core.fleet.pool import Pool
from gateway.core.forecast.forecaster import Forecaster
from gateway.core.offer import Offer
from gateway.core.policy import AdmissionSpec
from gateway.core.prediction import NOTHING_AHEAD, Ahead, Forecast
from gateway.core.request import Endpoint
from gateway.core.request_state import Attempt, RequestState, offer_of
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.core.slo import Objective, Slo
from gateway.core.snapshot import Trust
from gateway.sim.engine.profiles import DEFAULT
from tests.core.made import SHADOW, STEADY, a_request, policy, pool, tier
from tests.core.playbook import play

STEP_S = DEFAULT.step_base_s
PROMPT_TOKEN_S = DEFAULT.prefill_s_per_token


def slo(ttft_s: float | None = None, tpot_s: float | None = None, e2e_s: float | None = None) -> Slo:
    """Bounds of the 95th percentile."""
    ttft, tpot, e2e = (() if s is None else (Objective(0.95, s),) for s in (ttft_s, tpot_s, e2e_s))
    return Slo(ttft, tpot, e2e)


class World:
    """One pool of idle engines that take what `DEFAULT` says, one request at a time, and a forecaster that watches."""

    def __init__(
        self, objectives: Slo | None = None, replicas: int = 1, admission: AdmissionSpec | None = None
    ) -> None:
        std = tier("std", slo=objectives or slo(ttft_s=1.0), admission=admission or AdmissionSpec())
        self.policy = policy(pool("main", *(f"r{i}" for i in range(replicas)), slots=64), std)
        self.pool = Pool(self.policy.pools["main"])
        self.forecaster = Forecaster()
        self.now = 100.0
        self.asks = 0
        self.good = True
        """Whether the last request that was served met its objectives."""

    def state(self, prompt: int = 1000, stream: bool = True, max_tokens: int = 4096) -> RequestState:
        self.asks += 1
        made = RequestState(a_request(self.asks, self.policy, self.now, prompt=prompt, stream=stream))
        made.ask(Offer(made.request, self.pool, prompt, prompt, prompt, max_tokens))
        return made

    def forecast(self, state: RequestState, ahead: Ahead | None = None, replica: str = "r0") -> Forecast:
        chosen = self.pool.replicas[replica] if ahead is None else None
        return self.forecaster.forecast(offer_of(state), chosen, ahead or NOTHING_AHEAD, self.now)

    def send(self, state: RequestState, replica: str = "r0") -> Attempt:
        if state.forecast is None:
            state.forecast = self.forecast(state, replica=replica)
        slot = self.pool.acquire(
            self.pool.replicas[replica],
            "std",
            state.prompt_tokens,
            state.prompt_tokens,
            state.visible,
            self.now,
        )
        attempt = Attempt(state.request.id, state, slot)
        state.open.append(attempt)
        self.forecaster.opened(attempt, self.now)
        return attempt

    def first_token(self, attempt: Attempt) -> None:
        attempt.first_at = attempt.state.first_at = self.now
        attempt.slot.prompt_read(self.now)
        self.forecaster.first_token(attempt, self.now)

    def finish(
        self, attempt: Attempt, tokens: int, end: AttemptOutcome = AttemptOutcome.COMPLETE, seen: int = 0
    ) -> None:
        attempt.slot.release(end, attempt.left_tokens(end, self.now), self.now)
        self.forecaster.closed(attempt, AttemptResult(end, output_tokens=tokens, tokens_seen=seen), self.now)

    def serve(self, prompt: int = 1000, tokens: int = 50, slowness: float = 1.0, replica: str = "r0") -> RequestState:
        """Serve a single request from beginning to end."""
        state = self.state(prompt)
        attempt = self.send(state, replica)
        self.now += slowness * (STEP_S + PROMPT_TOKEN_S * prompt)
        self.first_token(attempt)
        tpot_s = slowness * STEP_S
        self.now += tpot_s * (tokens - 1)
        self.finish(attempt, tokens)
        started, first = state.request.body_at, attempt.first_at
        assert first is not None
        self.good = state.request.tier.slo.met(first - started, tpot_s, self.now - started, tokens)
        self.now += 0.05
        return state

    def drain(self, openings: int, every_s: float) -> None:
        """Room for one more request appears in the full pool, `openings` times."""
        for _ in range(openings):
            self.pool.drain.opened(True, self.now)
            self.now += every_s

    def slowness_of_r1(self, slowness: float) -> float:
        """Serve many requests at r0, and as many at r1, which is slower. Returns the learned ratio."""
        for _ in range(150):
            self.serve(replica="r0")
            self.serve(slowness=slowness, replica="r1")
        speeds = dict(self.forecaster.view().speeds)
        return speeds["r1"] / speeds["r0"]

    def rest(self) -> World:
        """Let a minute pass without events."""
        self.now += 60.0
        return self

    def warm(self, requests: int = 200, slowness: float = 1.0) -> World:
        source = random.Random(1)
        for _ in range(requests):
            state = self.serve(source.randrange(100, 4000), source.randrange(20, 200), slowness)
            self.forecaster.judged(state, not self.good)
        return self.rest()

    @property
    def trust(self) -> Trust:
        return self.forecaster.trust("main")


def test_forecasts_decide_once_costs_are_known() -> None:
    assert World().trust is Trust.COLD
    assert World().warm().trust is Trust.TRUSTED


def test_general_slowdown_is_followed_after_an_alarm() -> None:
    world = World().warm(400)
    for _ in range(200):
        world.serve(slowness=2.0)
    assert world.forecaster.view().pools[0].drift_alarms
    assert world.rest().forecast(world.state()).ttft_s == pytest.approx(2 * (STEP_S + 1000 * PROMPT_TOKEN_S), rel=0.2)


def test_a_step_budget_that_keeps_the_tpot_bound_limits_its_p_late() -> None:
    world = World(slo(tpot_s=1.1 * STEP_S)).warm()
    budget = world.pool.replicas["r0"].budget
    budget.add(0, 20_000, 0.0, world.now)  # prompts that lengthen the forecast TPOT
    assert (without := world.forecast(world.state()).breach) > 0.5
    budget.limit_s = 1.05 * STEP_S
    assert world.forecast(world.state()).breach <= 0.05
    budget.limit_s = 0.5 * STEP_S
    assert world.forecast(world.state()).breach == without, "the replica is over its budget"
    budget.limit_s = 1.5 * STEP_S
    assert world.forecast(world.state()).breach == without, "the limit is that of a looser objective"


def test_a_step_budget_that_keeps_the_tpot_bound_also_limits_the_p_late_of_queued_requests() -> None:
    world = World(slo(tpot_s=1.1 * STEP_S)).warm()
    world.pool.prompts.add(world.now, 20_000)  # prompts that lengthen the forecast TPOT
    ahead = Ahead(requests=1, own=1)
    assert world.forecast(world.state(), ahead).breach > 0.5
    world.forecaster.costs(world.pool).queued_limit_s = 1.05 * STEP_S
    assert world.forecast(world.state(), ahead).breach <= 0.05


def test_step_budget_does_not_lower_p_breach_of_a_tier_in_shadow() -> None:
    world = World(slo(tpot_s=1.1 * STEP_S), admission=SHADOW).warm()
    budget = world.pool.replicas["r0"].budget
    budget.add(0, 20_000, 0.0, world.now)
    budget.limit_s = 1.05 * STEP_S
    assert world.forecast(world.state()).breach > 0.5


def test_step_budget_does_not_lower_p_breach_of_a_request_with_a_tighter_bound() -> None:
    world = World(slo(tpot_s=1.5 * STEP_S)).warm()
    budget = world.pool.replicas["r0"].budget
    budget.add(0, 20_000, 0.0, world.now)
    budget.limit_s = 1.2 * STEP_S
    state = world.state()
    offer_of(state).slo = state.slo.tightened(None, 1.1 * STEP_S)
    assert world.forecast(state).breach > 0.5


@pytest.mark.parametrize("prompt", [200, 1000, 3000])
def test_forecast_learns_the_latencies_of_an_idle_engine(prompt: int) -> None:
    world = World().warm()
    forecast = world.forecast(world.state(prompt))
    assert forecast.ttft_s == pytest.approx(STEP_S + PROMPT_TOKEN_S * prompt, rel=0.15)
    assert forecast.tpot_s == pytest.approx(STEP_S, rel=0.15)
    assert forecast.e2e_s == pytest.approx(forecast.ttft_s + 110 * STEP_S, rel=0.3)


def test_forecast_ttft_includes_unread_prompts() -> None:
    world = World().warm()
    alone = world.forecast(world.state()).ttft_s
    world.send(world.state(4000))
    assert world.forecast(world.state()).ttft_s > alone + 0.5 * 4000 * PROMPT_TOKEN_S


def test_only_the_unread_rest_of_a_prompt_counts_in_the_forecast() -> None:
    world = World().warm()
    world.send(world.state(4000))
    before = world.forecast(world.state()).ttft_s
    world.now += 0.1
    assert world.forecast(world.state()).ttft_s < before - 0.09


def test_first_token_marks_earlier_prompts_as_read() -> None:
    world = World().warm()
    world.send(world.state(4000, stream=False))
    later = world.send(world.state(500))
    world.now += 0.26
    world.first_token(later)
    assert world.forecaster.engines["r0"].backlog(world.now) == 0.0


def test_prompt_of_an_unstreamed_answer_counts_as_read_after_its_expected_time() -> None:
    world = World().warm()
    world.send(world.state(2000, stream=False))
    assert world.forecaster.engines["r0"].backlog(world.now) == 2000
    world.now += 0.5
    assert world.forecaster.engines["r0"].backlog(world.now) == 0.0


def test_forecast_learns_from_whole_answers_without_first_tokens() -> None:
    world = World(slo(e2e_s=60.0))
    source = random.Random(2)
    for _ in range(300):
        prompt, tokens = source.randrange(100, 4000), source.randrange(20, 200)
        state = world.state(prompt, stream=False)
        attempt = world.send(state)
        world.now += STEP_S + PROMPT_TOKEN_S * prompt + STEP_S * (tokens - 1)
        world.finish(attempt, tokens)
        world.forecaster.judged(state, False)
        world.now += 0.05
    assert world.trust is Trust.TRUSTED
    forecast = world.rest().forecast(world.state(3000, stream=False))
    assert forecast.ttft_s == pytest.approx(STEP_S + PROMPT_TOKEN_S * 3000, rel=0.3)
    assert forecast.tpot_s == pytest.approx(STEP_S, rel=0.15)


def test_forecast_learns_that_a_replica_is_slow_from_its_token_gaps() -> None:
    world = World(replicas=2).warm(50)
    assert world.slowness_of_r1(1.8) == pytest.approx(1.8, rel=0.15)
    quick, slow = (world.forecast(world.state(), replica=replica).ttft_s for replica in ("r0", "r1"))
    assert slow / quick == pytest.approx(1.8, rel=0.25)


def test_slow_replica_is_learned_before_its_first_answers_end() -> None:
    world = World(replicas=2)
    for _ in range(10):
        streamed(world, 33, STEP_S, "r0")
        streamed(world, 33, 4 * STEP_S, "r1")
    speeds = dict(world.forecaster.view().speeds)
    assert speeds["r1"] / speeds["r0"] > 2.0


def test_small_differences_between_replicas_are_not_learned_as_slowness() -> None:
    world = World(replicas=2).warm(50)
    assert world.slowness_of_r1(1.05) == pytest.approx(1.0, rel=0.02)
    assert [replica.slowness for replica in world.pool.replicas.values()] == [1.0, 1.0]


def test_prompts_at_one_replica_do_not_slow_forecast_tokens_of_another() -> None:
    world = World(replicas=2).warm()
    for _ in range(20):
        attempt = world.send(world.state(4000), "r0")
        world.now += 0.3
        world.first_token(attempt)
        world.finish(attempt, 2)
    read, idle = (world.forecast(world.state(), replica=replica).tpot_s for replica in ("r0", "r1"))
    assert read > 1.5 * idle
    assert idle == pytest.approx(STEP_S, rel=0.2)


def test_learned_replica_speeds_are_bounded() -> None:
    world = World(replicas=2).warm(50)
    for _ in range(150):
        world.serve(replica="r0")
        world.serve(slowness=20.0, replica="r1")
    assert all(0.125 <= speed <= 8.0 for _, speed in world.forecaster.view().speeds)


def test_earlier_engine_speed_is_forgotten() -> None:
    world = World().warm(400, slowness=3.0).warm(500)
    assert world.forecast(world.state()).ttft_s == pytest.approx(STEP_S + 1000 * PROMPT_TOKEN_S, rel=0.15)


def test_scraped_requests_of_other_gateways_lengthen_forecast_steps_until_the_scrape_is_old() -> None:
    world = World().warm()
    alone = world.forecast(world.state()).tpot_s
    replica = world.pool.replicas["r0"]
    for _ in range(4):
        replica.sample = Sample(waiting=0, running=40)
        world.forecaster.observed(replica, world.now)
    assert world.forecast(world.state()).tpot_s > alone
    world.now += 60.0
    assert world.forecast(world.state()).tpot_s == pytest.approx(alone, rel=0.01)


def test_forecast_adds_a_wait_inside_an_engine_seen_full_twice() -> None:
    world = World().warm()
    replica = world.pool.replicas["r0"]
    for _ in range(8):
        world.send(world.state(10))
    before = world.forecast(world.state()).ttft_s
    for _ in range(2):
        replica.sample = Sample(waiting=4, running=4)
        world.forecaster.observed(replica, world.now)
    assert world.forecast(world.state()).ttft_s > before + 0.5


def test_unstreamed_answer_is_forecast_on_e2e_alone() -> None:
    world = World(slo(ttft_s=1e-3, tpot_s=1e-6, e2e_s=60.0)).warm()
    assert world.forecast(world.state(stream=False)).breach < 0.1
    assert world.forecast(world.state(stream=True)).breach > 0.9


def test_answer_beyond_up_to_tokens_is_no_forecast_miss() -> None:
    counted = World(slo(e2e_s=0.5)).warm()
    bounded = World(Slo(e2e=(Objective(0.95, 0.5),), e2e_up_to_tokens=20)).warm()
    assert counted.forecast(counted.state()).breach > 0.7
    assert bounded.forecast(bounded.state()).breach < 0.2


def test_the_forecast_of_an_answer_does_not_exceed_its_max_tokens() -> None:
    world = World(slo(e2e_s=0.5)).warm()
    assert world.forecast(world.state(max_tokens=10)).breach < 0.1
    assert world.forecaster.expected_output(offer_of(world.state(max_tokens=10))) == 10
    free = world.state()
    assert 10 < world.forecaster.expected_output(offer_of(free)) <= 210


def test_elapsed_time_raises_the_breach_forecast() -> None:
    world = World().warm()
    state = world.state()
    assert world.forecast(state).breach < 0.1
    world.now += 2.0
    late = world.forecast(state)
    assert late.breach > 0.9
    assert late.ttft_s > 2.0


@STEADY
@given(st.integers(0, 200), st.integers(1, 200), st.floats(0, 0.9))
def test_breach_probability_grows_with_the_requests_ahead(ahead: int, more: int, higher: float) -> None:
    world = WARM
    state = world.state()
    world.drain(20, every_s=0.05)
    state.request.body_at = world.now
    less = world.forecast(state, Ahead(requests=ahead, higher_share=higher))
    much = world.forecast(state, Ahead(requests=ahead + more, higher_share=higher))
    assert less.wait_s < much.wait_s
    assert less.breach <= much.breach + 1e-6
    assert 0.0 <= less.breach <= 1.0
    assert all(math.isfinite(s) for s in (much.wait_s, much.ttft_s, much.tpot_s, much.e2e_s))


@STEADY
@given(st.integers(0, 20_000), st.integers(1, 20_000))
def test_breach_probability_grows_with_the_prompt_length(prompt: int, more: int) -> None:
    less, much = (WARM.forecast(WARM.state(tokens)) for tokens in (prompt, prompt + more))
    assert less.ttft_s < much.ttft_s
    assert less.breach <= much.breach + 1e-6


@pytest.mark.parametrize("stream", [True, False])
def test_forecast_wait_beyond_the_queue_timeout_is_a_breach(stream: bool) -> None:
    world = World(slo(e2e_s=500.0)).warm()
    world.drain(200, every_s=0.1)
    patient, hasty = world.state(stream=stream), world.state(stream=stream)
    offer_of(patient).timeouts = replace(patient.timeouts, queue_s=500.0)
    offer_of(hasty).timeouts = replace(hasty.timeouts, queue_s=10.0)
    behind = Ahead(requests=1000)
    assert world.forecast(patient, behind).wait_s == pytest.approx(100.0, rel=0.1)
    assert world.forecast(patient, behind).breach < 0.2
    assert world.forecast(hasty, behind).breach > 0.9
    assert world.forecast(hasty).breach < 0.2, "who is sent at once waits for nothing"


def test_raw_breach_probability_combines_tpot_and_e2e_as_independent_risks() -> None:
    def raw(objectives: Slo) -> float:
        world = World(objectives).warm()
        return world.forecast(world.state()).breach

    fast_s = 0.7 * STEP_S
    slow = raw(slo(tpot_s=fast_s))
    late = raw(slo(e2e_s=50 * STEP_S))
    assert min(slow, late) > 0.1
    assert raw(slo(tpot_s=fast_s, e2e_s=50 * STEP_S)) == pytest.approx(1.0 - (1.0 - slow) * (1.0 - late), abs=0.02)


def test_two_steps_that_came_at_once_do_not_decide_the_costs_alone() -> None:
    def prompt_cost(odd_s: float | None) -> float:
        source, costs = random.Random(4), LatencyModel()
        for number in range(400):
            rate = source.uniform(0.0, 4.0)
            step_s = 0.02 / (1.0 - 0.1 * rate)
            costs.learn_step(0.01, 0.05, rate * step_s, step_s * source.lognormvariate(0.0, 0.1), 1.0)
            if odd_s is not None and number == 200:
                costs.learn_step(0.01, 0.05, 1.0, odd_s, 1.0 / 33.0)
        return costs.step.coefficients[3]

    assert prompt_cost(odd_s=None) == pytest.approx(0.1, abs=0.02)
    assert prompt_cost(odd_s=50e-6) > 0.5 * prompt_cost(odd_s=None)


def test_forecast_step_time_stays_positive_for_any_coefficients() -> None:
    costs = LatencyModel()
    for _ in range(2000):
        costs.learn_step(0.5, 0.5, 1.0, 0.01, 1.0)
    costs.step.coefficients = (0.0, 0.0, 0.0, 0.01)
    assert costs.step_s(8.0, 8000.0) == pytest.approx(0.01, rel=0.1)


def test_tier_floor_bounds_the_forecast_wait() -> None:
    world = World().warm()
    world.drain(20, every_s=0.1)
    strict = world.forecast(world.state(), Ahead(requests=100, own=1, higher_share=0.9))
    floored = world.forecast(world.state(), Ahead(requests=100, own=1, higher_share=0.9, floor=0.05))
    assert floored.wait_s < strict.wait_s / 5


def test_tier_that_was_served_faster_than_its_share_says_waits_as_long_as_its_own_turns_take() -> None:
    world = World().warm()
    world.drain(20, every_s=0.1)
    by_share = world.forecast(world.state(), Ahead(requests=8, own=1, higher_share=0.9))
    faster = world.forecast(world.state(), Ahead(requests=8, own=1, higher_share=0.9, own_per_s=2.0))
    slower = world.forecast(world.state(), Ahead(requests=8, own=1, higher_share=0.9, own_per_s=0.1))
    alone = world.forecast(world.state(), Ahead(requests=8, own=8, own_per_s=100.0))
    assert faster.wait_s < by_share.wait_s / 3
    assert slower.wait_s == pytest.approx(by_share.wait_s)
    assert alone.wait_s == pytest.approx(world.forecast(world.state(), Ahead(requests=8, own=8)).wait_s)


def test_dropped_request_gives_no_label() -> None:
    world = World(slo(ttft_s=1.0)).warm()
    before = world.forecaster.view().pools[0].reliability.labels
    state = world.state()
    world.send(state)
    world.forecaster.dropped(state)
    world.now += 1.5
    world.forecaster.judged(state, True)
    assert world.forecaster.view().pools[0].reliability.labels == before


def test_forecasting_changes_no_state() -> None:
    world = World().warm()
    world.send(world.state(3000, stream=False))
    first = world.forecast(world.state())
    world.now += 5.0
    world.forecast(world.state(), Ahead(requests=5))
    world.now -= 5.0
    again = world.forecast(world.state())
    assert (first.ttft_s, first.tpot_s, first.breach) == (again.ttft_s, again.tpot_s, again.breach)


def test_failed_attempts_are_not_learned_and_leave_no_state_in_the_forecaster() -> None:
    world = World().warm()
    before = world.forecaster.view()
    attempt = world.send(world.state(5000))
    world.now += 0.01
    world.finish(attempt, 0, AttemptOutcome.UNREACHABLE)
    assert world.forecaster.engines["r0"].backlog(world.now) == 0.0
    assert world.forecaster.view().pools[0].samples == before.pools[0].samples


WARM = World().warm()


# ---- how long answers are


def stream(
    world: World, tokens: int, *, max_tokens: int = 4096, looks: int = 20, end: AttemptOutcome = AttemptOutcome.COMPLETE
) -> None:
    """A request whose progress is told now and then."""
    attempt = world.send(world.state(max_tokens=max_tokens))
    world.now += 0.1
    world.first_token(attempt)
    for seen in range(looks, tokens, looks):
        world.now += 0.1
        world.forecaster.progress(attempt, seen, world.now)
    world.finish(attempt, tokens, end)


def test_length_of_a_streamed_answer_is_learned_once() -> None:
    world = World()
    for _ in range(400):
        stream(world, 300)
    bucket = world.forecaster.lengths.bucket("m", "std", 1000)
    assert 300 < bucket.seen <= 400
    assert bucket.median == pytest.approx(300, rel=0.25)


@pytest.mark.parametrize("end", [AttemptOutcome.CANCELLED, AttemptOutcome.RESET])
def test_length_of_a_broken_off_answer_is_learned_as_a_lower_bound(end: AttemptOutcome) -> None:
    world = World()
    for number in range(600):
        stream(world, 300 if number % 3 else 100, end=end if number % 3 else AttemptOutcome.COMPLETE)
    bucket = world.forecaster.lengths.bucket("m", "std", 1000)
    assert bucket.exceeds(200.0) == pytest.approx(2 / 3, abs=0.1)


def test_length_of_a_capped_answer_is_learned_as_a_lower_bound() -> None:
    """Both if the client asked for no more, and if the gateway capped it."""
    world = World()
    for number in range(600):
        tokens, cap = (64, 64) if number % 2 else (400, 4096)
        stream(world, tokens, max_tokens=cap)
    bucket = world.forecaster.lengths.bucket("m", "std", 1000)
    assert bucket.median == pytest.approx(400, rel=0.25)


def test_length_of_an_unstreamed_answer_is_learned_at_its_end() -> None:
    world = World()
    for _ in range(300):
        attempt = world.send(world.state(stream=False))
        world.now += 1.0
        world.finish(attempt, 300)
    assert world.forecaster.lengths.bucket("m", "std", 1000).median == pytest.approx(300, rel=0.25)


def test_tokenize_requests_do_not_change_the_learned_prompt_cost() -> None:
    worlds = World(), World()
    for world in worlds:
        for _ in range(50):
            world.serve()
    for _ in range(200):
        state = worlds[0].state(prompt=0, stream=False, max_tokens=0)
        state.request.endpoint = Endpoint.TOKENIZE
        attempt = worlds[0].send(state)
        worlds[0].now += 0.002
        worlds[0].finish(attempt, 0)
    for world in worlds:
        world.now = 1000.0
    taught, untaught = (world.forecast(world.state()) for world in worlds)
    assert (taught.ttft_s, taught.tpot_s) == (untaught.ttft_s, untaught.tpot_s)


def streamed(world: World, tokens: int, tpot_s: float, replica: str = "r0") -> Attempt:
    """A stream with this many tokens, told in steps of 8."""
    attempt = world.send(world.state(100), replica)
    world.now += STEP_S
    world.first_token(attempt)
    for told in range(9, tokens + 1, 8):
        world.now += 8 * tpot_s
        world.forecaster.progress(attempt, told, world.now)
    return attempt


def test_running_long_answer_teaches_that_steps_became_slower() -> None:
    world = World().warm()
    for _ in range(100):
        streamed(world, 513, 4 * STEP_S).slot.release(AttemptOutcome.CANCELLED, 0, world.now)
    assert world.forecast(world.state()).tpot_s > 2 * STEP_S


def test_running_answer_is_learned_after_8_16_32_steps_and_so_on() -> None:
    world = World().warm()
    before = world.forecaster.costs(world.pool).step.samples
    attempt = streamed(world, 1025, STEP_S)
    lessons = world.forecaster.costs(world.pool).step.samples - before
    assert lessons == 8, "after 8, 16, 32, ..., 1,024 steps"
    world.finish(attempt, 1025)
    assert world.forecaster.costs(world.pool).step.samples == before + lessons


def test_tpot_spread_is_learned_separately_by_answer_length_and_closeness_to_the_bound() -> None:
    kinds = [tpot_kind(output, tpot_s, 0.1) for output in (8.0, 64.0, 512.0) for tpot_s in (0.03, 0.09)]
    assert len(set(kinds)) == 6
    assert not set(kinds) & {DIRECT, QUEUED}
    assert tpot_kind(8.0, 9.0, math.inf) == tpot_kind(8.0, 0.03, 0.1)


@pytest.mark.parametrize("merged", [1, 2, 8])
def test_step_costs_do_not_depend_on_the_number_of_tokens_in_an_event(merged: int) -> None:
    world, source = World(), random.Random(3)
    for _ in range(150):
        prompt, steps = source.randrange(100, 2000), source.randrange(100, 800)
        attempt = world.send(world.state(prompt))
        world.now += STEP_S + PROMPT_TOKEN_S * prompt
        world.first_token(attempt)
        for step in range(1, steps + 1):
            world.now += STEP_S
            if step % 8 == 0:
                world.forecaster.progress(attempt, 1 + step // merged, world.now)
        world.finish(attempt, steps + 1, seen=1 + steps // merged)
        world.now += 0.05
    assert world.forecast(world.state()).tpot_s == pytest.approx(STEP_S, rel=0.3)


def test_long_answer_does_not_keep_ended_requests_in_memory() -> None:
    slow = tier("std", slo=slo(e2e_s=600.0))
    story = play(policy(pool("p", "r1", slots=4), slow)).arrives("long").whatever()
    gc.collect()
    before = sum(isinstance(one, RequestState) for one in gc.get_objects())
    for number in range(1000):
        story.arrives(f"a{number}").served(f"a{number}").whatever()
    gc.collect()
    assert sum(isinstance(one, RequestState) for one in gc.get_objects()) < before + 100
