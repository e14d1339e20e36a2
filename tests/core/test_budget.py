"""The risk that a tier may take depends on its recent misses."""

from dataclasses import replace

import pytest

from gateway.core.admission.error_budget import MEMORY_S, MIN_ANSWERS, ErrorBudget
from gateway.core.policy import Policy
from gateway.core.results import Outcome, Record
from gateway.core.slo import Objective, Slo

from .made import policy, pool, tier
from .playbook import play

SLO = Slo(ttft=(Objective(0.5, 0.3), Objective(0.99, 1.0)), e2e=(Objective(0.9, 10.0),), e2e_up_to_tokens=100)


def answer(ttft_s: float | None = 0.1, e2e_s: float = 1.0, tokens: int = 10, outcome: Outcome = Outcome.OK) -> Record:
    story = play(policy(pool("p", "r1"), tier("std"))).arrives("a").sent("a").first_token("a").finishes("a")
    return replace(story.records["a"], ttft_s=ttft_s, e2e_s=e2e_s, output_tokens=tokens, outcome=outcome)


GOOD = answer()


def after(*records: Record, slo: Slo = SLO, every_s: float = 0.1) -> ErrorBudget:
    budget = ErrorBudget(slo)
    for number, record in enumerate(records):
        budget.count(slo, record, number * every_s)
    return budget


def test_tier_without_misses_takes_half_more_risk() -> None:
    budget = after(*[GOOD] * 100)
    assert (budget.left, budget.threshold(0.5)) == (1.0, 0.75)


def test_tier_that_used_up_its_error_budget_takes_the_risk_of_its_policy() -> None:
    budget = after(*([answer(2.0)] + [GOOD] * 99) * 3)
    assert budget.left == pytest.approx(0.0, abs=0.1)
    assert budget.threshold(0.5) == pytest.approx(0.5, abs=0.03)


def test_tier_that_overdrew_its_error_budget_takes_half_the_risk() -> None:
    assert after(*[GOOD, answer(2.0)] * 50).threshold(0.5) == 0.25


@pytest.mark.parametrize(
    ("record", "left"),
    [
        (answer(0.5), -1.0),  # the median is all of a p50 missed
        (answer(e2e_s=11.0), -1.0),
        (answer(e2e_s=11.0, tokens=101), 1.0),  # the e2e objective does not apply to longer answers
        (answer(None, 1.0), 1.0),
    ],
)
def test_error_budget_is_that_of_the_objective_that_used_most(record: Record, left: float) -> None:
    assert after(*[record] * 100).left == left


def test_few_answers_do_not_change_the_error_budget() -> None:
    budget = after(*[answer(5.0)] * int(MIN_ANSWERS - 5))
    assert (budget.left, budget.threshold(0.3)) == (None, 0.3)


def test_refusals_and_errors_do_not_change_the_error_budget() -> None:
    refused = answer(5.0, outcome=Outcome.REFUSED)
    assert after(*[GOOD, refused] * 100, every_s=0.01).left == 1.0


def test_old_misses_leave_the_error_budget() -> None:
    budget = after(*[answer(2.0)] * 100)
    for number in range(100):
        budget.count(SLO, GOOD, 5 * MEMORY_S + number)
    assert budget.left is not None
    assert budget.left > 0.0


def test_answers_judged_by_earlier_objectives_do_not_change_the_error_budget() -> None:
    budget = after(*[answer(2.0)] * 100)
    budget.count(Slo(ttft=(Objective(0.99, 9.0),)), GOOD, 100.0)
    assert budget.left == -1.0


@pytest.mark.parametrize(("threshold_s", "left"), [(1.0, -1.0), (9.0, None)])
def test_reload_keeps_the_error_budget_of_a_tier_with_unchanged_objectives(
    threshold_s: float, left: float | None
) -> None:
    def rules(threshold_s: float) -> Policy:
        return policy(pool("p", "r1"), tier("std", slo=Slo(ttft=(Objective(0.99, threshold_s),))))

    story = play(rules(1.0))
    for number in range(100):
        story.arrives(f"{number}").sent(f"{number}").after(2.0).first_token(f"{number}").finishes(f"{number}")
    story.whatever().configured(rules(threshold_s))
    (view,) = story.controller.snapshot(story.now).tiers
    assert view.budget_left == left


@pytest.mark.parametrize("written", [0.95, 1.0])
def test_threshold_of_one_is_not_lowered_by_the_error_budget(written: float) -> None:
    assert after(*[answer(2.0)] * 100).threshold(written) == written
