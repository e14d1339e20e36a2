"""A snapshot of a large fleet is taken in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import cast

from gateway.core.controller import Controller
from gateway.core.policy import Policy
from gateway.core.snapshot import ReplicaView, Snapshot
from gateway.observe.snapshots import REPLICAS_AT_ONCE, snapshot_in_pieces
from tests.observe.made import POLICY, policy

LARGE = policy(replicas=1000)


class Counted:
    """A controller, and the number of replicas that it copied since the last pause."""

    def __init__(self, policy: Policy) -> None:
        self.inner = Controller(policy, Random(5))
        self.copied = 0

    @property
    def policy(self) -> Policy:
        return self.inner.policy

    def replica_views(self, names: Sequence[str], now: float) -> Mapping[str, ReplicaView]:
        found = self.inner.replica_views(names, now)
        self.copied += len(found)
        return found

    def snapshot(self, now: float, seen: Mapping[str, ReplicaView]) -> Snapshot:
        found = self.inner.snapshot(now, seen)
        self.copied += sum(seen.get(view.name) is not view for pool in found.pools for view in pool.replicas)
        return found


def pieces(counted: Counted, after: Policy | None = None) -> tuple[list[int], Snapshot]:
    """Replicas copied before each pause, and the snapshot. `after`: a policy that replaces the first in a pause."""
    reading = snapshot_in_pieces(cast(Controller, counted), lambda: 1.0)
    found: list[int] = []
    try:
        while True:
            counted.copied = 0
            reading.send(None)
            found.append(counted.copied)
            if after is not None:
                counted.inner.configure(after, 1.0)
    except StopIteration as end:
        return [*found, counted.copied], end.value


def test_snapshot_of_a_large_fleet_is_that_taken_at_once_in_pieces_of_a_few_replicas() -> None:
    counted = Counted(LARGE)
    sizes, found = pieces(counted)
    assert max(sizes) == REPLICAS_AT_ONCE
    assert sum(sizes) == 1001
    assert found == counted.inner.snapshot(1.0)


def test_snapshot_during_a_reload_has_the_replicas_of_the_new_policy() -> None:
    for before, after in ((LARGE, POLICY), (POLICY, replace(LARGE, generation=2))):
        counted = Counted(before)
        _, found = pieces(counted, after)
        assert found == counted.inner.snapshot(1.0)
        assert [len(pool.replicas) for pool in found.pools] == [len(pool.replicas) for pool in after.pools.values()]
