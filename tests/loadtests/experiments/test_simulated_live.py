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


def test_a_p99_is_held_against_what_single_seeds_say_however_many_there_are() -> None:
    live = [1.0 + n / 1000 for n in range(1000)]
    runs = [told(a=[value * times for value in live]) for times in (0.8, 1.1)]
    assert _whole("x", {"a": live}, runs).p99_overlaps is True
    assert _whole("x", {"a": live}, runs * 50).p99_overlaps is True
    assert _whole("x", {"a": live}, runs[:1] * 50).p99_overlaps is False
    assert _whole("x", {"a": live}, [*(runs[:1] * 50), runs[1]]).p99_overlaps is False, "one in fifty proves nothing"
    assert _whole("x", {"a": live[:100]}, runs).p99_overlaps is None


def test_tiers_of_few_and_one_tier_alone_are_left_out() -> None:
    assert list(_by_tier("x", {"a": [1.0], "b": [1.0]}, [told(a=[1.0], b=[1.0])])) == []
    assert list(_by_tier("x", {"a": [1.0] * LEAST}, [told(a=[1.0] * LEAST)])) == []
