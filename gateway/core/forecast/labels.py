"""Admitted requests that wait for the label of their forecast: whether they missed an objective."""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.core.prediction import Forecast
from gateway.core.request_state import RequestState

SPARE: Final = 64
"""A tier's list with at most this many awaited labels is never swept."""


class AwaitedLabels:
    """Admitted requests of one tier, in the order of admission. A request with a label is removed when it is first in
    the list, or by a sweep.

    Without sweeps, an answer that takes minutes would keep all ended requests behind it in memory. A sweep happens when
    the list is twice as long as after the last sweep. So sweeps cost O(1) per request.
    """

    __slots__ = ("_entries", "_most")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, RequestState, Forecast]] = deque()
        self._most = SPARE

    def add(self, at: float, live: RequestState, forecast: Forecast) -> None:
        """Add a request, whose earliest bound passes at `at`."""
        self._entries.append((at, live, forecast))
        if len(self._entries) > self._most:
            self._entries = deque([entry for entry in self._entries if not entry[2].judged])
            self._most = 2 * len(self._entries) + SPARE

    def missed(self, now: float) -> RequestState | None:
        """The next request that has no label yet and has missed its bound; None if there is none. It is removed."""
        entries = self._entries
        while entries:
            at, live, forecast = entries[0]
            if at > now and not forecast.judged:
                break
            entries.popleft()
            if not forecast.judged and live.forecast is forecast and _late(live, now):
                return live
        return None


def _late(live: RequestState, now: float) -> bool:
    """Whether a request missed its earliest bound, whose time has passed. It did if its first token, or its end, has
    not come yet.
    """
    if live.first_at is None:
        return live.ended_at is None
    return live.ended_at is None and live.request.body_at + live.slo.e2e_bound_s <= now
