"""Takes a snapshot of a large fleet in pieces, between which the event loop forwards tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.core.controller import Controller
from gateway.core.snapshot import ReplicaView, Snapshot

REPLICAS_AT_ONCE: Final = 100
"""Replicas that are copied, or encoded, without a pause: 1 to 2 ms."""


async def snapshot_in_pieces(controller: Controller, clock: Callable[[], float]) -> Snapshot:
    """A snapshot whose replicas are copied before the rest, so they may be a few milliseconds older."""
    names = [spec.name for pool in controller.policy.pools.values() for spec in pool.replicas]
    seen: dict[str, ReplicaView] = {}
    for start in range(0, len(names), REPLICAS_AT_ONCE):
        seen |= controller.replica_views(names[start : start + REPLICAS_AT_ONCE], clock())
        await asyncio.sleep(0)
    return controller.snapshot(clock(), seen)
