"""Computes the replicas that a load needs, and its waits, cost and outages.

    in flight = rate x latency                              Little's law (J. D. C. Little, 1961)
    replicas  = ceil(in flight / (slots x utilization))     by slots
    replicas  = ceil(rate / (per replica x utilization))    by a measured rate per replica

Waits are computed for one queue for all slots (`queueing`), as a gateway has. For comparison, they are also computed
for one queue per replica, as with blind load balancing. If a replica is measured to serve a lower rate than slots /
latency, requests hold its slots longer by the same factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.plan.availability import Availability, availability
from gateway.plan.queueing import Waits, waits
from gateway.plan.terms import BARE, Cost, Terms, above_0, share

FUZZ = 1e-9
"""A quotient that exceeds an integer by less than this counts as the integer, because of rounding: 12000 x .04 must be
480.
"""
CURVE_AT = (0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""The curve of waits has a row for each of these utilisations."""
MAX_REPLICAS = 100_000
MAX_BUSY_SLOTS = 1e9
"""A load of more busy slots than this is refused, since the time to compute its waits grows with the root of them."""
MIN_REPLICAS = 1e-12
"""A load of fewer replicas than this is refused. Such a load comes from a mistyped option, and computing with it would
lose precision.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The load to size for. Raises ValueError that names the option and says what would be right."""

    rate_per_s: float
    latency_s: float | None = None
    """Mean time that a request holds a slot: its e2e latency without the wait."""
    slots: int | None = None
    """Number of requests that one replica works on at a time."""
    per_replica_per_s: float | None = None
    """Measured requests per second that one replica can serve."""
    utilization: float = 1.0
    """Target utilisation of the replicas at this rate (above 0, at most 1)."""
    p99_wait_s: float | None = None
    """If given, the plan has enough replicas for a p99 wait of at most this."""
    availability: float | None = None
    """Share (0-1) of the time in which one replica is up."""
    terms: Terms = BARE

    def __post_init__(self) -> None:
        self.terms.check_pools(())
        above_0("--rate", self.rate_per_s, "requests per second, such as 9000")
        above_0("--latency", self.latency_s, "seconds that a request holds a slot, such as 0.12")
        above_0("--slots", self.slots, "requests that a replica works on at once, such as 40")
        above_0("--per-replica", self.per_replica_per_s, "requests per second that one replica carries, such as 450")
        above_0("--p99-wait", self.p99_wait_s, "seconds, such as 0.05")
        share("--utilization", self.utilization, "0.7 for 70%")
        share("--availability", self.availability, "0.999 for 99.9% of the time")
        if self.slots is not None and self.latency_s is None:
            raise ValueError("--slots needs --latency: how long does a request hold a slot?")
        if self.latency_s is None and self.per_replica_per_s is None:
            raise ValueError("give the time of a request (--latency), or the rate of a replica (--per-replica)")
        if self.p99_wait_s is not None and self.slots is None:
            raise ValueError("--p99-wait needs --slots and --latency: waits are computed from them")
        busy = 0.0 if self.full is None or self.full > MAX_REPLICAS else self.full * (self.slots or 0)
        if busy > MAX_BUSY_SLOTS:
            raise ValueError(
                f"this traffic would keep {busy:.3g} slots busy, and waits are computed for at most "
                f"{MAX_BUSY_SLOTS:.3g}: look at --rate, --latency and --slots again"
            )
        if self.full is not None and self.full < MIN_REPLICAS:
            raise ValueError(
                f"this traffic would keep only {self.full:.3g} replicas busy: look at "
                f"{'--rate and --per-replica' if self.slots is None else '--rate, --latency and --slots'} again"
            )

    @property
    def in_flight(self) -> float | None:
        """L in Little's law: mean number of requests in replicas."""
        return None if self.latency_s is None else self.rate_per_s * self.latency_s

    @property
    def full(self) -> float | None:
        """Number of replicas that the load would keep fully busy; None if neither slots nor a rate is known."""
        by_slots = None if self.slots is None or self.in_flight is None else self.in_flight / self.slots
        by_rate = None if self.per_replica_per_s is None else self.rate_per_s / self.per_replica_per_s
        return max((n for n in (by_slots, by_rate) if n is not None), default=None)

    @property
    def capacity_per_s(self) -> float | None:
        """Requests per second that one fully busy replica serves."""
        return None if self.full is None else self.rate_per_s / self.full


