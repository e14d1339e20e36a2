"""Little's law, as a check of the process: L = arrival rate x time, for the requests in each pool.

The three figures come from two places. L is the mean number of requests that the server's connections have in a pool
(`proxy.occupancy`) over a window. The arrival rate and the mean time come from the controller: from its `Record`s and
its requests under way. A request counts from its dispatch to the end of its answer, clipped to the window. If its
replica cannot be reached, it counts from its next dispatch. Then the law holds for any window, not only in the long
run. A gap means that the two places disagree. One of them has lost a request, has never released one, or has wrong
times.

The gap is reported for windows at least `SOJOURNS` times as long as the mean time of a request in the pool. In such a
window, requests that cross its edges hardly change the gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.observe.metrics.metrics import Metrics

WINDOW_S = 60.0
"""Length of a window in seconds. It is shorter if the process has not run that long."""
SOJOURNS = 100.0
EVERY_S = 5.0
"""Marks are at least this many seconds apart, however often the figures are read."""
UNREAD_S = 15.0
"""A new mark is due after this many seconds. So a window is at most this much too long."""
MAX_MARKS = 512


@dataclass(frozen=True, slots=True)
class LittleView:
    """Little's law for one pool over one window."""

    pool: str
    window_s: float
    in_flight: float
    """L: mean number of the server's requests in the pool."""
    rate_per_s: float
    """Rate at which requests were dispatched to the pool."""
    time_s: float | None
    """W: mean seconds from the dispatch to the end; None if no request was dispatched."""
    gap: float | None
    """(L - rate x time) / max(L, rate x time). None if the window is too short, or had no requests."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """Sums of one pool since the start."""

    server_s: float = 0.0
    dispatched: int = 0
    held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """All sums at the time `at`."""

    at: float
    pools: Mapping[str, _Flow]


class Little:
    """Reads the figures of both places at the same moment. Some readings are kept as marks. A window can begin at each
    mark.

    `read` must be called whenever `is_due` is True; otherwise windows would become too long.
    """

    def __init__(self, metrics: Metrics, occupancies: Callable[[float], Mapping[str, float]], now: float) -> None:
        self._metrics = metrics
        self._occupancies = occupancies
        self._marks = [_Mark(now, {})]

    def is_due(self, now: float) -> bool:
        """Whether `read` must be called, to set a mark."""
        return now - self._marks[-1].at >= UNREAD_S

    def read(self, now: float, held: Mapping[str, tuple[int, float]]) -> tuple[LittleView, ...]:
        """Little's law for every pool over the window up to `now`. `held`: requests under way (`Controller.held`)."""
        mark = self._mark(now, held)
        views = tuple(self._view(pool, mark) for pool in held)
        if mark.at - self._marks[-1].at >= EVERY_S:
            self._marks.append(mark)
            if len(self._marks) > MAX_MARKS:
                # Every second mark of the older half is dropped. Windows that begin at old marks are long, so few marks
                # are enough.
                self._marks[: MAX_MARKS // 2] = self._marks[: MAX_MARKS // 2 : 2]
        return views

    def _mark(self, now: float, held: Mapping[str, tuple[int, float]]) -> _Mark:
        occupancies = self._occupancies(now)
        ended: dict[str, tuple[int, float]] = {}
        for (_, pool), lane in self._metrics.lanes.items():
            count, seconds = ended.get(pool, (0, 0.0))
            ended[pool] = count + lane.dispatched, seconds + lane.held_s
        pools = {}
        for pool, (open_now, open_s) in held.items():
            count, seconds = ended.get(pool, (0, 0.0))
            pools[pool] = _Flow(occupancies.get(pool, 0.0), count + open_now, seconds + open_s)
        return _Mark(now, pools)

    def _view(self, pool: str, end: _Mark) -> LittleView:
        """Little's law for one pool over `WINDOW_S`, or over a longer window if its requests take longer."""
        view = self._over(pool, WINDOW_S, end)
        all_s = end.at - self._marks[0].at
        while view.window_s < min(all_s, SOJOURNS * (view.time_s or 0.0)):
            # a longer window may have another mean time, so this is repeated
            view = self._over(pool, SOJOURNS * (view.time_s or 0.0), end)
        return view

    def _over(self, pool: str, window_s: float, end: _Mark) -> LittleView:
        """Little's law for one pool, over the shortest window of at least `window_s` that begins at a mark. Without
        such a mark, it is over all time.
        """
        place = bisect_right(self._marks, end.at - window_s, key=lambda mark: mark.at)
        begin = self._marks[max(0, place - 1)]
        before, after = begin.pools.get(pool, _Flow()), end.pools[pool]
        seconds = end.at - begin.at
        # Requests that came back in this window from replicas out of reach may have counted as dispatched in the last.
        dispatched = max(0, after.dispatched - before.dispatched)
        server_s, held_s = max(0.0, after.server_s - before.server_s), max(0.0, after.held_s - before.held_s)
        time_s = held_s / dispatched if dispatched > 0 else None
        most_s = max(server_s, held_s)
        whole = seconds >= SOJOURNS * (time_s or 0.0)
        return LittleView(
            pool=pool,
            window_s=seconds,
            in_flight=server_s / seconds if seconds > 0 else 0.0,
            rate_per_s=dispatched / seconds if seconds > 0 else 0.0,
            time_s=time_s,
            gap=(server_s - held_s) / most_s if most_s > 0 and whole else None,
        )
