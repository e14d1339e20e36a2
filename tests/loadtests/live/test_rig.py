"""End to end over processes: a few requests through the gateway, and through a baseline in its place."""

from __future__ import annotations

import pytest

from loadtests.experiments.runner import SETUP
from loadtests.live.planned import PlannedRequest
from loadtests.live.rig import Load, run, run_together
from loadtests.live.scaled import key_of
from loadtests.live.start import Broken

KEYS = [key_of("tier-0", "a"), key_of("tier-1", "b"), key_of("tier-2", "c")]


@pytest.mark.long
@pytest.mark.parametrize("baseline", [None, "static-cap:slots=8,wait=0.5"])
def test_live_rig_answers_have_the_requested_length(baseline: str | None) -> None:
    requests = [PlannedRequest(0.02 * n, key.tier, key.text, 30 + n, 1 + n, 1000.0) for n, key in enumerate(KEYS * 3)]
    load = Load((SETUP / "policy.yaml").read_text(), requests, KEYS, 1.0, 0.1, 0.4, 30.0)
    told: list[str] = []
    found = run("it", baseline, load, told.append)
    assert [(request.tokens, request.status, request.reason) for request in found.requests] == [
        (1 + n, 200, "") for n in range(9)
    ]
    assert len(found.counted) == 4
    assert set(found.processes) == {"replicas", "gateway", "clients"}
    assert all(sum(process.waits) > 0 for process in found.processes.values())
    assert told


@pytest.mark.long
def test_simultaneous_live_runs_have_separate_outcomes_and_one_failure_ends_all() -> None:
    requests = [PlannedRequest(0.02 * n, key.tier, key.text, 30 + n, 1 + n, 1000.0) for n, key in enumerate(KEYS * 3)]
    load = Load((SETUP / "policy.yaml").read_text(), requests, KEYS, 1.0, 0.1, 0.4, 30.0)
    ours, cap = run_together({"ours": (None, load), "cap": ("static-cap:slots=8,wait=0.5", load)}, lambda _: None)
    assert (ours.name, cap.name) == ("ours", "cap")
    for found in (ours, cap):
        assert [request.tokens for request in found.requests] == list(range(1, 10))
    assert {request.first_s for request in ours.requests}.isdisjoint(request.first_s for request in cap.requests)
    with pytest.raises(Broken, match="gateway exited"):
        run_together({"ours": (None, load), "wrong": ("no-such-baseline", load)}, lambda _: None)