@dataclass(frozen=True, slots=True)
class Point:
    """Utilisation and waits of one number of replicas under the load."""

    replicas: int
    utilization: float
    """The load divided by the replicas' capacity. At 1 or more the replicas cannot serve the load."""
    waits: Waits | None
    """Waits with one queue for all replicas; None if the queue grows without end, or if slots are unknown."""
    apart: Waits | None
    """Waits with a queue at each replica."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The computed plan. Fields are None if the given options do not determine them."""

    load: Load
    in_flight: float | None
    capacity_per_s: float | None
    replicas_by_slots: int | None
    replicas_by_rate: int | None
    replicas_by_wait: int | None
    replicas_needed: int | None
    """Number of replicas needed: the largest of the three numbers above."""
    replicas: int | None
    """Number of replicas needed, plus the spare ones."""
    planned: Point | None
    one_lost: Point | None
    """The load with one replica lost."""
    replicas_one_lost: int | None
    """Number of replicas that keep the target utilisation even if one of them is lost."""
    cost: Cost | None
    availability: Availability | None
    curve: tuple[Point, ...]


def plan(load: Load) -> Plan:
    """Compute the plan for a load. Raises ValueError if more than `MAX_REPLICAS` would be needed."""
    by_slots, by_rate, by_wait = _by_slots(load), _by_rate(load), _by_wait(load)
    needed = max((n for n in (by_slots, by_rate, by_wait) if n is not None), default=None)
    replicas = None if needed is None else needed + load.terms.spare
    return Plan(
        load=load,
        in_flight=load.in_flight,
        capacity_per_s=load.capacity_per_s,
        replicas_by_slots=by_slots,
        replicas_by_rate=by_rate,
        replicas_by_wait=by_wait,
        replicas_needed=needed,
        replicas=replicas,
        planned=None if replicas is None else point(load, replicas),
        one_lost=None if replicas is None or replicas < 2 else point(load, replicas - 1),
        replicas_one_lost=None if needed is None else needed + 1,
        cost=None if needed is None else load.terms.cost({"": needed}, load.rate_per_s),
        availability=_availability(load, replicas),
        curve=() if replicas is None or needed is None else _curve(load, needed, replicas),
    )


def point(load: Load, replicas: int) -> Point:
    """Utilisation and waits of `replicas` (>= 1) under a load. Raises ValueError if the capacity of a replica is
    unknown.
    """
    full, slots = load.full, load.slots
    if full is None:
        raise ValueError("the capacity of a replica is not known: give --slots, or --per-replica")
    utilization = full / replicas
    if slots is None:
        return Point(replicas, utilization, None, None)
    service_s = full * slots / load.rate_per_s
    return Point(
        replicas,
        utilization,
        waits(full * slots, replicas * slots, service_s),
        waits(utilization * slots, slots, service_s),
    )


def _by_slots(load: Load) -> int | None:
    if load.in_flight is None or load.slots is None:
        return None
    return _whole(load.in_flight / (load.slots * load.utilization))


def _by_rate(load: Load) -> int | None:
    if load.per_replica_per_s is None:
        return None
    return _whole(load.rate_per_s / load.per_replica_per_s / load.utilization)


def _by_wait(load: Load) -> int | None:
    """The fewest replicas whose p99 wait is short enough; None if no p99 wait is required.

    The number is found by bisection, because more replicas never make waits longer.
    """
    if load.p99_wait_s is None or load.full is None:
        return None
    high = low = int(load.full * (1.0 - FUZZ))  # with this many replicas, the queue grows without end
    while not _short_enough(load, high):
        _bounded(high + 1)
        low, high = high, min(2 * high + 1, MAX_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _short_enough(load, middle) else (middle, high)
    return high


def _short_enough(load: Load, replicas: int) -> bool:
    found = point(load, replicas).waits if replicas else None
    return found is not None and load.p99_wait_s is not None and found.p99_s <= load.p99_wait_s


def _whole(quotient: float) -> int:
    return _bounded(quotient * (1.0 - FUZZ))


def _bounded(replicas: float) -> int:
    if replicas > MAX_REPLICAS:
        raise ValueError(
            f"this traffic would take {replicas:.3g} replicas or more: look at --rate and at what a replica carries"
        )
    return max(1, math.ceil(replicas))


def _availability(load: Load, replicas: int | None) -> Availability | None:
    """Availability of the replicas. Enough are up if their utilisation is below 1."""
    if load.availability is None or replicas is None or load.full is None:
        return None
    return availability(load.availability, replicas, _whole(load.full))


def _curve(load: Load, needed: int, replicas: int) -> tuple[Point, ...]:
    """Points from the fewest replicas that can serve the load to twice as many, and the point of the plan itself."""
    assert load.full is not None
    counts = {_whole(min(load.full / at, MAX_REPLICAS)) for at in (1.0, *CURVE_AT)} | {needed, replicas}
    return tuple(point(load, count) for count in sorted(counts))
