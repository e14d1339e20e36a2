"""The model names that the replicas of a pool list. A replica that has told its list gets requests for these alone.

A replica whose list is unknown takes any name. So does one whose list has a wildcard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.core.fleet.replica import BaseReplica


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
