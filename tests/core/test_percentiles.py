"""Percentiles of TTFT as constraints on a tier's admission."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gateway.core.estimators.ttft_judge import MAX_MARGIN, TtftJudge, ttft_judges
from gateway.core.results import Outcome, Record
from gateway.core.slo import Objective, Slo
from gateway.policy import load
from gateway.policy import load_text as read
from gateway.sim.run.options import Options
from gateway.sim.run.run import simulate
from gateway.sim.run.tally import Tally
from gateway.sim.workload.load import load_text

from .made import policy, pool, tier
from .playbook import dispatch, play

ROOT = Path(__file__).parents[2]
MEDIAN = Objective(0.5, 0.5)
TOP = Objective(0.99, 2.0)


def judging(objective: Objective) -> TtftJudge:
    """The judge of an objective beside `TOP`."""
    return ttft_judges((), (objective, TOP))[0]


def answered(judge: TtftJudge, ttfts_s: list[float], late: float = 0.5, now: float = 0.0) -> None:
    """Requests with this forecast P(late), and this TTFT."""
    for ttft_s in ttfts_s:
        judge.admitted(late)
        judge.judged(late, ttft_s > judge.objective.threshold_s, now)


def test_surely_late_request_is_admitted_while_the_percentile_has_room() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.1] * 10)
    assert judge.admits(1.0, 0.0)
    answered(judge, [0.9] * 10)
    assert not judge.admits(1.0, 0.0)


def test_admitted_requests_count_by_their_p_late_until_their_first_token() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.1] * 10, late=0.0)
    taken = 0
    while taken < 10 and judge.admits(1.0, 0.0):
        judge.admitted(1.0)
        taken += 1
    assert 1 <= taken < 10
    judge.dropped(1.0)
    assert judge.admits(1.0, 0.0)


def test_broken_percentile_still_admits_requests_that_are_likely_in_time() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.9] * 50, late=1.0)
    assert judge.admits(0.2, 0.0)
    assert not judge.admits(0.9, 0.0)


def test_percentile_judge_forgets_answers_within_a_minute() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.9] * 50, late=1.0)
    answered(judge, [0.1] * 5, late=0.0, now=60.0)
    assert judge.admits(1.0, 60.0)


def test_late_request_uses_up_what_the_highest_percentile_still_allows() -> None:
    """It was once refused if it would have to wait: a tier that always waits behind others was kept from its share."""
    (judge,) = ttft_judges((), (TOP,))
    answered(judge, [0.1] * 200, late=0.0)
    taken = 0
    while taken < 100 and judge.admits(0.1, 0.0):
        judge.admitted(0.1)
        taken += 1
    assert 0 < 0.1 * taken <= judge.allowed * (201 + taken)
    assert judge.admits(0.5 * judge.allowed, 0.0)


@pytest.mark.parametrize(("share", "told"), [(0.3, 0.05), (0.02, 0.3)])
def test_margin_settles_where_as_many_answers_are_late_as_were_expected(share: float, told: float) -> None:
    judge = judging(TOP)
    chance = random.Random(3)
    for _ in range(2000):
        p = judge.corrected(told)
        judge.admitted(p)
        judge.judged(p, chance.random() < share, 0.0)
    wanted = min(MAX_MARGIN, max(1.0 / MAX_MARGIN, share / told))
    assert judge.margin == pytest.approx(wanted, rel=0.4)


def test_margin_learns_nothing_from_requests_admitted_before_costs_were_known() -> None:
    judge = judging(TOP)
    for _ in range(20):
        judge.admitted(0.0)
        judge.judged(0.0, True, 0.0, had_costs=False)
    assert judge.margin == 1.0


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_percentile_judge_without_samples_admits(quantile: float) -> None:
    assert judging(Objective(quantile, 1.0)).admits(0.0, 0.0)


def test_objective_that_idle_replicas_break_refuses_no_request() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.9] * 50, late=1.0)
    assert not judge.admits(1.0, 0.0)
    for _ in range(50):
        judge.offered(0.8, 0.0)
    assert judge.is_beyond()
    assert judge.admits(1.0, 0.0)


def test_objective_that_only_load_breaks_still_refuses_requests() -> None:
    judge = judging(MEDIAN)
    answered(judge, [0.9] * 50, late=1.0)
    for _ in range(50):
        judge.offered(0.3, 0.0)
    assert not judge.admits(1.0, 0.0)


def test_objective_binds_again_once_idle_replicas_keep_it() -> None:
    judge = judging(MEDIAN)
    for _ in range(50):
        judge.offered(0.8, 0.0)
    for second in range(120):
        judge.offered(0.1, float(second))
    assert not judge.is_beyond()


def ended_records(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records of the simulation that comes next."""
    records: list[Record] = []
    ended = Tally.ended
    monkeypatch.setattr(Tally, "ended", lambda tally, *told: (records.append(told[3]), ended(tally, *told))[1])
    return records


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


END_TO_END = """\
apiVersion: tailgate/v1
models: {default: {pools: [p]}}
pools: {p: {replicas: [http://a:1, http://b:1]}}
tiers: {t: {slo: {e2e: {p99: 20s}}}}
defaults: {tier: t}
"""
TOO_MANY = HALF_LOAD.replace("10/s", "40/s").replace("40s", "120s")


@pytest.mark.interpreted
def test_most_answers_are_in_time_in_overload_with_an_e2e_objective_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits once lowered the limit of the steps, so that a queue grew before replicas that were a third full."""
    records = ended_records(monkeypatch)
    rules = read(END_TO_END, "policy.yaml")
    simulate(rules, load_text(TOO_MANY, "many.yaml").arrivals(1), seed=1, options=Options(duration_s=120.0))
    thirds = [[r for r in records if start < r.request.body_at <= start + 40.0] for start in (20.0, 80.0)]
    served = [[r for r in third if r.outcome is Outcome.OK] for third in thirds]
    late = [sum(not r.good for r in of) / len(of) for of in served]
    assert max(late) <= 0.2
    assert len(served[1]) >= 0.9 * len(served[0])


def test_request_that_moves_to_another_pool_counts_once_in_each_judge() -> None:
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
    records = ended_records(monkeypatch)
    rules = load(ROOT / "policies" / "default.yaml")
    simulate(rules, load_text(OVERLOAD, "overload.yaml").arrivals(1), seed=1, options=Options(duration_s=50.0))
    later = [record for record in records if record.request.body_at > 20.0]
    ttfts = sorted(r.ttft_s for r in later if r.outcome is Outcome.OK and r.ttft_s is not None)
    refused = [record.e2e_s for record in later if record.outcome is Outcome.REFUSED]
    assert len(ttfts) > 300
    assert ttfts[len(ttfts) // 2] <= 0.5
    assert len(refused) > 300
    assert sum(waited_s <= 0.1 for waited_s in refused) >= 0.95 * len(refused)
