"""A swap of a large policy blocks the event loop in slices that grow no faster than the policy."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from dataclasses import replace

import pytest

from gateway.app import Gateway
from gateway.core.policy import Policy
from gateway.core.pool_spec import ReplicaSpec
from gateway.policy import load_text
from gateway.settings import Settings

SMALL, LARGE = (100, 500), (1000, 5000)
"""(number of replicas, number of keys) of the two policies."""
GROWTH = LARGE[0] / SMALL[0]
SLACK = 4.0
"""A linear slice takes 10 times as long for the large policy, and 15 was measured: only the small one fits into the
processor's caches. A quadratic slice takes 100 times as long."""
RELOADS = 5


def _written(replicas: int, keys: int) -> str:
    urls = [f"http://127.1.{i // 250}.{1 + i % 250}:9" for i in range(replicas)]
    digests = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(keys)]
    return "\n".join(
        [
            "apiVersion: tailgate/v1",
            "models: {m: {pools: [main]}}",
            f"pools: {{main: {{replicas: [{', '.join(urls)}]}}}}",
            "tiers: {free: {}}",
            "keys:",
            *(f"  - {{sha256: {digest}, tenant: t{i}}}" for i, digest in enumerate(digests)),
            "",
        ]
    )


def _changed(policy: Policy) -> Policy:
    """The same with half of the replicas at other addresses, and with other keys."""
    main, half = policy.pools["main"], len(policy.pools["main"].replicas) // 2
    moved = tuple(ReplicaSpec(f"{spec.name}0", f"{spec.url}0") for spec in main.replicas[half:])
    keys = [replace(key, sha256=key.sha256[::-1]) for key in policy.keys.values()]
    return replace(
        policy,
        pools={"main": replace(main, replicas=main.replicas[:half] + moved)},
        keys={key.sha256: key for key in keys},
    )


async def _longest_slice_s(replicas: int, keys: int) -> float:
    """CPU seconds of the longest turn of the loop during a swap; the minimum of several reloads."""
    policy = load_text(_written(replicas, keys), "policy.yaml")
    policies = [policy, _changed(policy)]
    # The gateway does not serve: else a thousand failing health checks would dominate the measurement.
    gateway = Gateway(Settings(port=0, admin_port=0, drain_deadline_s=0.0), policies[0])
    slices = []
    for number in range(1, RELOADS + 1):
        gc.collect()
        began = time.thread_time()
        gateway.reloads.configure(policies[number % 2])
        swapped = time.thread_time()
        await asyncio.sleep(0)  # the watches are updated in a later turn
        slices.append(max(swapped - began, time.thread_time() - swapped))
    return min(slices)


@pytest.mark.long
async def test_longest_slice_of_a_reload_grows_at_most_linearly_with_the_policy() -> None:
    small_s = await _longest_slice_s(*SMALL)
    large_s = await _longest_slice_s(*LARGE)
    assert large_s <= SLACK * GROWTH * small_s
