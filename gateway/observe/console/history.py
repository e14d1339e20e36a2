"""The last hour of figures, for the charts of the console. Reading them takes the request path no time."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.estimators.histograms import quantile
from gateway.core.sample import GatewayLoad
from gateway.observe.metrics.facts import TierFacts
from gateway.observe.metrics.metrics import WHYS, Metrics
from gateway.observe.metrics.window import NEVER, Quantiles

SPAN_S: Final = 3600.0
STEP_S: Final = 5.0
REPLICA_STEP_S: Final = 20.0
"""Step of the figures of replicas. Their small charts need no more points, and a fleet may have a thousand."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
COUNTS: Final = ("offered", "finished", "good")
LATENCIES: Final = ("ttft", "tpot")
OF_REPLICAS: Final = ("ttft_s", "kv", "hit_rate")
DIGITS: Final = 4
Values = Sequence[float | None]
ReplicaCaches = tuple[str, str, float | None, float | None]
"""(pool, replica, share (0-1) of its KV cache in use, share (0-1) of prompt tokens found there); None: not known."""


@dataclass(frozen=True, slots=True)
class TierPoint:
    """Figures of one tier. `counts`: requests within the step, in the order of `COUNTS`. `latencies`: seconds over the
    last minute, by latency and quantile; None without an answer.
    """

    counts: tuple[float, ...]
    in_flight: int
    latencies: tuple[float | None, ...]


NOTHING: Final = TierPoint((0, 0, 0), 0, (None,) * (len(LATENCIES) * len(QUANTILES)))


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """Figures of one step that ended `at`, by the monotonic clock. `waiting`: queued requests, by the tiers of one
    priority. `reasons`: requests not served within the step.
    """

    at: float
    tiers: Mapping[str, TierPoint]
    waiting: Mapping[str, int]
    reasons: Mapping[str, float]


class ReplicaColumns:
    """Figures of one replica, one value for each step of `REPLICA_STEP_S`. NaN: not known."""

    __slots__ = ("columns", "count", "ttft_sum")

    def __init__(self) -> None:
        self.columns = tuple(array("f") for _ in OF_REPLICAS)
        self.count, self.ttft_sum = 0.0, 0.0
        """First tokens since the start, and the sum of their seconds, at the last step."""

    def add(self, values: Iterable[float | None]) -> None:
        """Add one step, and drop what is older than an hour."""
        for column, value in zip(self.columns, values, strict=True):
            column.append(math.nan if value is None else value)
            if len(column) > SPAN_S / REPLICA_STEP_S:
                del column[0]


