"""The number of requests that a replica carries before its steps break the promised TPOT."""

from __future__ import annotations

import math
from random import Random

import pytest

from gateway.core.estimators.step_margin import MAX_MARGIN, MIN_MARGIN, START, StepMargin
from gateway.core.fleet.step_budget import StepBudget, StepPrices
from gateway.core.slo import Objective

PRICES = StepPrices(base_s=0.02, sequence_s=0.001, context_s=1e-7, prompt_s=1e-4)


def budget(limit_s: float, prices: StepPrices | None = PRICES) -> StepBudget:
    made = StepBudget()
    made.prices, made.limit_s = prices, limit_s
    return made


def filled(made: StepBudget, prompt_tokens: int = 0, output_tokens: float = 0.0, every_s: float = 0.0) -> int:
    """Requests that are sent until there is no room."""
    n, now = 0, 0.0
    while made.has_room(n * prompt_tokens, now) and n < 1000:
        made.add(1, prompt_tokens, output_tokens, now)
        n, now = n + 1, now + every_s
    return n


def test_step_budget_fills_a_replica_up_to_the_step_that_the_tpot_objective_allows() -> None:
    assert filled(budget(0.1)) == 80  # 20 ms + 80 x 1 ms


def test_step_budget_counts_held_context_and_half_of_the_expected_growth() -> None:
    made = budget(0.1)
    made.add(1, 0, 20_000.0, 0.0)
    assert made.decode_s(10_000) == pytest.approx(0.02 + 0.001 + 1e-7 * (10_000 + 10_000))
    assert filled(budget(0.1), output_tokens=20_000.0) == 40


def test_step_budget_includes_the_prompts_of_the_last_seconds() -> None:
    made = budget(0.1)
    made.add(1, 25_000, 0.0, 0.0)  # 2.5 s of prompts within 5 s
    assert made.prompt_share(0.0) == pytest.approx(0.5)
    assert made.has_room(0, 0.0)
    made.add(1, 20_000, 0.0, 0.0)
    assert not made.has_room(0, 0.0)
    assert made.has_room(0, 5.0)  # they have been read by then


def test_step_budget_of_an_idle_replica_has_room_under_any_objective() -> None:
    assert budget(0.001).has_room(0, 0.0)


def test_step_budget_holds_nothing_back_without_prices_or_a_tpot_objective() -> None:
    assert filled(budget(0.1, prices=None)) == 1000
    assert filled(budget(math.inf)) == 1000


def test_ended_request_leaves_the_step_budget() -> None:
    made = budget(0.1)
    n = filled(made, output_tokens=333.3)
    for _ in range(n):
        made.remove(1, 333.3)
    assert (made.sequences, made.growth_tokens) == (0, 0.0)


def test_shown_mean_step_includes_the_prompts_of_the_last_seconds() -> None:
    made = budget(0.1, prices=None)
    assert made.step_s(0, 0.0) is None
    made.prices = PRICES
    made.add(1, 25_000, 0.0, 0.0)
    assert made.step_s(0, 0.0) == pytest.approx(0.021 / 0.5)


P99 = Objective(0.99, 0.1)


def test_step_margin_settles_where_the_objective_is_just_kept() -> None:
    margin = StepMargin(P99)
    for answer in range(3000):
        late = answer % 200 == 0
        margin.learn(margin.limit_s, late)
    assert margin.limit_s == pytest.approx(START * 0.1, rel=0.03)


def test_step_margin_falls_by_a_fifth_within_12_late_answers_down_to_its_bound() -> None:
    margin = StepMargin(P99)
    for _ in range(12):
        margin.learn(margin.limit_s, True)
    assert MIN_MARGIN * 0.1 < margin.limit_s < 0.8 * START * 0.1
    for _ in range(1000):
        margin.learn(margin.limit_s, True)
    assert margin.limit_s == pytest.approx(MIN_MARGIN * 0.1)


def test_step_margin_ignores_answers_of_a_replica_that_was_not_full() -> None:
    margin = StepMargin(P99)
    for _ in range(1000):
        margin.learn(0.02, False)
        margin.learn(0.02, True)
    assert margin.limit_s == pytest.approx(START * 0.1)


def test_step_margin_falls_after_late_answers_of_a_half_full_replica() -> None:
    margin = StepMargin(P99)
    for _ in range(12):
        margin.learn(0.5 * margin.limit_s, True)
    assert margin.limit_s < 0.8 * START * 0.1


