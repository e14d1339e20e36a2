"""The experiment with the store of two gateways, with one fault."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from loadtests.experiments import store_faults
from loadtests.experiments.real_store import RealStore
from loadtests.experiments.runner import QUICK, Runner
from loadtests.experiments.targets import TARGETS
from tests.stores import needs_store


@pytest.mark.long
@needs_store
def test_clients_see_no_error_of_a_store_that_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    def emptied(store: RealStore, _: object) -> dict[str, Any]:
        return {"emptied": (partial(store.tell, "FLUSHALL"), None)}

    monkeypatch.setattr(store_faults, "faults", emptied)
    found = store_faults.store_faults(Runner(QUICK))
    assert found.figures.keys() == TARGETS["store-faults"].keys()
    assert found.figures["errors"].value == 0
    assert found.figures["longest_recovery_s"].value < store_faults.MAX_RECOVERY_S
    assert [row[:2] for row in found.grids[0].rows] == [["emptied", "0"]]


def test_effects_of_several_runs_are_their_medians_and_all_their_errors() -> None:
    runs = [store_faults.Effects(n, p99_s, 1.0, n / 10) for n, p99_s in enumerate((0.03, 0.5, 0.01))]
    assert store_faults.median_of(runs) == store_faults.Effects(3, 0.03, 1.0, 0.2)
