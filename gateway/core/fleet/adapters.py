"""LoRA adapters of one replica: which it lists, which it has loaded, and whether one more fits."""

from __future__ import annotations

from gateway.core.sample import Sample


class Adapters:
    """LoRA adapters of one replica: those that it lists, and those in use.

    Only the gateway's own requests decide whether one more adapter fits. A scrape only adds adapters that other
    gateways loaded, and only while the engine is busy: an idle vLLM still names the adapters of its last step.
    """

    __slots__ = ("_own", "_scraped", "awaited", "leaving", "limit", "listed")

    def __init__(self) -> None:
        self.listed: frozenset[str] = frozenset()
        self.limit: int | None = None
        """Limit on the adapters in one batch (vLLM: --max-loras); None if unknown."""
        self.leaving = ""
        """Adapter that gets no more requests here, so that `awaited` can be loaded; empty if there is none."""
        self.awaited = ""
        self._own: dict[str, int] = {}
        """Number of attempts under way, by adapter."""
        self._scraped: frozenset[str] = frozenset()

    def observe(self, sample: Sample) -> None:
        """Learn the adapters from a list of models, or from a scrape."""
        if sample.adapters is not None:
            self.listed = frozenset(sample.adapters)
        if sample.max_adapters is not None:
            self.limit = sample.max_adapters
        if sample.active_adapters is not None:
            is_busy = bool(sample.running or sample.waiting)
            self._scraped = frozenset(sample.active_adapters) if is_busy else frozenset()

    def opened(self, name: str) -> None:
        """An attempt for this adapter was sent."""
        self._own[name] = self._own.get(name, 0) + 1

    def closed(self, name: str) -> None:
        """An attempt for this adapter has ended."""
        left = self._own[name] - 1
        if left:
            self._own[name] = left
        else:
            del self._own[name]
            if name == self.leaving:
                self.make_way("", "")

    def make_way(self, leaving: str, awaited: str) -> None:
        """Send no more requests for `leaving`, so that `awaited` can be loaded. A call with two empty names ends
        this.
        """
        self.leaving, self.awaited = leaving, awaited

    def loaded(self) -> tuple[str, ...]:
        """Adapters with requests, from this gateway or others, sorted."""
        return tuple(sorted(self._scraped.union(self._own)))

    def has_loaded(self, name: str) -> bool:
        """Whether the replica has requests for this adapter, from this gateway or others."""
        return name in self._own or name in self._scraped

    def takes(self, adapter: str) -> bool:
        """Whether the adapter is listed, and is loaded or has room to be loaded."""
        return adapter in self.listed and self.has_room(adapter)

    def has_room(self, name: str) -> bool:
        """Whether a request for this adapter fits beside the requests that this gateway has sent."""
        if name == self.leaving:
            return False
        return name in self._own or self.limit is None or len(self._own) < self.limit

    def in_use(self) -> dict[str, int]:
        """Number of attempts under way, by adapter."""
        return dict(self._own)
