"""The experiment `known-knee`, on one of its fleets."""

from __future__ import annotations

from loadtests.experiments.known_knee import drawn, known, trial_at
from loadtests.verdict.promises import Verdict
from loadtests.verdict.step import CERTIFY_WRONG


def test_verdicts_far_from_the_knee_are_right() -> None:
    fleet = drawn(18)
    knee = known(fleet, 1000, 40.0)
    below, above = (trial_at(fleet, factor * knee, CERTIFY_WRONG, 120.0, seed=2) for factor in (0.6, 1.6))
    assert (below.verdict, above.verdict) == (Verdict.PASS, Verdict.FAIL)


def test_fleet_is_drawn_by_its_number() -> None:
    assert drawn(3) == drawn(3)
    assert len({drawn(number).name for number in range(1, 21)}) == 20
