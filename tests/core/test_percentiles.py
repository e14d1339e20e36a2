"""Percentiles of TTFT as constraints on a tier's admission."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.admission.promises import Promises
from gateway.core.decision import Decision, RuleName, Verdict
from gateway.core.estimators.ttft_guard import (
    IN_VAIN,
    MIN_PART,
    UNLIKELY,
    TtftGuard,
    part_of_bound,
    ttft_guards,
    vain_guard,
)
from gateway.core.prediction import Ahead, Forecast
from gateway.core.request_state import RequestState, offer_of
from gateway.core.results import Outcome, Record
from gateway.core.slo import Objective, Slo
from gateway.policy import load
from gateway.policy import load_text as read
from gateway.sim.run.run import simulate
from gateway.sim.run.simulation import Options
from gateway.sim.run.tally import Tally
from gateway.sim.workload.load import load_text

from .made import policy, pool, tier
from .playbook import dispatch, play
from .test_forecast import PROMPT_TOKEN_S, STEP_S, World, slo

ROOT = Path(__file__).parents[2]
MEDIAN = Objective(0.5, 0.5)
TOP = Objective(0.99, 2.0)


def guarding(objective: Objective) -> TtftGuard:
    """The guard of an objective beside `TOP`."""
    return ttft_guards((), (objective, TOP))[0]


def decided(live: RequestState, forecast: Forecast) -> Decision:
    """A decision on this forecast."""
    return Decision(Verdict.SEND, RuleName.IN_TIME, offer_of(live), None, forecast)


def answered(guard: TtftGuard, ttfts_s: list[float], late: float = 0.5, now: float = 0.0) -> None:
    """Requests with this forecast P(late), and this TTFT."""
    for ttft_s in ttfts_s:
        guard.admitted(late)
        guard.judged(late, ttft_s > guard.objective.threshold_s, now)


def test_surely_late_request_is_admitted_while_the_percentile_has_room() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.1] * 10)
    assert guard.admits(1.0, 0.0)
    answered(guard, [0.9] * 10)
    assert not guard.admits(1.0, 0.0)


def test_highest_percentile_lets_a_likely_miss_wait_in_a_burst_but_not_in_a_lasting_overload() -> None:
    prompt = 8000
    world = World(slo(ttft_s=STEP_S + prompt * PROMPT_TOKEN_S)).warm()
    promises = Promises(world.policy, world.forecaster)
    for _ in range(100):
        short = world.live(prompt=100)
        promises.admitted(short, decided(short, world.forecast(short)), world.forecast(short))
        promises.first_token(short, world.now)
    long = world.live(prompt=prompt)
    at_once, later = world.forecast(long), world.forecast(long, Ahead(requests=1, own=1))
    at_once.breach = later.breach = 0.0
    assert promises.doubt(offer_of(long), at_once).broken is None
    assert promises.doubt(offer_of(long), at_once).late[0] > 0.3
    assert promises.doubt(offer_of(long), later).broken is None, "nobody else waits"
    for _ in range(30):
        waiting = world.live(prompt=100)
        promises.offered(decided(waiting, later), offer_of(waiting), world.now)
    assert promises.doubt(offer_of(long), later).broken is not None
    assert promises.doubt(offer_of(long), at_once).broken is None


def test_the_more_requests_wait_the_earlier_a_waiting_one_must_be_likely_to_begin() -> None:
    guard = guarding(TOP)
    parts = []
    for waits in (False, True):
        for step in range(200):
            now = 20.0 * waits + step * 0.1
            guard.asked(waits, now)
            parts.append(part_of_bound(guard.waiting_share(now)))
    assert min(parts[:200]) >= 1.0
    assert parts[-1] == MIN_PART
    assert parts[199:] == sorted(parts[199:], reverse=True)
    assert part_of_bound(guard.waiting_share(now + 120.0)) >= 1.0, "an overload is forgotten while nobody asks"


BEFORE, LATER = 5.0, 7.0
"""TTFTs that miss a bound of 10 s with probability .006 and .07, and .7 of it with .08 and .5."""


@pytest.mark.parametrize(
    ("below_per_s", "waits", "ttft_s", "refused"),
    [
        (0.0, 1.0, BEFORE, True),
        (1.0, 1.0, BEFORE, True),
        (10.0, 1.0, BEFORE, False),
        (10.0, 1.0, LATER, True),
        (10.0, 0.4, LATER, False),
        (0.0, 0.4, LATER, True),
        (0.0, 0.1, LATER, False),
    ],
)
def test_the_lower_its_tier_and_the_more_wait_the_earlier_a_waiting_request_must_be_likely_to_begin(
    below_per_s: float, waits: float, ttft_s: float, refused: bool
) -> None:
    world = World(Slo(ttft=(Objective(0.99, 10.0),))).warm()
    promises = Promises(world.policy, world.forecaster)
    batch = tier("batch", priority=9)
    at_once = world.forecast(world.live(prompt=100))
    later = world.forecast(world.live(prompt=100), Ahead(requests=1, own=1))
    for step in range(300):
        world.now += 0.05
        live = world.live(prompt=100)
        forecast = later if step % 10 < 10 * waits else at_once
        promises.admitted(live, decided(live, at_once), at_once)
        promises.first_token(live, world.now)
        world.pool.asked.used(live.request.tier, world.now)
        if step % 20 < below_per_s:
            world.pool.asked.used(batch, world.now)
        promises.offered(decided(live, forecast), offer_of(live), world.now)
    near = world.forecast(world.live(prompt=100), Ahead(requests=1, own=1))
    near.ttft_s = near.wait_s = ttft_s
    assert (promises.doubt(offer_of(world.live(prompt=100)), near).broken is not None) == refused


def test_admitted_requests_count_by_their_p_late_until_their_first_token() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.1] * 10, late=0.0)
    taken = 0
    while taken < 10 and guard.admits(1.0, 0.0):
        guard.admitted(1.0)
        taken += 1
    assert 1 <= taken < 10
    guard.dropped(1.0)
    assert guard.admits(1.0, 0.0)


def test_broken_percentile_still_admits_requests_that_are_likely_in_time() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.9] * 50, late=1.0)
    assert guard.admits(0.2, 0.0)
    assert not guard.admits(0.9, 0.0)


def test_percentile_guard_forgets_answers_within_a_minute() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.9] * 50, late=1.0)
    answered(guard, [0.1] * 5, late=0.0, now=60.0)
    assert guard.admits(1.0, 60.0)


def test_percentile_guard_corrects_a_pessimistic_forecast() -> None:
    guard = guarding(TOP)
    answered(guard, [1.0] * 200, late=0.3)
    assert guard.admits(0.3, 0.0)


def test_guard_learns_no_bias_from_requests_admitted_before_costs_were_known() -> None:
    guard = guarding(TOP)
    for _ in range(20):
        guard.admitted(0.0)
        guard.judged(0.0, True, 0.0, had_costs=False)
    assert not guard.admits(0.05, 0.0)
    assert guard.admits(0.008, 0.0)


def test_late_answers_of_busy_replicas_refuse_nothing_at_an_idle_one() -> None:
    bound_s = 1.0
    world = World(slo(ttft_s=bound_s), replicas=2).warm()
    promises = Promises(world.policy, world.forecaster)
    (guard,) = ttft_guards((), world.policy.tiers["std"].slo.ttft)
    for _ in range(20):
        live = world.live(prompt=100)
        promises.admitted(live, decided(live, world.forecast(live)), world.forecast(live))
        world.now += 2 * bound_s
        promises.first_token(live, world.now)

    def late_with(probability: float, replica: str) -> tuple[RequestState, Forecast]:
        """The shortest request that is late there with more than this probability."""
        for prompt in range(100, 40_000, 10):
            live = world.live(prompt=prompt)
            forecast = world.forecast(live, replica=replica)
            if world.forecaster.is_late(live.request, forecast, bound_s) > probability:
                return live, forecast
        raise AssertionError("no prompt is long enough")

    live, forecast = late_with(0.5 * guard.allowed, "r0")
    assert promises.doubt(offer_of(live), forecast).broken is None
    assert promises.doubt(offer_of(live), forecast).late[0] <= guard.allowed
    world.send(world.live(prompt=4000), "r1")
    live, forecast = late_with(0.5 * guard.allowed, "r1")
    assert promises.doubt(offer_of(live), forecast).broken is not None
    assert promises.doubt(offer_of(live), forecast).late[0] <= guard.allowed, (
        "without late answers of others it would be admitted"
    )
    live, forecast = late_with(2 * UNLIKELY, "r0")
    assert promises.doubt(offer_of(live), forecast).broken is not None, "too long a prompt even for an idle replica"


def test_waits_in_vain_stay_within_their_share() -> None:
    guard = vain_guard()
    for number in range(100):
        guard.admitted(0.1)
        guard.judged(0.1, number >= 90, 0.0)
    assert IN_VAIN < 10 / 100
    assert not guard.admits(0.1, 0.0)
    assert guard.admits(0.0, 0.0)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_percentile_guard_without_samples_admits(quantile: float) -> None:
    assert guarding(Objective(quantile, 1.0)).admits(0.0, 0.0)


def test_objective_that_idle_replicas_break_refuses_no_request() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.9] * 50, late=1.0)
    assert not guard.admits(1.0, 0.0)
    for _ in range(50):
        guard.offered(0.8, 0.0)
    assert guard.is_beyond()
    assert guard.admits(1.0, 0.0)


def test_objective_that_only_load_breaks_still_refuses_requests() -> None:
    guard = guarding(MEDIAN)
    answered(guard, [0.9] * 50, late=1.0)
    for _ in range(50):
        guard.offered(0.3, 0.0)
    assert not guard.admits(1.0, 0.0)


def test_objective_binds_again_once_idle_replicas_keep_it() -> None:
    guard = guarding(MEDIAN)
    for _ in range(50):
        guard.offered(0.8, 0.0)
    for second in range(120):
        guard.offered(0.1, float(second))
    assert not guard.is_beyond()


UNKEEPABLE = """\
apiVersion: tailgate/v1
models: {default: {pools: [p]}}
pools: {p: {replicas: [http://a:1, http://b:1]}}
tiers: {t: {slo: {ttft: {p50: 5ms, p99: 2s}}}}
defaults: {tier: t}
"""
HALF_LOAD = """\
apiVersion: tailgate/v1
kind: Workload
rate: 10/s
duration: 40s
prompt_tokens: azure-conversation-prompt
output_tokens: azure-conversation-answer
tiers:
  t: {share: 100%}
"""


def test_a_median_that_no_engine_can_keep_refuses_nobody_at_half_load() -> None:
    rules = read(UNKEEPABLE, "policy.yaml")
    result = simulate(rules, load_text(HALF_LOAD, "half.yaml").arrivals(1), seed=1, options=Options(duration_s=40.0))
    assert result.goodput > 0.99


def test_request_that_moves_to_another_pool_counts_once_in_each_guard() -> None:
    strict = tier("std", slo=Slo(ttft=(Objective(0.5, 1.0), Objective(0.99, 60.0))))
    story = play(policy(pool("a", "r1"), pool("b", "r2"), strict)).arrives("runs").arrives("waits").first_token("runs")
    story.whatever().fails("r1").expect(dispatch("r2", of="waits"))
    assert story.controller.holdings().promises == 2
    story.first_token("waits").whatever()
    assert story.controller.holdings().promises == 0


OVERLOAD = """\
apiVersion: tailgate/v1
kind: Workload
rate: 63/s
duration: 50s
prompt_tokens: azure-conversation-prompt
output_tokens: azure-conversation-answer
tiers:
  standard: {share: 100%}
"""


@pytest.mark.interpreted
def test_lasting_overload_keeps_the_median_and_refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.5 times the load that four replicas can serve, under the policy of `make run`."""
    records: list[Record] = []
    ended = Tally.ended
    monkeypatch.setattr(Tally, "ended", lambda tally, *told: (records.append(told[3]), ended(tally, *told))[1])
    rules = load(ROOT / "policies" / "default.yaml")
    simulate(rules, load_text(OVERLOAD, "overload.yaml").arrivals(1), seed=1, options=Options(duration_s=50.0))
    later = [record for record in records if record.request.body_at > 20.0]
    ttfts = sorted(r.ttft_s for r in later if r.outcome is Outcome.OK and r.ttft_s is not None)
    refused = [record.e2e_s for record in later if record.outcome is Outcome.REFUSED]
    assert len(ttfts) > 300
    assert ttfts[len(ttfts) // 2] <= 0.5
    assert len(refused) > 300
    assert sum(waited_s <= 0.1 for waited_s in refused) >= 0.95 * len(refused)
