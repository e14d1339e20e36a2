"""The arms of a split: counted, compared, and judged only with enough data."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from gateway.core.policy import Model, Policy
from gateway.core.request import Outcome, Reason
from gateway.observe.metrics.arms import ArmVerdict, difference
from gateway.observe.metrics.differences import Estimate, deviations, quantile_of, share
from gateway.observe.metrics.families import RequestFamilies
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.metrics.window import EDGES, Quantiles

from .made import ASK, OK, POLICY


def split(big: int = 95, small: int = 5) -> Policy:
    models = {name: Model(name, ("short",)) for name in ("v1", "v2")}
    shared = Model("chat", ("short",), split=(("v1", big), ("v2", small)))
    return replace(POLICY, models={**models, "chat": shared})


class Told:
    """Metrics of the requests of a split."""

    def __init__(self) -> None:
        self.policy = split()
        self.metrics = Metrics(self.policy)

    def hear(self, arm: str, requests: int, ttft_s: float, failed: int = 0) -> None:
        """This many requests, of which `failed` failed; TTFT is spread from .5 to 1.5 times the given one."""
        random = Random(f"{arm} {requests}")
        request = replace(ASK, policy=self.policy, model=self.policy.models[arm], split="chat")
        for number in range(requests):
            ok = replace(OK, request=request, ttft_s=ttft_s * (0.5 + random.random()))
            error = replace(
                OK, request=request, outcome=Outcome.ERROR, why=Reason.UPSTREAM_ERROR, good=False, ttft_s=None
            )
            self.metrics.ended(error if number < failed else ok)

    def verdict(self) -> ArmVerdict:
        return self.metrics.arms.differences(self.policy.models["chat"])["v2"].verdict()


def test_slower_split_arm_is_called_worse() -> None:
    told = Told()
    told.hear("v1", 950, 0.2)
    told.hear("v2", 50, 0.4)
    assert told.verdict() is ArmVerdict.WORSE


def test_split_arm_that_fails_more_often_is_called_worse() -> None:
    told = Told()
    told.hear("v1", 950, 0.2, failed=5)
    told.hear("v2", 100, 0.2, failed=20)
    assert told.verdict() is ArmVerdict.WORSE
    found = told.metrics.arms.differences(told.policy.models["chat"])["v2"]
    assert found.errors is not None
    assert found.errors.value == pytest.approx(0.2 - 5 / 950)
    assert found.errors.low > 0


def test_faster_split_arm_is_called_better() -> None:
    told = Told()
    told.hear("v1", 950, 0.4)
    told.hear("v2", 100, 0.1)
    assert told.verdict() is ArmVerdict.BETTER


def test_split_arm_whose_latency_differs_within_the_tolerance_is_called_alike() -> None:
    told = Told()
    told.hear("v1", 20_000, 0.2)
    told.hear("v2", 20_000, 0.206)
    found = told.metrics.arms.differences(told.policy.models["chat"])["v2"]
    assert found.ttft_p99_s is not None
    assert found.tolerance_p99_s > found.ttft_p99_s.low > 0
    assert found.verdict() is ArmVerdict.ALIKE


def test_equal_split_arm_is_called_alike() -> None:
    told = Told()
    told.hear("v1", 1900, 0.2, failed=20)
    told.hear("v2", 100, 0.2, failed=1)
    assert told.verdict() is ArmVerdict.ALIKE


def test_split_arm_with_few_requests_gets_no_verdict() -> None:
    told = Told()
    told.hear("v1", 950, 0.2)
    told.hear("v2", 29, 9.0, failed=29)
    assert told.verdict() is ArmVerdict.TOO_FEW


def test_changed_split_weights_restart_the_comparison_and_keep_the_counters() -> None:
    told = Told()
    told.hear("v1", 950, 0.2)
    told.hear("v2", 50, 0.4)
    told.metrics.configure(split())
    assert told.verdict() is ArmVerdict.WORSE
    told.metrics.configure(split(80, 20))
    assert told.verdict() is ArmVerdict.TOO_FEW
    families = {family.name: family for family in RequestFamilies(told.metrics).collect()}
    rows = {
        tuple(sample.labels.values()): sample.value
        for sample in families["tailgate_arm_requests"].samples
        if sample.value
    }
    assert rows == {("chat", "v1", "ok"): 950, ("chat", "v2", "ok"): 50}


def test_requests_of_other_models_count_for_no_split_arm() -> None:
    told = Told()
    told.metrics.ended(replace(OK, request=replace(ASK, policy=told.policy, model=told.policy.models["v1"])))
    told.metrics.ended(replace(OK, request=replace(ASK, policy=told.policy, split="gone")))
    assert all(not any(facts.outcomes.values()) for facts in told.metrics.arms.facts.values())


def test_equal_split_arms_are_called_worse_in_fewer_than_1_of_20_runs() -> None:
    """150 runs of 1,000 requests, with a look after every fiftieth. With z = 1.96, one equal arm in seven is called
    worse."""
    accused = 0
    policy = split()
    asks = {arm: replace(ASK, policy=policy, model=policy.models[arm], split="chat") for arm in ("v1", "v2")}
    fine = {
        arm: [replace(OK, request=request, ttft_s=ttft) for ttft in (0.1, 0.2, 0.3, 0.8)]
        for arm, request in asks.items()
    }
    failed = {arm: replace(OK, request=request, outcome=Outcome.ERROR, good=False) for arm, request in asks.items()}
    for seed in range(150):
        random, arms = Random(seed), Metrics(policy).arms
        for number in range(1, 1001):
            arm = "v2" if random.random() < 0.2 else "v1"
            arms.ended(failed[arm] if random.random() < 0.05 else random.choice(fine[arm]))
            if number % 50 == 0:
                verdict = difference(arms.facts["chat", "v2"], arms.facts["chat", "v1"]).verdict()
                if verdict is ArmVerdict.WORSE:
                    accused += 1
                    break
    assert accused <= 7


def test_split_intervals_allow_for_many_looks_and_narrow_with_requests() -> None:
    assert deviations(400, 1e9) > 2.5
    widths = [share(0.1 * n, n, deviations(n, 1e9)) for n in (50, 500, 5000)]
    assert widths[0].high - widths[0].low > widths[1].high - widths[1].low > widths[2].high - widths[2].low


def test_interval_of_a_share_of_0_or_1_is_one_sided() -> None:
    assert share(0, 40, 2.0).low == 0.0 < share(0, 40, 2.0).high
    assert share(40, 40, 2.0).high == 1.0 > share(40, 40, 2.0).low


def test_split_quantile_beyond_the_counts_is_not_estimated() -> None:
    seen = Quantiles()
    for number in range(100):
        seen.histogram.add(0.1 + number / 100)
    assert quantile_of(EDGES, seen.histogram.counts, 0.99, 3.0) is None
    median = quantile_of(EDGES, seen.histogram.counts, 0.5, 2.0)
    assert median is not None
    assert median.low == pytest.approx(0.5, rel=0.05)
    assert median.high == pytest.approx(0.7, rel=0.05)


def test_margins_of_a_difference_combine_those_of_both_figures() -> None:
    found = Estimate(5.0, 2.0, 9.0).minus(Estimate(1.0, -3.0, 2.0))
    assert (found.value, found.low, found.high) == (4.0, 4.0 - math.hypot(3, 1), 4.0 + math.hypot(4, 4))


def test_ttft_and_e2e_of_each_arm_are_exported() -> None:
    told = Told()
    told.hear("v1", 30, 0.2)
    told.hear("v2", 20, 0.2, failed=5)
    families = {family.name: family for family in RequestFamilies(told.metrics).collect()}
    for name in ("tailgate_arm_ttft_seconds", "tailgate_arm_e2e_seconds"):
        counts = {s.labels["arm"]: s.value for s in families[name].samples if s.name == f"{name}_count"}
        assert counts == {"v1": 30, "v2": 15}, "only requests that finished have an end"
