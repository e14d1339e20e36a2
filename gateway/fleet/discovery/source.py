"""A source of addresses, and what it tells."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.core.pool_spec import Discovery
from gateway.policy.sections.values import read_url


@dataclass(frozen=True, slots=True)
class Listing:
    """All addresses of a source at one time, as URLs of replicas."""

    urls: frozenset[str]
    ending: frozenset[str] = frozenset()
    """URLs that are no longer in `urls` because the source says that their replicas end."""
    is_certain: bool = True
    """Whether an address that is missing is gone. If not, its own health check must agree."""


_read_url: Final = lru_cache(16384)(read_url)
"""A watch reads all addresses again at each event."""


class SourceError(Exception):
    """Raised for an answer of a source that cannot be used. The text says what is wrong, without secrets."""


@dataclass(frozen=True, slots=True)
class SourceTools:
    """Callbacks of one source of one pool."""

    told: Callable[[Listing], None]
    """Called with each listing, also if it is unchanged."""
    failed: Callable[[str], None]
    """Called with the reason of each failure. The last listing stays in use."""


class Follower(ABC):
    """Follows one source of addresses."""

    def __init__(self, discovery: Discovery, tools: SourceTools) -> None:
        self._discovery = discovery
        self._tools = tools

    @abstractmethod
    async def run(self) -> None:
        """Follow the source until cancelled. Only a bug raises an exception."""

    def _url(self, address: str) -> str:
        """The URL of a replica at `host:port`, or at a URL of its own. Raises `SourceError`."""
        given = address if "://" in address else f"{self._discovery.scheme}://{address}{self._discovery.path}"
        if "://" not in address and not re.search(r":\d+$", address):
            raise SourceError(f"{address[:100]!r} has no port: write host:port")
        try:
            return str(_read_url(given))
        except ValueError as error:
            raise SourceError(f"{address[:100]!r} {error}") from None


def authority(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
