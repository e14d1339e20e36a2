"""Decides when found addresses come into use, and when they are removed. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.fleet.discovery.source import Listing

MAX_PART: Final = 3
"""At most one in `MAX_PART` replicas is removed within the hold-down time, but one always may be. A source that loses
most of its addresses at once is more often wrong than right, and two thirds of a fleet carry its usual load."""


class Membership:
    """The addresses of one pool that are in use.

    An address that is listed is in use at once. One that is no longer listed is removed at once, with these exceptions:
    - no more than a third is removed within `hold_down_s`;
    - an address that had left and come back within `hold_down_s` must be away for `hold_down_s`;
    - if its source is not certain, or one has told nothing yet, it stays.

    They do not count for an address whose replica is out of service, or that ends by the word of its source.
    """

    def __init__(self, hold_down_s: float, urls: Iterable[str] = ()) -> None:
        """`urls`: addresses in use before the sources have told anything."""
        self._hold_down_s = hold_down_s
        self._urls: dict[str, None] = dict.fromkeys(urls)
        self._absent_at: dict[str, float] = {}
        """By address in use that is no longer listed: since when."""
        self._removed_at: dict[str, float] = {}
        """By address that was removed a short time ago: when."""
        self._flapping: dict[str, float] = {}
        """By address that came back soon after it was removed: when."""
        self._removals: deque[float] = deque()
        """Times of removals that count against the limit of a third."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses in use, in the order in which they came."""
        return tuple(self._urls)

    @property
    def held(self) -> int:
        """Number of addresses that no source lists any more, and that stay for the present."""
        return len(self._absent_at)

    def settle(self, listings: Mapping[object, Listing | None], is_out: Callable[[str], bool], now: float) -> bool:
        """Compare with the last listing of each source; None if it has told nothing. Returns whether `urls` changed.

        `is_out`: whether the replica at an address gets no requests.
        """
        before = self.urls
        told = [listing for listing in listings.values() if listing is not None]
        listed = {url: None for listing in told for url in sorted(listing.urls)}
        ending = {url for listing in told for url in listing.ending} - listed.keys()
        is_certain = len(told) == len(listings) and all(listing.is_certain for listing in told)
        self._forget(now)
        for url in listed:
            self._absent_at.pop(url, None)
            if url not in self._urls:
                self._urls[url] = None
                if self._removed_at.pop(url, None) is not None:
                    self._flapping[url] = now
        for url in self._urls:
            if url not in listed:
                self._absent_at.setdefault(url, now)
        limit = max(1, (len(self._urls) + len(self._removals)) // MAX_PART)
        for url in sorted(self._absent_at, key=self._absent_at.__getitem__):
            if url in ending or is_out(url):
                self._remove(url, now)
            elif is_certain and self._may_go(url, limit, now):
                self._removals.append(now)
                self._remove(url, now)
        return self.urls != before

    def _may_go(self, url: str, limit: int, now: float) -> bool:
        if url in self._flapping:
            return self._absent_at[url] + self._hold_down_s <= now
        return len(self._removals) < limit

    def _remove(self, url: str, now: float) -> None:
        del self._urls[url]
        del self._absent_at[url]
        self._flapping.pop(url, None)
        self._removed_at[url] = now

    def _forget(self, now: float) -> None:
        """Forget removals and flaps that are older than the hold-down time."""
        old = now - self._hold_down_s
        while self._removals and self._removals[0] <= old:
            self._removals.popleft()
        for times in (self._removed_at, self._flapping):
            for url in [url for url, at in times.items() if at <= old and url not in self._absent_at]:
                del times[url]
