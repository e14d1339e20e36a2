"""Filters and orders of replicas with a free slot: by model, by LoRA adapter, by slow start, by load.

A replica that has told its list of models gets requests for these names alone. A replica whose list is unknown takes
any name. So does one whose list has a wildcard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

from gateway.core.fleet.replica import BaseReplica
from gateway.core.request import Request
from gateway.core.serving import sent_name

R = TypeVar("R", bound=BaseReplica)


class ServedNames:
    """Counts, for each name, the replicas that list it, so that most questions need no look at the replicas."""

    __slots__ = ("_counts", "_known", "is_mixed")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._known = 0
        """Number of replicas whose list is known."""
        self.is_mixed = False
        """Whether a replica lists a name that another one, whose list is known, does not."""

    def listed(self, replica: BaseReplica, names: frozenset[str]) -> None:
        """Set the names of `replica`; empty if they are unknown. O(names that differ), then O(names)."""
        if names == replica.models:
            return
        for name in replica.models - names:
            left = self._counts[name] - 1
            if left:
                self._counts[name] = left
            else:
                del self._counts[name]
        for name in names - replica.models:
            self._counts[name] = self._counts.get(name, 0) + 1
        self._known += bool(names) - bool(replica.models)
        self.is_mixed = any(count < self._known for count in self._counts.values())
        replica.models = names

    def is_taken_by_all(self, name: str) -> bool:
        """Whether no replica says that it lacks `name`."""
        return self._counts.get(name, 0) == self._known

    def is_taken_by_any(self, name: str, replicas: Collection[BaseReplica]) -> bool:
        """Whether a replica lists `name`, or may serve it because its list is unknown."""
        return self._known < len(replicas) or not replicas or name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)


def with_model(free: list[R], names: ServedNames, request: Request) -> list[R]:
    """Those of `free` that take the model of `request`. The list itself in most pools, whose lists are equal."""
    name = sent_name(request)
    return free if names.is_taken_by_all(name) else [replica for replica in free if replica.takes_name(name)]


def with_adapter(free: list[R], adapter: str) -> list[R]:
    """Replicas that have a LoRA adapter loaded. If there are none, the replicas that list it and can load it."""
    able = [replica for replica in free if replica.adapters.takes(adapter)]
    return [replica for replica in able if replica.adapters.has_loaded(adapter)] or able


def takes_now(replica: BaseReplica, request: Request) -> bool:
    """Whether `replica` takes the model of `request`, and has room for its LoRA adapter if it names one."""
    adapter = request.affinity.adapter
    return replica.takes_name(sent_name(request)) and (not adapter or replica.adapters.takes(adapter))


def eased_in(free: list[R]) -> list[R]:
    """`free` without the replicas in slow start that already have their share of the others' mean load."""
    others = [replica.total_in_flight for replica in free if replica.share >= 1.0]
    if not others:
        return free
    mean = sum(others) / len(others)
    return [r for r in free if r.share >= 1.0 or r.total_in_flight < max(1.0, r.share * mean)]


def by_load(replica: BaseReplica) -> tuple[bool, float, float, int]:
    """A sort key: suspected replicas last, then by unread prompt tokens, then by requests."""
    return (
        replica.health.suspected,
        replica.slowness * (replica.unprefilled_tokens + replica.imputed_tokens),
        replica.slowness * (replica.in_flight + replica.imputed),
        replica.rank,
    )
