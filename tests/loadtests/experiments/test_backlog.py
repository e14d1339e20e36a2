"""The experiment `backlog`, in its quick form."""

from __future__ import annotations

from loadtests.experiments.backlog import backlog
from loadtests.experiments.runner import QUICK, Runner


def test_backlog_delays_the_answers_of_round_robin_and_not_those_of_the_gateway() -> None:
    findings = backlog(Runner(QUICK))
    ms = {name: figure.value for name, figure in findings.figures.items()}
    assert ms["beside_ms"] < 1.2 * ms["alone_ms"]
    assert ms["round_robin_beside_ms"] > 10 * ms["round_robin_alone_ms"]
    assert 0.0 < ms["beside_unanswered"] < 0.1
    assert [line.x for line in findings.charts[0].lines] == [[0, 300]] * 3
