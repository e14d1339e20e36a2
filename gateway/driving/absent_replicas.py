"""Facts of a predecessor about replicas that are not in the policy yet.

If a source of replicas fails while the gateway starts, its replicas come later. Their facts wait for them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.core.estimators.memory import objects_in
from gateway.driving.local_driver import LocalDriver

KEEP_S: Final = 3600.0
"""Facts are dropped this long after they were written by the process that had learned them."""


class AbsentReplicas:
    """Facts by name of the replica, each with the times at which they were written: `at` by the clock of the process
    that had learned them, and `written_unix_s`.
    """

    def __init__(self, driver: LocalDriver, unix_s: Callable[[], float]) -> None:
        self._driver = driver
        self._unix_s = unix_s
        self._facts: dict[str, Mapping[str, object]] = {}

    def keep(self, memory: Mapping[str, object], written_unix_s: float) -> None:
        """Keep the facts of a memory about replicas that the controller does not have, and those that it had kept."""
        times = {"at": memory.get("at"), "written_unix_s": written_unix_s}
        self._facts = {name: objects_in(facts) for name, facts in objects_in(memory.get("absent")).items()}
        for name, facts in objects_in(memory.get("replicas")).items():
            if not self._has(name, objects_in(facts)):
                self._facts[name] = {**objects_in(facts), **times}
        self.claim()

    def claim(self) -> None:
        """Tell the controller the facts of replicas that it has now."""
        claimed: dict[tuple[float, float], dict[str, object]] = {}
        for name, facts in self.facts().items():
            match facts:
                case {"at": float(at), "written_unix_s": float(written_unix_s)} if self._has(name, facts):
                    claimed.setdefault((at, written_unix_s), {})[name] = facts
                    del self._facts[name]
        for (at, written_unix_s), replicas in claimed.items():
            away_s = max(0.0, self._unix_s() - written_unix_s)
            self._driver.recall({"at": at, "replicas": replicas}, away_s)

    def facts(self) -> dict[str, Mapping[str, object]]:
        """All facts that are not too old, for the next process."""
        oldest_unix_s = self._unix_s() - KEEP_S
        for name, facts in list(self._facts.items()):
            written_unix_s = facts.get("written_unix_s")
            if not isinstance(written_unix_s, float) or written_unix_s < oldest_unix_s:
                del self._facts[name]
        return dict(self._facts)

    def _has(self, name: str, facts: Mapping[str, object]) -> bool:
        """Whether the controller has the replica, in the same pool and at the same address."""
        replica = self._driver.controller.state.fleet.replica(name)
        if replica is None:
            return False
        return (facts.get("pool"), facts.get("url")) == (replica.pool.spec.name, replica.spec.url)
