"""Computed values of a policy: bounds of objectives, routes, the tighter timeouts."""

import math

import pytest

from gateway.core.policy import Model
from gateway.core.pool_spec import NO_TIMEOUTS, Timeouts
from gateway.core.slo import Metric, Objective, Slo

from .made import policy, pool, tier

P50, P99 = Objective(0.5, 3.0), Objective(0.99, 1.0)


def test_bound_of_a_metric_is_the_threshold_of_its_highest_percentile() -> None:
    slo = Slo(ttft=(P99, P50), e2e=(P50,))
    assert (slo.ttft_bound_s, slo.tpot_bound_s, slo.e2e_bound_s) == (1.0, math.inf, 3.0)


def test_slo_lists_its_objectives_by_metric() -> None:
    slo = Slo(e2e=(P50,), ttft=(P50, P99), tpot=(P99,))
    assert slo.objectives() == (
        (Metric.TTFT, P50),
        (Metric.TTFT, P99),
        (Metric.TPOT, P99),
        (Metric.E2E, P50),
    )


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "e2e_s", "met"),
    [
        (1.0, 0.1, 9.0, True),
        (1.1, 0.1, 9.0, False),
        (1.0, 0.2, 9.0, False),
        (1.0, 0.1, 9.1, False),
        (None, None, 9.0, True),
        (None, None, 9.1, False),
    ],
)
def test_slo_is_met_if_every_observed_latency_is_within_its_bound(
    ttft_s: float | None, tpot_s: float | None, e2e_s: float, met: bool
) -> None:
    slo = Slo(ttft=(P99,), tpot=(Objective(0.99, 0.1),), e2e=(Objective(0.9, 9.0),))
    assert slo.met(ttft_s, tpot_s, e2e_s, 50) is met


def test_every_latency_is_good_without_objectives() -> None:
    assert Slo().met(1e9, 1e9, 1e9, 10)


def test_tighter_timeout_of_two_counts_in_every_phase() -> None:
    assert Timeouts(1, 20, 3, 40).narrowed(Timeouts(10, 2, 30, 4)) == Timeouts(1, 2, 3, 4)
    assert Timeouts(1, 2, 3, 4).narrowed(NO_TIMEOUTS) == Timeouts(1, 2, 3, 4)


def test_timeouts_are_combined_for_each_pair_of_tier_and_pool() -> None:
    tiers = (tier("x", timeouts=Timeouts(5, 5, 5, 5)), tier("y", timeouts=Timeouts(7, 7, 7, 7)))
    rules = policy(pool("p", timeouts=Timeouts(6, 6, 6, 6)), pool("q"), *tiers)
    for _ in range(2):
        found = {(t.name, p): rules.timeouts(t, p).queue_s for t in tiers for p in ("p", "q")}
        assert found == {("x", "p"): 5, ("x", "q"): 5, ("y", "p"): 6, ("y", "q"): 7}


def test_route_lists_the_pools_that_the_tier_may_use_in_the_order_of_the_model() -> None:
    tiers = (tier("any"), tier("bound", pools=("q", "p")), tier("none", pools=("r",)))
    models = (Model("m", ("p", "q")), Model("n", ("q", "r", "p")))
    rules = policy(pool("p"), pool("q"), pool("r"), *tiers, models=models)
    for _ in range(2):
        found = {(m.name, t.name): "".join(p.name for p in rules.route(m, t)) for m in models for t in tiers}
        assert found == {
            ("m", "any"): "pq",
            ("m", "bound"): "pq",
            ("m", "none"): "",
            ("n", "any"): "qrp",
            ("n", "bound"): "qp",
            ("n", "none"): "r",
        }


def test_model_is_found_by_name_or_else_is_the_catch_all() -> None:
    named, other = Model("m", ("p",)), Model("*", ("p",), any_name=True)
    assert policy(pool("p"), models=(named,)).model("x") is None
    assert policy(pool("p"), models=(named, other)).model("x") is other
    assert policy(pool("p"), models=(named, other)).model("m") is named
