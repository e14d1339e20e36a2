"""The experiment on the worth of a request: its quick run, and the gap of the least accepted length."""

from __future__ import annotations

import pytest

from loadtests.experiments.runner import QUICK, Runner
from loadtests.experiments.value import ENOUGH, Ran, behind, value


@pytest.mark.long
def test_quick_value_gains_by_weight_and_welcomes_long_prompts_where_tokens_count() -> None:
    figures = {name: found.value for name, found in value(Runner(QUICK)).figures.items()}
    assert figures["least_gain_by_weight"] > 0.0
    assert figures["most_behind_fair"] <= 0.25


def test_value_experiment_gives_no_verdict_on_lengths_with_few_requests() -> None:
    lengths = {5: (ENOUGH, 0.9), 12: (ENOUGH, 0.5), 13: (ENOUGH - 1, 0.0)}
    total = 3 * ENOUGH - 1
    assert behind(Ran([], {}, [], lengths)) == pytest.approx(1.4 * ENOUGH / total - 0.5)
