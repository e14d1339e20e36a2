"""Searches for the number of replicas that a policy needs for its traffic, in simulations with the gateway's own
decisions.

The goodput knee is the fewest replicas that reach the target at the wanted rate. Every number of replicas gets the same
arrivals, seed by seed, so none is luckier. Goodput is assumed to grow with the number of replicas. The number is found
by doubling and halving. Several pools are first scaled together. Then each is made as small as possible.

In runs with a lost replica, the replica is lost during the warm-up. So the figures show the remaining replicas, not the
requests that broke off. Replicas of a pool are copies of each other. The queue of a pool grows with their number; all
other limits are those of the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.plan.sizing import Load, Plan, plan
from gateway.plan.terms import Terms
from gateway.sim.analysis.compare import Comparison, Contender
from gateway.sim.analysis.report import Interval, mean
from gateway.sim.engine.fleet import Fault, FleetSpec, Harm
from gateway.sim.engine.profiles import Profile
from gateway.sim.run.options import Options
from gateway.sim.run.results import Result
from gateway.sim.workload.arrivals import Traffic

MAX_REPLICAS = 4096
"""Limit on the replicas of one pool."""
NO_GAIN = 0.002
"""If doubling the replicas twice gains less goodput than this, more replicas do not help. The rule applies only if
there are more replicas than concurrent requests. With fewer, goodput may be 0 even after several doublings.
"""
MIN_TIMES = 1e-3
MAX_TIMES = 16.0
"""Largest multiple of the wanted rate that is tried. Requests that tenants' limits refuse do not count in goodput. So
with such limits, any rate might reach the target.
"""
PRECISION = 0.01
"""Precision of the rate at the knee, as a share of it."""

Counts = tuple[tuple[str, int], ...]
"""(pool, number of replicas) pairs."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Results of one fleet at one rate, over all seeds."""

    replicas: dict[str, int]
    """By pool."""
    lost: str | None
    """Pool that has lost a replica; None if no pool has."""
    rate_per_s: float
    """Rate at which requests arrived."""
    goodput: Interval
    busy: float
    """Share of the time in which a replica had a step under way."""
    slots: float
    kv: float
    cached: float
    """Share (0-1) of the prompt tokens that were found in prefix caches."""
    in_system: float
    """L in Little's law: mean number of requests in replicas and queue."""
    output_tokens: float
    """Mean tokens of an answer."""
    target: float
    reached: bool

    @property
    def total(self) -> int:
        """Number of replicas of all pools together."""
        return sum(self.replicas.values())

    @property
    def crowded(self) -> bool:
        """Whether there are more concurrent requests than replicas in the smallest pool."""
        return self.in_system > min(self.replicas.values())

    @property
    def certain(self) -> bool:
        """Whether the confidence interval of its goodput, if there is one, is entirely on one side of the target."""
        low, high = self.goodput.low, self.goodput.high
        return low is None or high is None or low >= self.target or high < self.target


@dataclass(frozen=True, slots=True)
class Knee:
    """Result of a search for the knee."""

    target: float
    needed: Tried
    """The result at the wanted rate of the fewest replicas that reach the target."""
    limit: Tried
    """The result of these replicas at the highest rate at which they still reach the target: the goodput knee."""
    limit_is_known: bool
    """Whether the highest rate is known. It is unknown if it is at least MAX_TIMES the wanted rate, because no higher
    rate is tried.
    """
    per_replica_per_s: float
    """Rate at the knee, divided by the number of replicas."""
    when_lost: list[Tried]
    """For each pool: the result of these replicas at the wanted rate, with one replica of the pool lost."""
    replicas_one_lost: dict[str, int]
    """By pool: the fewest replicas that reach the target even if any one of them is lost."""
    by_slots: Plan | None
    """A plan by arithmetic for the same load, computed from the time for which requests held a slot. Its spare replicas
    are those that the knee needs in addition. None with several pools, because these cannot take each other's requests.
    None also if no request ran.
    """
    tried: list[Tried]
    """Results of all fleets that were tried, by number of replicas and rate."""


