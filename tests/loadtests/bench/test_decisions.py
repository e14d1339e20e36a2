"""The policy of the bench, and the fleet in which the decisions alone are timed."""

from __future__ import annotations

import hashlib

import pytest

from gateway.core.commands import Commit, Refuse
from gateway.core.results import Reason
from loadtests.bench import canned
from loadtests.bench.decisions import (
    ENDS,
    IN_FLIGHT,
    PROMPT_BYTES,
    PROMPT_TOKENS,
    Decisions,
    Fleet,
    fleet_policy,
    run_decisions,
)


def test_the_policy_of_the_decisions_bench_has_keys_objectives_limits_and_pools() -> None:
    policy = fleet_policy(8)
    key = policy.keys[hashlib.sha256(canned.KEY.encode()).digest()]
    tier = policy.tiers[key.tier]
    assert len(policy.keys) == 100
    assert len(tier.slo.objectives()) == 5
    assert None not in (tier.limits.requests_per_min, tier.limits.tokens_per_min, tier.limits.concurrency)
    assert {len(pool.replicas) for pool in policy.pools.values()} == {7, 1}
    assert all(pool.slots for pool in policy.pools.values())


def test_a_steady_fleet_answers_every_request_and_keeps_its_load() -> None:
    fleet = Fleet(8)
    fleet.serve(500)
    [short, long] = fleet.snapshot().pools
    assert (short.in_flight, long.in_flight, short.queued) == (8 * IN_FLIGHT, 0, 0)
    # Requests are spread over the replicas.
    assert max(replica.in_flight for replica in short.replicas) <= 2 * IN_FLIGHT


def test_turns_of_a_warm_fleet_find_their_conversation_in_the_cache_of_one_replica() -> None:
    fleet = Fleet(4, warm=True)
    fleet.serve(300)
    [short, _] = fleet.snapshot().pools
    caches = [replica.cache for replica in short.replicas]
    assert all(cache.predicted_tokens > 20_000 for cache in caches)
    assert sum(cache.predicted_tokens for cache in caches) > 0.9 * 200 * ENDS[-1] / PROMPT_BYTES * PROMPT_TOKENS


def test_decisions_bench_reports_the_cpu_time_of_its_requests() -> None:
    result = run_decisions(Decisions(4, requests=200))
    assert result.errors == []
    assert result.requests == 200
    assert result.cpu_s > 0


def test_decisions_bench_fails_if_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="did not stay steady"):
        Fleet(4).hear([Commit(1, 1), Refuse(1, Reason.QUEUE_FULL)])
