"""The load generator sends every load of its experiment to the bench's upstream."""

from __future__ import annotations

import pytest

from loadtests.experiments import generator
from loadtests.experiments.runner import QUICK, Runner


@pytest.mark.long
def test_each_load_of_the_generator_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "QUICK_SECONDS", 1.5)
    monkeypatch.setattr(generator, "REQUESTS_PER_S", 60.0)
    monkeypatch.setattr(generator, "CHUNKS_PER_S", 1280.0)
    monkeypatch.setattr(generator, "STREAMS", 30)
    found = generator.generator(Runner(QUICK))
    assert found.figures["unanswered"].value == 0
    assert found.figures["streams_at_once"].value > 1
    assert [row[0] for row in found.grids[0].rows] == [load.name for load in generator._loads(1.5)]
