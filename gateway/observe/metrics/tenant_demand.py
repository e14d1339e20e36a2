"""Counts the requests of tenants since they were last read, so that gateways can share limits by demand."""

from __future__ import annotations

Tenancy = tuple[str, str]
"""(tenant, tier)"""


class TenantDemand:
    """Requests by tenant and tier, refused ones included."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[Tenancy, int] = {}

    def asked(self, tenant: str, tier: str) -> None:
        """A tenant sent a request."""
        key = tenant, tier
        self._asked[key] = self._asked.get(key, 0) + 1

    def ended(self, tenant: str, tier: str) -> None:
        """A request is over, so the use of its tenant's limits has changed."""
        key = tenant, tier
        if key not in self._asked:
            self._asked[key] = 0

    def take(self) -> dict[Tenancy, int]:
        """New requests of each tenant whose use has changed. They count as read."""
        asked, self._asked = self._asked, {}
        return asked
