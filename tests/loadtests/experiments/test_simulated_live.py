"""What is held against what in the experiment simulated-live."""

from __future__ import annotations

import math
from typing import cast

from gateway.sim.results import Result
from loadtests.experiments.simulated_live import LEAST, _by_tier, _whole
from loadtests.scenarios.simulated import Simulated


def told(**ttft_s: list[float]) -> Simulated:
    return Simulated(cast(Result, None), ttft_s)


def test_the_whole_is_all_tiers_in_order() -> None:
    found = _whole("x", {"": [], "a": [1.0, 4.0], "b": [2.0]}, [told(a=[1.0], b=[3.0, 5.0])])
    assert found.live == [1.0, 2.0, 4.0]
    assert found.runs == [[1.0, 3.0, 5.0]]
    assert found.off("p50") == 0.5


def test_a_tier_that_finished_on_one_side_only_is_as_far_off_as_can_be() -> None:
    many = [1.0] * LEAST
    (live_only,) = _by_tier("x", {"a": many, "b": []}, [told(a=[], b=[])])
    (told_only,) = _by_tier("x", {"a": [], "b": []}, [told(a=many, b=[])])
    assert live_only.name == "x: a"
    assert live_only.off("p50") == math.inf
    assert told_only.off("p50") == 1.0


def test_tiers_of_few_and_one_tier_alone_are_left_out() -> None:
    assert list(_by_tier("x", {"a": [1.0], "b": [1.0]}, [told(a=[1.0], b=[1.0])])) == []
    assert list(_by_tier("x", {"a": [1.0] * LEAST}, [told(a=[1.0] * LEAST)])) == []
