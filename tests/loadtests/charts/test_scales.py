"""Axes end at round values, and their ticks lie inside."""

from __future__ import annotations

import pytest

from loadtests.charts.scales import Scale, linear, logarithmic, nine


@pytest.mark.parametrize(("high", "top"), [(0.7, 0.8), (3.0, 3.0), (23.0, 25.0), (101.0, 125.0), (0.0, 1.0)])
def test_linear_axis_begins_at_zero(high: float, top: float) -> None:
    scale = linear(high)
    assert (scale.low, scale.high) == pytest.approx((0.0, top))
    ticks = scale.ticks()
    assert ticks[0] == 0.0
    assert ticks[-1] == pytest.approx(top)
    assert 3 <= len(ticks) <= 8


def test_logarithmic_axis_has_round_limits_and_ticks() -> None:
    scale = logarithmic(0.031, 1.7)
    assert (scale.low, scale.high) == pytest.approx((0.02, 2.0))
    assert scale.ticks() == pytest.approx([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
    assert scale.at(0.2) == pytest.approx(0.5)
    assert len(logarithmic(1e-4, 1e3).ticks()) <= 9


def test_nines_are_equally_spaced_on_their_axis() -> None:
    assert [nine(share) for share in (0.0, 0.9, 0.99, 0.999)] == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert Scale(0.0, 0.999, nines=True).ticks() == pytest.approx([0.0, 0.5, 0.9, 0.99, 0.999])
