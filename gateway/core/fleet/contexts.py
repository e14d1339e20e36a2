"""Contexts of the replicas of one pool: how many tokens of prompt and answer together each of them takes."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.fleet.replica import BaseReplica


class Contexts:
    """The longest and the shortest context of a pool. A prompt that not all replicas take goes to those that do."""

    __slots__ = ("least_tokens", "longest_tokens", "shortest_tokens")

    def __init__(self) -> None:
        self.longest_tokens: int | None = None
        """Context that no replica exceeds; None if any replica's is unknown."""
        self.least_tokens: int | None = None
        """The least context that any model of any replica has; None if none is known."""
        self.shortest_tokens: int | None = None
        """The shortest known context, if replicas differ; else None."""

    def compare(self, replicas: Sequence[BaseReplica]) -> None:
        """Learn the contexts of all replicas."""
        self.least_tokens = min((r.context_tokens for r in replicas if r.context_tokens is not None), default=None)
        contexts = {replica.longest_tokens for replica in replicas}
        known = [tokens for tokens in contexts if tokens is not None]
        self.longest_tokens = max(known, default=None) if len(known) == len(contexts) else None
        self.shortest_tokens = min(known, default=None) if len(contexts) > 1 else None

    def tell_apart(self, needs_tokens: int) -> bool:
        """Whether not every replica has the context that a request needs."""
        return self.shortest_tokens is not None and needs_tokens > self.shortest_tokens

    def fits(self, needs_tokens: int, replica: BaseReplica) -> bool:
        """Whether `replica` has the context that a request needs, or else the longest of the pool."""
        held = replica.longest_tokens
        return held is None or held >= needs_tokens or held == self.longest_tokens
