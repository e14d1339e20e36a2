"""Percentiles, shares and intervals of runs are correct."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any, cast

import pytest

from gateway.core.policy import Caps, Value
from gateway.core.pool_spec import Timeouts
from gateway.sim.analysis.report import difference, differences, mean, ratio, summary
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result, latency
from gateway.sim.run.run import simulate
from gateway.sim.workload.arrivals import Arrival, Poisson
from tests.sim.made import ENFORCE, arrival, policy, tier


class TestIntervals:
    def test_interval_covers_the_mean_as_often_as_it_claims(self) -> None:
        draw = Random(7)
        covered = 0
        for _ in range(100):
            found = mean([draw.gauss(5.0, 2.0) for _ in range(20)])
            assert found.low is not None
            assert found.high is not None
            assert found.low <= found.value <= found.high
            covered += found.low <= 5.0 <= found.high
        assert 0.88 <= covered / 100 <= 0.99

    def test_pairing_by_seed_removes_noise_that_both_runs_share(self) -> None:
        draw = Random(3)
        noise = [draw.gauss(0.0, 10.0) for _ in range(20)]
        ours = [100.0 + n + draw.gauss(1.0, 0.1) for n in noise]
        theirs = [100.0 + n for n in noise]
        found = difference(ours, theirs)
        assert found.low is not None
        assert found.high is not None
        assert 0.9 < found.low < 1.0 < found.high < 1.1
        alone = mean(ours)
        assert alone.low is not None
        assert alone.value - alone.low > 20 * (found.value - found.low)

    def test_reported_ratio_is_the_ratio_of_the_means(self) -> None:
        found = ratio([2.0, 6.0], [1.0, 3.0])
        assert found is not None
        assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
        assert ratio([1.0, 1.0], [0.0, 1.0]) is None

    def test_bootstrap_interval_is_deterministic(self) -> None:
        assert mean([1.0, 2.0, 4.0]) == mean([1.0, 2.0, 4.0])

    def test_single_seed_has_no_interval(self) -> None:
        assert asdict(mean([3.0])) == {"value": 3.0, "low": None, "high": None, "n": 1}

    def test_mean_of_no_values_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="at least one value"):
            mean([])


def test_percentiles_are_values_that_occurred() -> None:
    assert asdict(latency([])) == {"n": 0, "p50": None, "p95": None, "p99": None}
    assert asdict(latency([5.0])) == {"n": 1, "p50": 5.0, "p95": 5.0, "p99": 5.0}
    values = [float(i) for i in range(1, 201)]
    Random(1).shuffle(values)
    assert asdict(latency(values)) == {"n": 200, "p50": 100.0, "p95": 190.0, "p99": 198.0}


class TestResult:
    """Ten requests in ten seconds, one after the other, by hand."""

    GOLD = tier("gold", weight=4.0, ttft_s=1.0)
    BULK = tier("bulk", priority=1, weight=1.0, ttft_s=0.05, caps=Caps(max_tokens_default=20))

    def run(self, **more: Any) -> Result:
        arrivals = [arrival(float(i), 300 if i < 5 else 2000, 10, tier="bulk" if i % 2 else "gold") for i in range(10)]
        return simulate(policy(self.GOLD, self.BULK), arrivals, options=Options(duration_s=10.0, **more))

    def test_goodput_is_reported_by_request_by_weight_and_by_token(self) -> None:
        found = self.run()
        # Only two of the five `bulk` requests, with short prompts, have their first token within 50 ms.
        assert {name: (row.counted, row.good) for name, row in found.tiers.items()} == {"gold": (5, 5), "bulk": (5, 2)}
        assert (found.offered, found.finished, found.good) == (10, 10, 7)
        assert found.goodput == 0.7
        assert found.weighted == pytest.approx((4 * 5 + 2) / (4 * 5 + 5))
        assert found.token_weighted == pytest.approx((3 * 310 + 2 * 2010 + 2 * 310) / (5 * 310 + 5 * 2010))
        assert found.good_per_s == 0.7

    def test_tier_that_counts_tokens_is_weighted_by_them(self) -> None:
        bulk = replace(self.BULK, value=Value.TOKENS)
        arrivals = [arrival(float(i), 300 if i < 5 else 2000, 10, tier="bulk" if i % 2 else "gold") for i in range(10)]
        found = simulate(policy(self.GOLD, bulk), arrivals, options=Options(duration_s=10.0))
        share = 2 * 310 / (2 * 310 + 3 * 2010)
        assert found.weighted == pytest.approx((4 * 5 + 5 * share) / (4 * 5 + 5))

    def test_attainment_is_reported_by_prompt_length(self) -> None:
        lengths = self.run().tiers["bulk"].lengths
        assert {name: (share.counted, share.good) for name, share in lengths.items()} == {
            "256-1023": (2, 2),
            "1024-4095": (3, 0),
        }

    def test_reported_latencies_are_those_of_the_engine(self) -> None:
        gold = self.run().tiers["gold"]
        assert (gold.ttft.n, gold.queue.p99) == (5, 0.0)
        assert gold.ttft.p50 == pytest.approx(0.010 + 300 * 0.05e-3)
        assert gold.ttft.p99 == pytest.approx(0.010 + 2000 * 0.05e-3)

    def test_busy_share_is_the_time_in_engine_steps(self) -> None:
        found = self.run()
        e2e = [row.e2e for row in found.tiers.values()]
        assert 0.05 < found.busy < 0.25
        assert found.busy < max(latency.p99 or 0.0 for latency in e2e)
        assert found.in_system == pytest.approx(found.busy)
        assert found.little == pytest.approx(found.busy)

    def test_warm_up_requests_are_served_and_not_counted(self) -> None:
        found = self.run(warmup_s=4.5)
        assert (found.arrived, found.offered, found.seconds) == (10, 5, 5.5)
        assert all(
            "256-1023" not in row.lengths or row.lengths["256-1023"].counted == 0 for row in found.tiers.values()
        )

    def test_timeline_counts_by_arrival_and_includes_the_warm_up(self) -> None:
        timeline = self.run(warmup_s=4.5).timeline
        assert timeline.offered == timeline.dispatched == (1,) * 10
        assert timeline.good == (1, 1, 1, 1, 1, 0, 1, 0, 1, 0)

    def test_arrivals_after_the_duration_are_left_out(self) -> None:
        arrivals = [arrival(float(i)) for i in range(10)]
        assert simulate(policy(), arrivals, options=Options(duration_s=4.0)).offered == 4


class TestRefusals:
    def test_refusals_are_misses_by_reason(self) -> None:
        hasty = tier(timeouts=Timeouts(queue_s=0.5), admission=ENFORCE)
        found = simulate(policy(hasty, slots=1, queue_limit=2), [arrival(0.01 * i, 100, 200) for i in range(5)])
        (row,) = found.tiers.values()
        assert row.counted == 5 == row.finished + sum(row.misses.values())
        assert row.finished < 5
        assert found.goodput == found.good / 5

    def test_invalid_requests_are_counted_apart(self) -> None:
        found = simulate(policy(max_prompt_tokens=100), [arrival(0.0, 50), arrival(1.0, 500)])
        (row,) = found.tiers.values()
        assert (row.offered, row.counted, row.outcomes) == (2, 1, {"ok": 1, "invalid": 1})
        assert found.goodput == 1.0


class TestFloor:
    def test_floor_is_the_token_share_of_a_tier_that_waits_throughout_a_window(self) -> None:
        rules = policy(tier("first", 0), tier("last", 1), slots=1)
        # More than enough of `last` from the start; of `first` one every second from 20 s on.
        arrivals = [arrival(0.001 * i, 1000, 50, tier="last") for i in range(100)]
        arrivals += [arrival(20.0 + i, 1000, 50, tier="first") for i in range(20)]
        found = simulate(rules, arrivals, options=Options(duration_s=40.0))
        first, last = found.tiers["first"].floor, found.tiers["last"].floor
        assert (first.windows, last.windows) == (4, 4)
        assert (first.backlogged, last.backlogged) == (0, 3)  # at the very start nobody waits
        assert first.share is not None
        assert last.share is not None
        assert first.share + last.share == pytest.approx(1.0)
        assert last.least is not None
        assert 0.2 < last.least < last.share < 1.0
        assert (last.short, last.least_short) == (3, last.least)
        assert len(last.shares) == 4
        assert min(cast(Any, last.shares[1:])) == last.least
        assert [(a or 0.0) + (b or 0.0) for a, b in zip(first.shares, last.shares, strict=True)] == pytest.approx(
            [1.0] * 4
        )

    def test_refused_tier_falls_short_even_if_no_request_waits(self) -> None:
        hasty = tier("last", 1, timeouts=Timeouts(queue_s=0.5))
        arrivals = [arrival(2.0 * i, 4000, 50, tier="first" if i % 2 else "last") for i in range(20)]
        arrivals += [arrival(20.1 + 0.001 * i, 1000, 50, tier="last") for i in range(10)]
        found = simulate(policy(tier("first"), hasty, slots=1), sorted(arrivals, key=lambda a: a.at))
        floor = found.tiers["last"].floor
        assert (floor.windows, floor.backlogged, floor.short) == (3, 0, 1)
        assert floor.least_short is not None
        assert floor.least is None

    def test_token_share_is_0_for_a_starved_tier_and_none_where_no_tier_got_tokens(self) -> None:
        rules = policy(tier("first"), tier("last", 1))
        found = simulate(rules, [arrival(i, 100, 5, tier="first") for i in (1.0, 2.0, 25.0, 31.0)])
        assert found.tiers["first"].floor.shares == (1.0, None, 1.0)
        assert found.tiers["last"].floor.shares == (0.0, None, 0.0)
        assert (found.tiers["first"].floor.share, found.tiers["last"].floor.share) == (1.0, 0.0)
        brief = simulate(rules, [arrival(i, 100, 5, tier="first") for i in (1.0, 2.0)])
        assert [(t.floor.windows, t.floor.share) for t in brief.tiers.values()] == [(0, None)] * 2
        assert summary([brief]).tiers["last"]["token_share"] is None


class TestSummary:
    @staticmethod
    def runs(slots: int, name: str) -> list[Result]:
        return [
            replace(simulate(policy(slots=slots), Poisson(30.0, 20.0).arrivals(seed), seed=seed), policy=name)
            for seed in (1, 2, 3)
        ]

    def test_summary_is_the_mean_over_seeds(self) -> None:
        runs = self.runs(64, "wide")
        found = summary(runs)
        assert (found.policy, found.seeds) == ("wide", (1, 2, 3))
        assert found.figures["goodput"].value == pytest.approx(sum(r.goodput for r in runs) / 3)
        p99 = found.tiers["default"]["ttft_p99_s"]
        assert p99 is not None
        assert p99.value == pytest.approx(sum(r.tiers["default"].ttft.p99 or 0.0 for r in runs) / 3)

    def test_reported_differences_are_paired_by_seed(self) -> None:
        wide, narrow = self.runs(64, "wide"), self.runs(4, "narrow")
        found = {row.figure: row for row in differences(wide, narrow[::-1])}
        assert set(found) == {"goodput", "weighted", "token_weighted"}
        row = found["goodput"]
        assert (row.policy, row.against) == ("wide", "narrow")
        gaps = [a.goodput - b.goodput for a, b in zip(wide, narrow, strict=True)]
        assert row.difference.value == pytest.approx(sum(gaps) / 3)
        assert row.difference.low == pytest.approx(min(gaps), abs=0.05)

    def test_every_compared_policy_gets_the_same_arrivals(self) -> None:
        wide, narrow = self.runs(64, "wide"), self.runs(4, "narrow")
        assert [r.tiers["default"].tokens for r in wide] == [r.tiers["default"].tokens for r in narrow]
        first: list[list[Arrival]] = [list(Poisson(30.0, 20.0).arrivals(2)) for _ in range(2)]
        assert first[0] == first[1]
