"""The router that vllm-router and SGLang's gateway use by default, for comparison.

Their documented rule (vllm-router 0.1.15, `cache_aware`): each replica has a tree of past prompts. If the longest match
is above a threshold, the replica with this match is chosen. Here, a set of blocks that never forgets replaces the tree;
their trees are trimmed.
"""

from __future__ import annotations

from gateway.core.fleet.routing import C, RoutingTarget
from gateway.core.request import NO_PREFIX, Prefix


class CacheAware:
    """Parameters of the rule. `threshold`: matched share of a prompt (0-1). `least` and `times`: the difference and the
    ratio between the request counts of two replicas.
    """

    def __init__(self, threshold: float, least: float, times: float) -> None:
        self._threshold, self._least, self._times = threshold, least, times
        self._seen: dict[int, set[int]] = {}

    def sent(self, replica: RoutingTarget) -> None:
        """Nothing is counted: the load of replicas says it."""

    def pick(
        self,
        free: list[C],
        random: float,
        prefix: Prefix = NO_PREFIX,
        request_tokens: float = 0.0,
        home: C | None = None,
    ) -> C:
        """One of `free`."""
        fewest = min(free, key=_requests)
        most = max(replica.in_flight for replica in free)
        if most - fewest.in_flight > self._least and most > self._times * fewest.in_flight:
            chosen = fewest
        else:
            chosen = max(free, key=lambda replica: self._matched(replica, prefix))
            if self._matched(chosen, prefix) <= self._threshold * prefix.size:
                chosen = min(free, key=lambda replica: len(self._seen.get(replica.rank, ())))
        self._seen.setdefault(chosen.rank, set()).update(prefix.blocks)
        return chosen

    def _matched(self, replica: C, prefix: Prefix) -> int:
        """Bytes at the beginning of the prompt that were sent to this replica before."""
        seen, matched = self._seen.get(replica.rank, set()), 0
        for block, end in zip(prefix.blocks, prefix.ends, strict=True):
            if block not in seen:
                break
            matched = end
        return matched


def _requests(replica: C) -> int:
    return replica.in_flight