@dataclass(slots=True)
class Search:
    """A search for the knee. `on_run` is called after each run."""

    policy: Policy
    workload: Traffic
    profiles: Mapping[str, Profile]
    """By pool."""
    target: float
    """Goodput (0-1) to reach."""
    seeds: tuple[int, ...]
    options: Options
    jobs: int = 1
    on_run: Callable[[Result], None] = lambda _: None
    _tried: dict[tuple[Counts, str | None, float], Tried] = field(default_factory=dict)

    def run(self) -> Knee:
        """Find the knee. Raises ValueError if no number of replicas is enough, and the errors of `simulate`."""
        counts = self.fewest_of_all()
        needed = self._try(counts)
        limit = self._limit(counts)
        pools = [name for name, _ in counts]
        return Knee(
            target=self.target,
            needed=needed,
            limit=limit,
            limit_is_known=any(row.rate_per_s > limit.rate_per_s for row in self._tried.values()),
            per_replica_per_s=limit.rate_per_s / needed.total,
            when_lost=[self._try(counts, lost=pool) for pool in pools],
            replicas_one_lost={pool: self._fewest_with_one_lost(counts, pool) for pool in pools},
            by_slots=self._by_slots(needed),
            tried=sorted(
                self._tried.values(), key=lambda t: (t.lost or "", t.total, *t.replicas.values(), t.rate_per_s)
            ),
        )

    def _by_slots(self, needed: Tried) -> Plan | None:
        if len(needed.replicas) > 1 or not needed.slots:
            return None
        (pool,) = self.policy.pools.values()
        engine = FleetSpec(self.profiles).profile(pool.name, "").max_num_seqs
        held_s = needed.slots * engine * needed.total / needed.rate_per_s
        bare = plan(Load(needed.rate_per_s, held_s, min(engine, pool.slots or engine)))
        more = Terms(spare=max(0, needed.total - (bare.replicas_needed or 0)))
        return plan(replace(bare.load, terms=more))

    def fewest_of_all(self) -> Counts:
        """The fewest replicas of each pool that reach the target. Raises ValueError, and the errors of `simulate`."""
        given = {name: len(pool.replicas) for name, pool in self.policy.pools.items()}
        largest = max(given.values())

        def alike(n: int) -> Counts:
            return tuple((name, math.ceil(count * n / largest)) for name, count in given.items())

        counts = alike(fewest(lambda n: self._try(alike(n)), largest))
        for pool in given if len(given) > 1 else ():
            counts = self._fewest_of(pool, counts)
        return counts

    def _fewest_of(self, pool: str, counts: Counts) -> Counts:
        """The counts with the smallest number of replicas of one pool that reaches the target. Other pools are
        unchanged.
        """
        return _with(counts, pool, fewest(lambda n: self._try(_with(counts, pool, n)), dict(counts)[pool]))

    def _fewest_with_one_lost(self, counts: Counts, pool: str) -> int:
        """The number of replicas of `pool` with which one of them may be lost. Mostly it is one more; it is the same if
        the pool has spare room or no work.
        """
        if self._try(counts, lost=pool).reached:
            return dict(counts)[pool]
        least = dict(counts)[pool] + 1
        return fewest(lambda n: self._try(_with(counts, pool, n), lost=pool), least, least)

    def limit(self, replicas: Mapping[str, int]) -> Tried:
        """The result of a fleet at the highest rate at which it reaches the target. Raises ValueError if there is
        none.
        """
        counts, times = tuple(replicas.items()), 1.0
        while not self._try(counts, times=times).reached:
            times /= 2.0
            if times < MIN_TIMES:
                raise ValueError(
                    f"goodput is below {self.target:g} at any rate: some requests cannot be good; "
                    f"ask for less than --target {self.target:g}, or look at the objectives"
                )
        return self._limit(counts, times)

    def _limit(self, counts: Counts, low: float = 1.0) -> Tried:
        """The result at the highest rate that reaches the target, by bisection between multiples of the wanted rate."""
        high = low * (1.0 + 1.0 / sum(n for _, n in counts))
        while self._try(counts, times=high).reached:
            if high >= MAX_TIMES:
                return self._try(counts, times=high)
            low, high = high, high + 2.0 * (high - low)
        while high - low > PRECISION * low:
            middle = (low + high) / 2
            low, high = (middle, high) if self._try(counts, times=middle).reached else (low, middle)
        return self._try(counts, times=low)

    def _try(self, counts: Counts, lost: str | None = None, times: float = 1.0) -> Tried:
        """The results of a fleet. All results are kept, so that each fleet is simulated only once at a rate."""
        key = counts, lost, times
        if key not in self._tried:
            policy = scaled(self.policy, dict(counts))
            faults = (Fault(self.options.warmup_s / 2, policy.pools[lost].replicas[0].name, Harm.DEAD),) if lost else ()
            workload = self.workload if times == 1.0 else self.workload.faster(times)
            candidate = Contender("the policy", policy, FleetSpec(self.profiles, faults))
            comparison = Comparison((candidate,), workload, self.seeds, self.options)
            (results,) = comparison.run_all(self.jobs, self.on_run)
            self._tried[key] = _tried(counts, lost, results, self.target)
        return self._tried[key]


