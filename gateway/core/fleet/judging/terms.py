"""Terms of every ejection: the windows that lead to it, the probes that end it, and how many replicas may be out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.core.fleet.health.evidence import EjectionReason
from gateway.core.fleet.health.replica_health import CAPPED, ReplicaHealth
from gateway.core.fleet.replica import BaseReplica
from gateway.core.pool_spec import Ejection

STRIKES: Final = 3
"""Windows in a row in which a replica has to stand out."""
TOLD_STRIKES: Final = 1
"""As many are enough if another gateway has ejected the replica for the same reason."""
PROBES: Final = 2.0
"""Total weight, or number, of probes needed to decide whether a replica is still an outlier."""
PROOF: Final = 2.0
"""A replica comes back early after good probes in a row. Their weight must reach `PROBES` x this x its number of
ejections.
"""
SMALL_SHARE: Final = 0.25
"""This share of a pool, but at most two replicas and at least one, may be ejected even if `max_share` allows fewer."""


def are_enough(strikes: int, reason: EjectionReason, own: ReplicaHealth) -> bool:
    """Whether a replica has stood out often enough to be ejected."""
    return strikes >= (TOLD_STRIKES if reason.value in own.elsewhere else STRIKES)


def places(replicas: Sequence[BaseReplica], ejection: Ejection) -> int:
    """Number of further replicas that may be ejected for slowness or odd answers."""
    return most_slow(len(replicas), ejection.max_share) - sum(1 for r in replicas if r.health.out in CAPPED)


def most_slow(replicas: int, share: float) -> int:
    """How many of `replicas` may be ejected for slowness or odd answers at the same time. `share`: the policy's
    `max_share`.
    """
    return max(1, min(2, int(SMALL_SHARE * replicas)), int(share * replicas))
