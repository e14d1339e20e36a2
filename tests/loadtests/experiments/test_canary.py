"""The canary experiment calls a bad arm worse, but not an equal one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.experiments import canary
from loadtests.experiments.canary import CASES, EQUAL, RATE, Case, first_accused
from loadtests.experiments.runner import Effort, Runner
from tests.interpreted import interpreted

pytestmark = interpreted


def accused(case: Case) -> int | None:
    """Number of requests, of 500, after which the canary is called worse."""
    traffic = replace(Runner(Effort()).workload("main"), duration_s=40.0).at_rate(RATE)
    return first_accused((case, traffic, 1))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "REQUESTS", 500)


def test_a_canary_that_fails_a_fifth_of_its_answers_is_accused_within_500_requests() -> None:
    (worst,) = (case for case in CASES if case.failing == 0.2)
    at = accused(worst)
    assert at is not None
    assert at % canary.LOOK_EVERY == 0


def test_an_equal_canary_is_not_accused() -> None:
    assert accused(EQUAL) is None