@pytest.mark.parametrize(("quantile", "rises"), [(0.5, False), (0.9, False), (0.95, True)])
def test_step_margin_up_to_p90_rises_only_by_answers_of_nearly_full_replicas(quantile: float, rises: bool) -> None:
    margin = StepMargin(Objective(quantile, 0.1))
    for _ in range(1000):
        margin.learn(0.7 * margin.limit_s, False)
    assert (margin.limit_s > 1.05 * START * 0.1) == rises
    assert margin.limit_s >= START * 0.1


@pytest.mark.parametrize(("quantile", "late"), [(0.5, 45), (0.9, 9), (0.99, 0.5)])
def test_step_margin_leaves_a_tenth_of_the_allowed_late_answers_to_chance_and_half_of_a_few(
    quantile: float, late: float
) -> None:
    less, more = StepMargin(Objective(quantile, 0.1)), StepMargin(Objective(quantile, 0.1))
    random = Random(1)
    for _ in range(4000):
        less.learn(less.limit_s, random.random() < 0.7 * late / 100.0)
        more.learn(more.limit_s, random.random() < 1.3 * late / 100.0)
    assert less.limit_s > 1.05 * START * 0.1
    assert more.limit_s < 0.95 * START * 0.1


def test_step_margin_of_a_median_may_exceed_the_objective() -> None:
    margin = StepMargin(Objective(0.5, 0.1))
    for _ in range(1000):
        margin.learn(margin.limit_s, False)
    assert margin.limit_s == pytest.approx(MAX_MARGIN * 0.1)


def seeing(made: StepBudget, factor: float, seconds: float, streams: int = 8) -> StepBudget:
    """Streams report four times a second, with steps that take `factor` times what is predicted."""
    now = 0.0
    for _ in range(streams):
        made.add(1, 0, 0.0, now)
    step_s = factor * made.decode_s(0)
    owed = 0.0
    for _ in range(int(4 * seconds)):
        now += 0.25
        owed += 0.25 / step_s
        steps, owed = int(owed), owed - int(owed)
        for _ in range(streams if steps else 0):
            made.saw(steps, steps * step_s, 0, now)
    return made


@pytest.mark.parametrize("factor", [0.1, 0.3, 3.0, 10.0])
def test_predicted_step_that_streams_contradict_is_corrected_within_seconds(factor: float) -> None:
    made = seeing(budget(0.1), factor, 3.0)
    seen_s = factor * made.decode_s(0)
    predicted_s = made.step_s(0, 3.0)
    assert predicted_s is not None
    assert abs(math.log(predicted_s / seen_s)) < abs(math.log(factor)) / 3.0
    assert made.has_room(0, 3.0) is (seen_s < 0.1)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_small_drift_of_steps_is_mostly_chance_and_hardly_moves_the_prediction(factor: float) -> None:
    assert seeing(budget(0.1), factor, 20.0).drift == pytest.approx(1.0, abs=0.02)


def test_prompts_that_are_never_read_keep_no_replica_closed_whose_steps_are_short() -> None:
    made = budget(0.15)
    for _ in range(8):
        made.add(1, 12_000, 0.0, 0.0)  # 96,000 tokens at once: a share of the engine above 1
    assert not made.has_room(0, 0.0)
    for tenth in range(1, 31):
        for _ in range(8):
            made.saw(4, 0.1, 0, tenth / 10)
    assert made.has_room(0, 3.0)
    assert made.places(0, 3.0) > 1.0


def test_few_gaps_prove_less_than_many() -> None:
    few, many = seeing(budget(0.1), 5.0, 1.0, streams=1), seeing(budget(0.1), 5.0, 10.0)
    assert 1.0 < few.drift < 0.5 * many.drift


def test_steps_that_are_planned_to_take_no_time_have_no_drift() -> None:
    made = StepBudget()
    made.prices = StepPrices(0.0, 0.0, 0.0, prompt_s=1e-4)  # learned so from short answers of a small model
    made.add(1, 100, 10.0, 0.0)
    made.saw(4, 0.1, 100, 0.1)
    assert made.drift == 1.0


def test_idle_replica_has_no_drift() -> None:
    made = seeing(budget(0.1), 5.0, 10.0)
    made.remove(8, 0.0)
    assert made.drift == 1.0
