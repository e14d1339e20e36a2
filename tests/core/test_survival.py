"""Quantiles of partly censored times."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimators.survival import RATIO, Survival

from .made import STEADY


def survival_of(times: list[tuple[float, bool]]) -> Survival:
    survival = Survival()
    for elapsed_s, censored in times:
        survival.add(elapsed_s, censored)
    return survival


def product_limit(times: list[tuple[float, bool]], q: float) -> float | None:
    """The textbook's (Kaplan-Meier) estimate, time by time; at equal times, ends come before censored ones."""
    survives, at_risk = 1.0, len(times)
    for elapsed_s, censored in sorted(times):
        if not censored:
            survives *= 1.0 - 1.0 / at_risk
            if survives <= 1.0 - q + 1e-12:
                return elapsed_s
        at_risk -= 1
    return None


def test_survival_quantile_without_censoring_is_the_plain_quantile() -> None:
    survival = survival_of([(0.001 * n, False) for n in range(1, 1001)])
    for q in (0.5, 0.9, 0.95, 0.99):
        assert survival.quantile(q) == pytest.approx(q, rel=0.02)


def test_survival_without_uncensored_times_has_no_quantile() -> None:
    assert Survival().quantile(0.5) is None
    assert survival_of([(1.0, True)] * 10).quantile(0.5) is None


def test_survival_has_no_quantile_beyond_the_last_uncensored_time() -> None:
    survival = survival_of([(0.1, False)] * 90 + [(0.2, True)] * 10)
    assert survival.quantile(0.9) == pytest.approx(0.1, rel=0.02)
    assert survival.quantile(0.95) is None


def test_survival_reproduces_the_freireich_example() -> None:
    # Remission times in weeks of the 6-MP group of Freireich et al. (1963), the example of most textbooks:
    # S(10) = .753, S(16) = .627, S(23) = .448.
    ends, cut = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    survival = survival_of([(float(t), False) for t in ends] + [(float(t), True) for t in cut])
    assert survival.quantile(1 - 0.753) == pytest.approx(10, rel=0.02)
    assert survival.quantile(1 - 0.628) == pytest.approx(16, rel=0.02)
    assert survival.quantile(0.5) == pytest.approx(23, rel=0.02)


# Each time has its own bucket, so that the estimates over buckets and over times are equal.
apart = st.lists(
    st.tuples(st.integers(1, 200).map(lambda n: 1e-3 * RATIO ** (2 * n)), st.booleans()), min_size=1, max_size=80
)


@STEADY
@given(apart, st.sampled_from([0.1, 0.5, 0.9, 0.95]))
def test_survival_quantile_is_the_product_limit_estimate(times: list[tuple[float, bool]], q: float) -> None:
    found, wanted = survival_of(times).quantile(q), product_limit(times, q)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found == pytest.approx(wanted, rel=0.02)


@STEADY
@given(apart, apart)
def test_merged_survival_windows_equal_one_window(
    first: list[tuple[float, bool]], second: list[tuple[float, bool]]
) -> None:
    both, one = survival_of(first).merged(survival_of(second)), survival_of(first + second)
    assert both.counts == one.counts
    assert (both.total, both.events) == (one.total, one.events)


def test_censoring_the_slowest_times_does_not_change_lower_survival_quantiles() -> None:
    """Times beyond a threshold are censored there or soon after, as by duplicates: the p95 stays the same."""
    random = Random(7)
    times = [0.04 * math.exp(0.35 * random.gauss(0, 1)) * (6 if random.random() < 0.02 else 1) for _ in range(40_000)]
    duplicates = [0.077 + 0.04 * math.exp(0.35 * random.gauss(0, 1)) for _ in times]
    seen = [(min(a, b), b < a) for a, b in zip(times, duplicates, strict=True)]
    truth = sorted(times)[int(0.95 * len(times))]
    assert survival_of(seen).quantile(0.95) == pytest.approx(truth, rel=0.02)
    winners = sorted(elapsed for elapsed, censored in seen if not censored)
    assert winners[int(0.95 * len(winners))] < 0.95 * truth
