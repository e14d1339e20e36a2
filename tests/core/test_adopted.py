"""Requests of a controller that is gone are taken over by the next one: their attempts go on, and nothing is counted
twice or lost.
"""

from __future__ import annotations

from random import Random

import pytest

from gateway.core.commands import Cancel, Commit, Dispatch, Ended, Refuse
from gateway.core.controller import Controller
from gateway.core.policy import Limits
from gateway.core.pool_spec import Hold
from gateway.core.results import AttemptOutcome, AttemptResult, Outcome, Reason, RunningAttempt

from .made import a_request, policy, pool, tier
from .test_hold import HOLD, found

RULES = policy(pool("p", "r1", "r2", slots=1), tier("std", limits=Limits(60.0, 10_000.0, 2)))
COMPLETE = AttemptResult(AttemptOutcome.COMPLETE, 10, 5, 5)


def running(
    attempt: int, replica: str = "r1", first_at: float | None = None, *, committed: bool = False
) -> RunningAttempt:
    return RunningAttempt(attempt, replica, 1.0, first_at, committed)


def next_controller() -> Controller:
    controller = Controller(RULES, Random(1))
    assert controller.number_from(1000, 9.0) == []
    return controller


def test_adopted_answer_holds_its_slot_and_its_tenants_concurrency_until_it_ends() -> None:
    controller = next_controller()
    assert controller.adopt(a_request(1, RULES, 0.5), [running(7, first_at=2.0, committed=True)], 10.0) == []
    assert controller.holdings().slots == {"r1": 1}
    assert [*controller.holdings().tenants.values()] == [1]

    (sent,) = controller.arrive(a_request(2, RULES, 10.0), 10.0)
    assert isinstance(sent, Dispatch)
    assert (sent.replica, sent.attempt) == ("r2", 1001), "the other replica; and no id of the controller before"
    (refused, _) = controller.arrive(a_request(3, RULES, 10.0), 10.0)
    assert isinstance(refused, Refuse)
    assert refused.why is Reason.LIMIT_CONCURRENCY

    (ended,) = controller.finish(7, COMPLETE, 12.0)
    assert isinstance(ended, Ended)
    assert (ended.record.outcome, ended.record.ttft_s, ended.record.e2e_s) == (Outcome.OK, 1.5, 11.5)
    assert controller.finish(1001, COMPLETE, 12.5)
    assert controller.holdings().is_empty


def test_adopted_answers_count_as_running_and_not_as_prompts_that_were_just_sent() -> None:
    controller = Controller(policy(pool("p", "r1", slots=None), tier("std")), Random(1))
    for number in range(1, 31):
        attempts = [running(number, first_at=2.0, committed=True)]
        controller.adopt(a_request(number, controller.policy, 0.5, prompt=1000), attempts, 10.0)
    (found,) = controller.state.fleet
    engine, budget = controller.forecaster.engine(found.replicas["r1"], 10.0), found.replicas["r1"].budget
    assert (budget.sequences, engine.backlog(10.0), budget.own_prompt_tokens_per_s(10.0)) == (30, 0.0, 0.0)
    assert found.prompts.per_s(10.0) == 0.0
    assert controller.forecaster.costs(found).queued_backlog == 0.0, "none of them waited for that load"


def test_adopted_attempt_without_a_first_token_is_committed_when_it_comes() -> None:
    controller = next_controller()
    assert controller.adopt(a_request(1, RULES, 0.5), [running(7)], 10.0) == []
    (commit,) = controller.first_token(7, 10.5)
    assert isinstance(commit, Commit)
    assert isinstance(controller.finish(7, COMPLETE, 12.0)[-1], Ended)
    assert controller.holdings().is_empty


def test_adopted_attempt_that_fails_is_tried_again_elsewhere() -> None:
    controller = next_controller()
    assert controller.adopt(a_request(1, RULES, 0.5), [running(7)], 1.5) == []
    again = controller.finish(7, AttemptResult(AttemptOutcome.UNREACHABLE), 1.6)
    assert [type(command) for command in again] == [Dispatch]
    assert controller.finish(1001, COMPLETE, 2.0)
    assert controller.holdings().is_empty


def test_hedged_request_is_adopted_with_both_attempts_and_one_wins() -> None:
    controller = next_controller()
    assert controller.adopt(a_request(1, RULES, 0.5), [running(7), running(8, "r2")], 1.5) == []
    commit, cancel = controller.first_token(8, 1.6)
    assert isinstance(commit, Commit)
    assert isinstance(cancel, Cancel)
    assert (commit.attempt, cancel.attempt) == (8, 7)
    assert controller.finish(7, AttemptResult(AttemptOutcome.CANCELLED), 1.7) == []
    assert isinstance(controller.finish(8, COMPLETE, 2.0)[-1], Ended)
    assert controller.holdings().is_empty


@pytest.mark.parametrize("committed", [False, True])
def test_attempt_at_a_replica_that_the_policy_no_longer_has_is_closed(committed: bool) -> None:
    controller = next_controller()
    cancel, *rest = controller.adopt(a_request(1, RULES, 0.5), [running(7, "gone", committed=committed)], 1.5)
    assert cancel == Cancel(1, 7)
    if committed:
        assert [type(command) for command in rest] == [Refuse, Ended], "its client has a part of the answer"
    else:
        assert [type(command) for command in rest] == [Dispatch]
        assert controller.finish(1001, COMPLETE, 2.0)
    assert controller.holdings().is_empty


@pytest.mark.parametrize("hold", [None, HOLD])
def test_answer_at_a_replica_that_the_next_controller_has_not_checked_yet_goes_on(hold: Hold | None) -> None:
    controller = Controller(found(hold=hold), Random(1))
    controller.number_from(1000, 9.0)
    controller.configure(found("r1", hold=hold), 9.0)
    request = a_request(1, controller.policy, 0.5)
    assert controller.adopt(request, [running(7, first_at=2.0, committed=True)], 10.0) == []
    (ended,) = controller.finish(7, COMPLETE, 12.0)
    assert isinstance(ended, Ended)
    assert ended.record.outcome is Outcome.OK
    assert controller.holdings().is_empty