class LastHour:
    """Takes a point every `STEP_S`. Memory is bounded by the numbers of tiers and replicas."""

    def __init__(
        self, metrics: Metrics, load: Callable[[float], GatewayLoad], caches: Callable[[], Iterable[ReplicaCaches]]
    ) -> None:
        """`caches`: of all replicas of the policy in force."""
        self.points: deque[HistoryPoint] = deque(maxlen=int(SPAN_S / STEP_S))
        self.replicas: dict[tuple[str, str], ReplicaColumns] = {}
        """By (pool, replica), for the replicas of the policy in force."""
        self.replicas_at = NEVER
        """Time of the last step of replicas."""
        self._metrics = metrics
        self._load = load
        self._caches = caches
        self._due = self._replicas_due = NEVER
        self._counts: dict[str, Sequence[float]] = {}
        self._whys: Sequence[float] = [0.0] * len(WHYS)

    def sample(self, now: float) -> None:
        """Take the points that are due. Called several times a second."""
        if now < self._due:
            return
        is_first, self._due = self._due == NEVER, now + STEP_S
        self._metrics.roll(now)
        point = self._point(now)
        if not is_first:
            self.points.append(point)
        if now >= self._replicas_due:
            self._replicas_due = now + REPLICA_STEP_S
            self._sample_replicas(now)

    def _point(self, now: float) -> HistoryPoint:
        waiting: dict[int, int] = {}
        in_flight: dict[str, int] = {}
        for pool in self._load(now).pools:
            for priority, count in pool.waiting:
                waiting[priority] = waiting.get(priority, 0) + count
            for name, count in pool.by_tier:
                in_flight[name] = in_flight.get(name, 0) + count
        tiers: dict[str, TierPoint] = {}
        names: dict[int, list[str]] = {}
        for tier in self._metrics.policy.tiers.values():
            facts = self._metrics.tiers[tier.name]
            latencies = (*_quantiles(facts.ttft, now), *_quantiles(facts.tpot, now))
            counts = self._increase(tier.name, facts)
            tiers[tier.name] = TierPoint(counts, in_flight.get(tier.name, 0), latencies)
            names.setdefault(tier.priority, []).append(tier.name)
        queues = {", ".join(names[priority]): waiting.get(priority, 0) for priority in sorted(names)}
        before, self._whys = self._whys, self._metrics.whys.copy()
        reasons = {why.value: n - m for why, n, m in zip(WHYS, self._whys, before, strict=True) if n > m}
        return HistoryPoint(now, tiers, queues, reasons)

    def _increase(self, name: str, facts: TierFacts) -> tuple[float, ...]:
        counts = (facts.counts[TierFacts.OFFERED], facts.counts[TierFacts.FINISHED], facts.counts[TierFacts.GOOD])
        before, self._counts[name] = self._counts.get(name, (0, 0, 0)), counts
        return tuple(n - m for n, m in zip(counts, before, strict=True))

    def _sample_replicas(self, now: float) -> None:
        self.replicas_at = now
        firsts: dict[tuple[str, str], tuple[float, float]] = {}
        for (_, pool, replica), cell in self._metrics.cells.items():
            count, seconds = firsts.get((pool, replica), (0.0, 0.0))
            firsts[pool, replica] = count + sum(cell.ttft.counts), seconds + cell.ttft.sum
        before, self.replicas = self.replicas, {}
        for pool, replica, kv, hit_rate in self._caches():
            key = pool, replica
            columns = self.replicas[key] = before.get(key) or ReplicaColumns()
            count, ttft_sum = firsts.get(key, (0.0, 0.0))
            new = count - columns.count
            ttft_s = (ttft_sum - columns.ttft_sum) / new if new > 0 else None
            columns.count, columns.ttft_sum = count, ttft_sum
            columns.add((ttft_s, kv, hit_rate))

    # ---- documents

    def since(self, at: float, wall_s: float) -> dict[str, object]:
        """The points that ended after `at`, by the monotonic clock, as columns. `wall_s`: Unix time at its zero."""
        points: list[HistoryPoint] = []
        for point in reversed(self.points):
            if point.at <= at:
                break
            points.append(point)
        points.reverse()
        names = dict.fromkeys(name for point in points for name in point.tiers)
        queues = dict.fromkeys(queue for point in points for queue in point.waiting)
        whys = dict.fromkeys(why for point in points for why in point.reasons)
        return {
            "step_s": STEP_S,
            "at_unix_s": [round(wall_s + point.at, 1) for point in points],
            "tiers": {name: _columns([point.tiers.get(name, NOTHING) for point in points]) for name in names},
            "waiting": {queue: [point.waiting.get(queue, 0) for point in points] for queue in queues},
            "reasons": {why: [point.reasons.get(why, 0) for point in points] for why in whys},
        }

    def of_replicas(self, pool: str) -> Iterator[tuple[str, dict[str, Values]]]:
        """Each replica of a pool with its figures, the latest last: mean TTFT, shares (0-1) of KV in use and of cache
        hits.
        """
        for (name, replica), found in self.replicas.items():
            if name == pool:
                yield replica, {name: _known(column) for name, column in zip(OF_REPLICAS, found.columns, strict=True)}


def _quantiles(latency: Quantiles, now: float) -> tuple[float | None, ...]:
    counts, edges = latency.read(now), latency.histogram.edges
    return tuple(quantile(edges, counts, q) for q in QUANTILES.values())


def _columns(points: Sequence[TierPoint]) -> dict[str, object]:
    latencies = iter(zip(*(point.latencies for point in points), strict=True))
    counts = zip(*(point.counts for point in points), strict=True)
    return {
        **{name: [*column] for name, column in zip(COUNTS, counts, strict=True)},
        "in_flight": [point.in_flight for point in points],
        **{name: {which: _rounded(next(latencies)) for which in QUANTILES} for name in LATENCIES},
    }


def _rounded(values: Values) -> Values:
    return [None if value is None else round(value, DIGITS) for value in values]


def _known(values: Iterable[float]) -> Values:
    return [None if math.isnan(value) else round(value, DIGITS) for value in values]
