"""The three lengths of experiments that have their own: quick, usual, and full. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from loadtests.experiments import (
    coordinated_omission,
    generator,
    hedge_utilisation,
    outside_tools,
    stragglers_live,
    textbook_hedge,
)
from loadtests.experiments.runner import FULL, QUICK, Effort, Runner


class Asked(Exception):
    """The size of the first piece of work: requests, or seconds."""

    def __init__(self, size: float) -> None:
        super().__init__(size)
        self.size = size


def asks(size: Callable[..., float]) -> Callable[..., Any]:
    def work(*given: Any) -> Any:
        raise Asked(size(*given))

    return work


def duration(options: list[str], *_: object) -> float:
    return float(options[options.index("--duration") + 1])


@pytest.fixture(autouse=True)
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "map", asks(lambda runner, of, items: items[0][-1]))
    monkeypatch.setattr(outside_tools, "_against", asks(lambda tool, seconds, *_: seconds))
    monkeypatch.setattr(stragglers_live, "run_together", asks(lambda of, tell: next(iter(of.values()))[1].seconds))
    for module in (coordinated_omission, generator):
        monkeypatch.setattr(module, "server", lambda *_: nullcontext('["1"]'))
        monkeypatch.setattr(module, "tested", asks(duration))


@pytest.mark.parametrize(
    "experiment",
    [
        coordinated_omission.coordinated_omission,
        generator.generator,
        hedge_utilisation.hedge_utilisation,
        outside_tools.outside_tools,
        stragglers_live.stragglers_live,
        textbook_hedge.textbook_hedge,
    ],
)
def test_an_experiment_is_longer_in_its_full_form_and_not_longer_in_its_quick_one(
    experiment: Callable[[Runner], Any],
) -> None:
    sizes = []
    for effort in (QUICK, Effort(), FULL):
        with pytest.raises(Asked) as asked:
            experiment(Runner(effort))
        sizes.append(asked.value.size)
    quick, usual, full = sizes
    assert quick <= usual < full
