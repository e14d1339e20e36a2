"""A policy for engines at another speed is the same in scaled time."""

from __future__ import annotations

import pytest

from gateway.core.policy import Policy
from gateway.core.pool_spec import Timeouts
from gateway.policy.load import load_text
from loadtests.experiments.runner import SETUP
from loadtests.live.scaled import key_of, scaled

URLS = ("http://127.0.0.1:7001", "http://127.0.0.1:7002")
KEYS = (key_of("tier-0", "a"), key_of("tier-2", "b"))
TEXT = (SETUP / "policy.yaml").read_text()


def at(scale: float, text: str = TEXT) -> Policy:
    return load_text(scaled(text, scale, URLS, KEYS), "scaled.json", {})


@pytest.mark.parametrize("scale", [0.2, 0.25, 0.5, 1.0, 4.0])
def test_scaled_policy_stretches_objectives_and_timeouts_alike(scale: float) -> None:
    before, after = load_text(TEXT, "policy.yaml", {}), at(scale)
    assert list(after.tiers) == list(before.tiers)
    for name, tier in before.tiers.items():
        other = after.tiers[name]
        assert other.slo.ttft_bound_s == pytest.approx(tier.slo.ttft_bound_s / scale)
        for timeout in ("queue_s", "ttft_s", "idle_s", "total_s"):
            assert getattr(other.timeouts, timeout) == pytest.approx(getattr(tier.timeouts, timeout) / scale)
        assert (other.weight, other.priority, other.floor) == (tier.weight, tier.priority, tier.floor)
    health, watched = before.pools["main"].health, after.pools["main"].health
    assert watched.scrape_interval_s == pytest.approx(health.scrape_interval_s / scale)
    assert watched.interval_s == pytest.approx(health.interval_s / scale)
    assert watched.timeout_s == health.timeout_s


def test_scaled_policy_has_the_given_replicas_and_keys() -> None:
    policy = at(0.5)
    assert [replica.url for replica in policy.pools["main"].replicas] == list(URLS)
    assert policy.pools["main"].slots == 64
    assert len(policy.keys) == 2


def test_scaling_time_stretches_every_objective_but_no_count() -> None:
    text = TEXT.replace(
        "slo: {ttft: {p99: 1s}}", "slo: {ttft: {p50: 250ms, p99: 1s}, e2e: {p95: 1m, up_to_tokens: 100}}"
    )
    slo = at(0.25, text).tiers["tier-0"].slo
    assert [objective.threshold_s for objective in slo.ttft] == [1.0, 4.0]
    assert slo.e2e_bound_s == 240.0
    assert slo.e2e_up_to_tokens == 100


def test_scaling_time_keeps_unlimited_timeouts() -> None:
    text = TEXT.replace("timeouts: {queue: 6s}", "timeouts: {queue: 6s, total: none}")
    timeouts = at(0.5, text).tiers["tier-2"].timeouts
    assert timeouts == Timeouts(queue_s=12.0, ttft_s=120.0, idle_s=60.0, total_s=float("inf"))


def test_scaled_policy_may_have_only_one_pool() -> None:
    with pytest.raises(ValueError, match="one pool"):
        scaled(TEXT.replace("pools:\n  main:", "pools:\n  other: {replicas: ['http://a:1']}\n  main:"), 1, URLS, KEYS)
