"""Filters and orders of replicas with a free slot: by model, by LoRA adapter, by slow start, by load."""

from __future__ import annotations

from typing import TypeVar

from gateway.core.fleet.replica import BaseReplica
from gateway.core.fleet.served_names import ServedNames
from gateway.core.request import Request

R = TypeVar("R", bound=BaseReplica)


def with_model(free: list[R], names: ServedNames, request: Request) -> list[R]:
    """Those of `free` that take the model of `request`. The list itself in most pools, whose lists are equal."""
    name = request.sent_name
    return free if names.is_taken_by_all(name) else [replica for replica in free if replica.takes_name(name)]


def with_adapter(free: list[R], adapter: str) -> list[R]:
    """Replicas that have a LoRA adapter loaded. If there are none, the replicas that list it and can load it."""
    able = [replica for replica in free if replica.adapters.takes(adapter)]
    return [replica for replica in able if replica.adapters.has_loaded(adapter)] or able


def takes_now(replica: BaseReplica, request: Request) -> bool:
    """Whether `replica` takes the model of `request`, and has room for its LoRA adapter if it names one."""
    return replica.takes_name(request.sent_name) and (not request.adapter or replica.adapters.takes(request.adapter))


def eased_in(free: list[R]) -> list[R]:
    """`free` without the replicas in slow start that already have their share of the others' mean load."""
    others = [replica.in_flight for replica in free if replica.share >= 1.0]
    if not others:
        return free
    mean = sum(others) / len(others)
    return [r for r in free if r.share >= 1.0 or r.in_flight < max(1.0, r.share * mean)]


def by_load(replica: BaseReplica) -> tuple[bool, float, float, int]:
    """A sort key: suspected replicas last, then by unread prompt tokens, then by requests."""
    return (
        replica.outlier_score.suspected,
        replica.slowness * (replica.unprefilled_tokens + replica.imputed_tokens),
        replica.slowness * (replica.in_flight + replica.imputed),
        replica.rank,
    )