def fewest(attempt: Callable[[int], Tried], start: int, least: int = 1) -> int:
    """The smallest number >= `least` for which `attempt` reaches the target. The search begins at `start`. Raises
    ValueError.
    """
    low, high = least - 1, start
    best, idle = 0.0, 0
    while not (found := attempt(high)).reached:
        goodput = found.goodput.value
        idle = 0 if found.crowded or goodput >= best + NO_GAIN else idle + 1
        best = max(best, goodput)
        if idle == 2:
            raise ValueError(
                f"goodput stays at {best:.3f}, even with {high} replicas for {found.in_system:.3g} requests at a time: "
                f"some requests cannot be good on these engines; ask for less than --target {found.target:g}, or "
                "look at the objectives"
            )
        if high >= MAX_REPLICAS:
            raise ValueError(
                f"goodput is {goodput:.3f} with {high} replicas of a pool, and more are not tried: plan for a part of "
                "the traffic (--rate)"
            )
        low, high = high, high * 2
    while high - low > 1:
        # First the number is halved, beginning at `start`. Then the search goes on between the last two numbers.
        middle = max(least, high // 2) if low < least else (low + high) // 2
        low, high = (low, middle) if attempt(middle).reached else (middle, high)
    return high


def scaled(policy: Policy, counts: Mapping[str, int]) -> Policy:
    """A copy of the policy with these numbers of replicas in each pool."""
    return replace(policy, pools={name: _resized(pool, counts[name]) for name, pool in policy.pools.items()})


def _resized(pool: PoolSpec, replicas: int) -> PoolSpec:
    copies = (replace(pool.replicas[0], name=f"{pool.name}/{n + 1}") for n in range(replicas))
    specs: tuple[ReplicaSpec, ...] = tuple(copies)
    return replace(pool, replicas=specs, queue_limit=math.ceil(pool.queue_limit * replicas / len(pool.replicas)))


def _with(counts: Counts, pool: str, n: int) -> Counts:
    return tuple((name, n if name == pool else count) for name, count in counts)


def _tried(counts: Counts, lost: str | None, results: list[Result], target: float) -> Tried:
    goodput = mean([result.goodput for result in results])
    runs = len(results)
    return Tried(
        replicas=dict(counts),
        lost=lost,
        rate_per_s=sum(result.offered / result.seconds for result in results) / runs,
        goodput=goodput,
        busy=sum(result.busy for result in results) / runs,
        slots=sum(result.slots for result in results) / runs,
        kv=sum(result.kv for result in results) / runs,
        cached=sum(result.cached for result in results) / runs,
        in_system=sum(result.in_system for result in results) / runs,
        output_tokens=sum(result.output_tokens for result in results) / runs,
        target=target,
        reached=goodput.value >= target,
    )
