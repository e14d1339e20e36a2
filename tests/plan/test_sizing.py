"""Number of replicas: known examples, and the effect of each option."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.plan.availability import at_least, availability
from gateway.plan.sizing import Load, Plan, plan, point
from gateway.plan.terms import BARE, Terms


def of(
    rate_per_s: float, latency_s: float | None = None, slots: int | None = None, terms: Terms = BARE, **more: float
) -> Plan:
    return plan(Load(rate_per_s, latency_s, slots, terms=terms, **more))


# ---- the worked examples of the literature


@pytest.mark.parametrize(
    ("load", "in_flight", "replicas"),
    [
        (Load(12_000, 0.040, 32), 480, 15),
        (Load(8_000, 0.120, 40), 960, 24),
        (Load(9_000, per_replica_per_s=450), None, 20),
        (Load(50, 2.0, 8, utilization=0.8), 100, 16),
        (Load(5_000, 0.0468), 234, None),
    ],
)
def test_plan_of_each_worked_example_is_reproduced(load: Load, in_flight: float | None, replicas: int | None) -> None:
    found = plan(load)
    assert found.replicas == found.replicas_needed == replicas
    assert found.in_flight == (None if in_flight is None else pytest.approx(in_flight))


@pytest.mark.parametrize(("rate", "queue"), [(0.5, 0.5), (0.8, 3.2), (0.9, 8.1), (0.95, 18.05)])
def test_plan_of_one_replica_with_one_slot_is_an_m_m_1_queue(rate: float, queue: float) -> None:
    found = of(rate, 1.0, 1)
    assert found.replicas == 1
    assert found.planned is not None
    assert found.planned.waits is not None
    assert found.planned.waits.queue == pytest.approx(queue)


@pytest.mark.parametrize(
    ("replicas", "all_up"), [(1, 0.999), (10, 0.9900448802), (40, 0.9607702107), (100, 0.9047921471)]
)
def test_chance_that_all_m_replicas_are_up_is_availability_to_the_m(replicas: int, all_up: float) -> None:
    assert availability(0.999, replicas, 1).all_up == pytest.approx(all_up, abs=1e-10)


# ---- what the options do


def test_plan_applies_all_options_together() -> None:
    found = of(9_000, 0.12, 40, terms=Terms(1, 3.0, 200.0), utilization=0.7, availability=0.999)
    assert (found.replicas_by_slots, found.replicas_needed, found.replicas) == (39, 39, 40)
    assert found.planned is not None
    assert found.planned.utilization == pytest.approx(1080 / 1600)
    assert found.one_lost is not None
    assert found.one_lost.replicas == 39
    assert found.one_lost.utilization == pytest.approx(1080 / 1560)
    assert found.replicas_one_lost == 40
    assert found.cost is not None
    assert found.cost.per_hour == 120.0
    assert found.cost.per_million_requests == pytest.approx(120 / (9_000 * 3600) * 1e6)
    assert found.cost.per_million_output_tokens == pytest.approx(found.cost.per_million_requests / 200)
    assert found.availability is not None
    assert found.availability.enough_up == pytest.approx(at_least(0.999, 40, 27))


def test_whole_number_of_replicas_is_not_rounded_up_by_a_float_error() -> None:
    # 0.1 x 3 / 0.3 and the like: doubles say 1.0000000000000002.
    for replicas in range(1, 200):
        assert of(replicas * 7.0, 0.3, 3, utilization=0.7).replicas == replicas


def test_plan_is_decided_by_the_scarcer_of_slots_and_rate() -> None:
    by_slots, by_rate = of(100, 1.0, 10, per_replica_per_s=20), of(100, 1.0, 10, per_replica_per_s=5)
    assert (by_slots.replicas_by_slots, by_slots.replicas_by_rate, by_slots.replicas) == (10, 5, 10)
    assert (by_rate.replicas_by_slots, by_rate.replicas_by_rate, by_rate.replicas) == (10, 20, 20)
    assert by_rate.capacity_per_s == 5
    assert by_rate.planned is not None
    assert by_rate.planned.utilization == pytest.approx(1.0)


def test_replicas_are_added_until_the_p99_wait_is_met() -> None:
    found = of(9_000, 0.12, 40, p99_wait_s=0.01)
    assert found.replicas == found.replicas_by_wait == 28
    longer, short = point(found.load, 27).waits, point(found.load, 28).waits
    assert longer is None
    assert short is not None
    assert short.p99_s <= 0.01
    assert of(9_000, 0.12, 40, p99_wait_s=0.008).replicas == 29
    assert of(0.01, 0.1, 1, p99_wait_s=5.0).replicas == 1


def test_shared_queue_never_waits_longer_than_separate_queues() -> None:
    for row in of(100, 0.5, 8, utilization=0.6).curve:
        if row.waits is not None:
            assert row.apart is not None
            assert row.waits.mean_s <= row.apart.mean_s * (1 + 1e-12)


def test_plan_curve_runs_from_full_to_half_full_and_contains_the_plan() -> None:
    found = of(9_000, 0.12, 40, terms=Terms(spare=3), utilization=0.7)
    counts = [row.replicas for row in found.curve]
    assert counts == sorted(set(counts))
    assert counts[0] == 27
    assert counts[-1] == 54
    assert {39, 42} <= set(counts)


def test_plan_of_a_single_replica_has_no_figures_with_one_lost() -> None:
    assert of(1.0, 1.0, 8).one_lost is None


def test_chance_that_enough_replicas_are_up_is_binomial() -> None:
    assert at_least(0.9, 3, 1) == pytest.approx(1 - 0.1**3)
    assert at_least(0.9, 3, 2) == pytest.approx(0.9**3 + 3 * 0.9**2 * 0.1)
    assert at_least(0.9, 3, 3) == pytest.approx(0.9**3)
    assert at_least(1.0, 3, 3) == 1.0
    assert at_least(0.9, 3, 4) == 0.0
    assert at_least(0.999, 5_000, 4_980) == pytest.approx(1.0, abs=1e-6)
    some = availability(0.5, 2, 1)
    assert (some.all_up, some.any_up) == (0.25, 0.75)


# ---- what is wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate_per_s": 0.0}, r"--rate is 0: give requests per second, such as 9000"),
        ({"rate_per_s": float("nan")}, r"--rate is nan"),
        ({"latency_s": -1.0}, r"--latency is -1: give seconds"),
        ({"slots": 0}, r"--slots is 0: give requests that a replica works on at once"),
        ({"utilization": 70.0}, r"--utilization is 70: it is a share above 0 and at most 1, 0.7 for 70%"),
        ({"availability": 0.0}, r"--availability is 0"),
        ({"latency_s": None}, r"--slots needs --latency"),
        ({"latency_s": None, "slots": None}, r"--latency\), or the rate of a replica \(--per-replica"),
        ({"slots": None, "p99_wait_s": 1.0}, r"--p99-wait needs --slots and --latency"),
    ],
)
def test_bad_plan_load_is_refused_with_the_valid_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Load(100, 1.0, 8), **changes)


def test_plan_at_the_replica_limit_is_accepted() -> None:
    found = plan(Load(60_000, per_replica_per_s=1))
    assert found.replicas == 60_000
    assert found.curve[-1].replicas == 100_000
    assert plan(Load(60_000, 1.0, 1, p99_wait_s=0.5)).replicas_by_wait is not None


def test_plan_beyond_the_replica_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="look at --rate and at what a replica carries"):
        of(1e9, 1e3, 1)


def test_plan_of_more_busy_slots_than_can_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"would keep 2e\+09 slots busy, .* at most 1e\+09: look at --rate, --latency"):
        Load(2e9, 1.0, 1_000_000)
    assert Load(1e9, 1.0, 1_000_000).full == 1000


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"spare": -1}, r"--spare is -1: give the number of extra replicas"),
        ({"price_per_hour": float("inf")}, r"--price is inf: give the price of a replica per hour"),
        ({"price_per_hour": 1e308}, r"--price is 1e\+308: give the price of a replica per hour"),
        ({"output_tokens": 200.0}, r"--output-tokens .* give the --price"),
        ({"output_tokens": 0.0, "price_per_hour": 1.0}, r"--output-tokens is 0: give tokens of the mean answer"),
    ],
)
def test_invalid_plan_terms_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Terms(**terms)
