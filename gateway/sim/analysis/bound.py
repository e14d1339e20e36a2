"""The clairvoyant bound: the goodput that no policy can exceed, even with full knowledge of the future.

It is computed by a fluid linear program. The share x_i (0-1) of request i is accepted, and y_ib is the time spent on
its prompt in time bin b:

    maximise    sum w_i x_i                         w: weight; where tokens count, times tokens / mean of the tier
    subject to  sum_b y_ib = prefill_i x_i          its prompt is computed before its deadline,
                y_ib <= overlap of bin b and [arrival_i, deadline_i]        by one replica at a time,
                sum_i y_ib <= E bin_s               on the E replicas there are,
                sum_i (prefill_i + decode_i) x_i <= E horizon_s
                sum_i (prefill_i + in_time_i) x_i <= E horizon_s

with prefill_i = A1 p_i and decode_i = (o_i - 1) (A2 + A0 / max_num_seqs) + A3 (tokens of context its steps read).
A0..A3 are the base, prefill, decode and KV costs of a step (`sim.run.profiles`). p_i and o_i are the tokens of prompt
and answer. in_time_i is the cost of an answer within its TPOT bound T_i. Its share of A0 is different, so it has a
constraint of its own:

    in_time_i = (o_i - 1) (A2 + (A2 + A3 p_i) A0 / (T_i - A0)) + A3 (tokens of context its steps read)

No policy can beat this program. Each of its costs is a part of the engine model's cost, and no part is counted twice: a
step with n decodes takes A0 once, and n <= max_num_seqs. If the steps of an answer take at most T_i on average, few
sequences share their A0 (`FleetCosts.decode_in_time`). Half-computed prompts, steps that are not full, preemptions,
waits within a step, and missed answers cost nothing. Work may be split, moved and interrupted freely, and requests may
be accepted in part. Requests that cannot be good even alone are left out. The program leaves out one thing: a request
that began before the last arrival may still decode after it. Each replica has at most max_num_seqs such requests, and
none begins after the last deadline. `ceiling` adds the largest possible value of this decoding, at the program's own
shadow price of work. So the bound is at most `ceiling`, and no policy exceeds `ceiling`.

The constrained program also keeps what the policy demands. No tier has a larger accepted share than a more urgent tier,
and the least urgent tier gets its floor of the tokens. The accepted share of each prompt length is within 5 points of
its tier's share; otherwise the optimum would drop long prompts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from statistics import fmean
from typing import Protocol

from gateway.core.policy import Policy, Tier, Value
from gateway.sim.analysis.costs import FleetCosts, Job, costs, job_of
from gateway.sim.analysis.program import Program
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.run.tally import length_of
from gateway.sim.workload.arrivals import Arrival, Workload

BIN_S = 0.5
SPREAD = 0.05
"""Largest difference (0-1) between the accepted share of a prompt length and the accepted share of its tier."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The optimum. All figures are shares of the offered requests (0-1), like goodput."""

    weighted: float
    """Weighted goodput of the program's optimum."""
    ceiling: float
    """Weighted goodput that no policy can exceed, because possible decoding after the last arrival is included."""
    goodput: float
    token_weighted: float
    tiers: dict[str, float]
    accepted: tuple[float, ...]
    """Accepted share (0-1) of each request, in the order of the arrivals."""


def bound(
    arrivals: Sequence[Arrival],
    policy: Policy,
    fleet: FleetSpec | None = None,
    *,
    constrained: bool = True,
    horizon_s: float | None = None,
    bin_s: float = BIN_S,
) -> Bound:
    """The optimum over `arrivals` (at least one). Work counts up to `horizon_s`, by default the time of the last
    arrival.

    Needs scipy (`pip install tailgate[sim]`); raises ImportError without it. Raises ValueError without arrivals.
    """
    if not arrivals:
        raise ValueError("no request arrives, so there is no bound: simulate longer, or at a higher rate")
    jobs = [job_of(arrival, policy) for arrival in arrivals]
    program = _Fluid(jobs, costs(policy, fleet or FleetSpec()), horizon_s or arrivals[-1].at, bin_s)
    if constrained:
        program.constrain(policy)
    return program.solve()


def replay_set(arrivals: Sequence[Arrival], found: Bound) -> list[Arrival]:
    """The arrivals that the optimum accepts. It accepts fractions, which are rounded to whole requests.

    A fraction is carried over to the next request of the same tier and prompt length. So at any time, the number
    chosen of a tier and length is the sum of their accepted shares, to within one request. The choice is the same in
    every run.
    """
    carried: dict[tuple[str, int], float] = {}
    chosen = []
    for arrival, share in zip(arrivals, found.accepted, strict=True):
        kind = (arrival.tier, length_of(arrival.prompt_tokens))
        carry = carried.get(kind, 0.0) + share
        # Shares of 0 and 1 are kept. Shares in between are rounded.
        if share > 1 - TINY or (share > TINY and carry >= 0.5):
            chosen.append(arrival)
            carry -= 1.0
        carried[kind] = carry
    return chosen


class Scalable(Protocol):
    """A workload whose mean rate can be set."""

    def at_rate(self, rate_per_s: float) -> Workload:
        """A copy of the workload with this mean rate."""


def capacity(
    workload: Scalable,
    policy: Policy,
    fleet: FleetSpec | None = None,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    accepted: float = 0.99,
    precision: float = 0.002,
) -> float:
    """1x: the highest rate (requests/s) at which the constrained optimum accepts this share of the requests.

    The accepted share is a mean over the seeds. The rate is found by bisection, to a relative `precision`. A seed has
    the same requests at every rate, so the accepted share falls as the rate grows. Raises ValueError if even a tiny
    rate is not accepted.
    """
    low, high = 0.0, 1.0
    while _accepted(workload, high, policy, fleet, seeds) >= accepted:
        low, high = high, high * 2
    while high - low > precision * high:
        if high < MIN_RATE:
            raise ValueError(f"less than {accepted:.0%} is accepted at any rate: some requests fit on no replica")
        middle = (low + high) / 2
        enough = _accepted(workload, middle, policy, fleet, seeds) >= accepted
        low, high = (middle, high) if enough else (low, middle)
    return low


MIN_RATE = 0.1


def _accepted(
    workload: Scalable, rate_per_s: float, policy: Policy, fleet: FleetSpec | None, seeds: Sequence[int]
) -> float:
    scaled = workload.at_rate(rate_per_s)
    return fmean(bound(list(scaled.arrivals(seed)), policy, fleet).goodput for seed in seeds)


TINY = 1e-6


class _Fluid:
    """The linear program for a list of requests."""

    def __init__(self, jobs: Sequence[Job], costs: FleetCosts, horizon_s: float, bin_s: float) -> None:
        self.jobs = jobs
        self.costs = costs
        self.horizon_s = horizon_s
        self.bin_s = bin_s
        self.program = Program()
        worth = _worth(jobs)
        self.offered = sum(worth)
        self.shares: dict[int, int] = {}
        """Number of the variable x_i by index i of the request, for requests that can be good."""
        self.last_s = horizon_s
        """The latest time at which the prompt of a request in `shares` can be computed."""
        bins: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        work, in_time = [], []
        for i, job in enumerate(jobs):
            deadline = job.deadline(costs)
            if deadline is None:
                continue
            x = self.shares[i] = self.program.variable(1.0, worth[i])
            work.append((x, costs.prefill(job) + costs.decode(job)))
            in_time.append((x, costs.prefill(job) + costs.decode_in_time(job)))
            if costs.prefill(job) and deadline < math.inf:
                self.last_s = max(self.last_s, deadline)
                self._spread(x, job, deadline, bins)
        for terms in bins.values():
            self.program.at_most(terms, costs.replicas * bin_s)
        self.work = self.program.at_most(work, costs.replicas * horizon_s)
        self.in_time = self.program.at_most(in_time, costs.replicas * horizon_s)

    def _spread(self, x: int, job: Job, deadline: float, bins: defaultdict[int, list[tuple[int, float]]]) -> None:
        """Add variables for the time spent on a prompt in each bin until its deadline."""
        parts = [(x, -self.costs.prefill(job))]
        for b in range(int(job.at / self.bin_s), math.ceil(deadline / self.bin_s)):
            overlap_s = min(deadline, (b + 1) * self.bin_s) - max(job.at, b * self.bin_s)
            if overlap_s > 0:
                y = self.program.variable(overlap_s)
                parts.append((y, 1.0))
                bins[b].append((y, 1.0))
        self.program.balanced(parts)

    def constrain(self, policy: Policy) -> None:
        """Add the constraints: order of tiers, floors, and similar shares of prompt lengths."""
        kinds: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for i in self.shares:
            kinds[self.jobs[i].tier.name][length_of(self.jobs[i].prompt)].append(i)
        tiers = sorted((policy.tiers[name] for name in kinds), key=lambda tier: tier.priority)
        means = {tier.name: self._mean([i for of in kinds[tier.name].values() for i in of]) for tier in tiers}
        for above, below in pairwise(tiers):
            if above.priority < below.priority:
                self.program.at_most(_less(means[below.name], means[above.name]), 0.0)
        for tier in tiers:
            for members in kinds[tier.name].values():
                mean = self._mean(members)
                self.program.at_most(_less(mean, means[tier.name]), SPREAD)
                self.program.at_most(_less(means[tier.name], mean), SPREAD)
            self._keep_floor(tier)

    def _keep_floor(self, tier: Tier) -> None:
        """Add the constraint that the tier gets at least its floor of the accepted tokens, or its part of the offered
        tokens if that is less.
        """
        tokens = {i: self.jobs[i].prompt + self.jobs[i].answer for i in self.shares}
        own = sum(count for i, count in tokens.items() if self.jobs[i].tier is tier)
        floor = min(tier.floor, own / sum(tokens.values()))
        if floor:
            terms = [(x, (floor - (self.jobs[i].tier is tier)) * tokens[i]) for i, x in self.shares.items()]
            self.program.at_most(terms, 0.0)

    def _mean(self, members: Sequence[int]) -> list[tuple[int, float]]:
        return [(self.shares[i], 1 / len(members)) for i in members]

    def solve(self) -> Bound:
        """Solve the program.

        Raises RuntimeError if HiGHS finds no optimum. An optimum always exists, because accepting no request is
        feasible.
        """
        solution = self.program.solve()
        x = [solution.variables[self.shares[i]] if i in self.shares else 0.0 for i in range(len(self.jobs))]
        accepted = tuple(min(max(share, 0.0), 1.0) for share in x)
        weighted = solution.value / self.offered
        later = solution.prices[self.work] * self._later_s(self.costs.decode)
        later += solution.prices[self.in_time] * self._later_s(self.costs.decode_in_time)
        return Bound(
            weighted=weighted,
            ceiling=min(1.0, weighted + later / self.offered),
            goodput=sum(accepted) / len(accepted),
            token_weighted=_share_of(self.jobs, accepted, lambda job: job.prompt + job.answer),
            tiers={name: self._of_tier(name, accepted) for name in dict.fromkeys(job.tier.name for job in self.jobs)},
            accepted=accepted,
        )

    def _of_tier(self, name: str, accepted: Sequence[float]) -> float:
        return _share_of(self.jobs, accepted, lambda job: job.tier.name == name)

    def _later_s(self, decode: Callable[[Job], float]) -> float:
        """Upper bound on the engines' time after the horizon that a policy can use. `decode`: cost of an answer."""
        longest = nlargest(self.costs.slots, (decode(self.jobs[i]) for i in self.shares))
        return self.costs.replicas * (self.last_s - self.horizon_s) + sum(longest)


def _worth(jobs: Sequence[Job]) -> list[float]:
    """Value of each request if it is good."""
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for job in jobs:
        tokens[job.tier.name].append(job.prompt + job.answer)
    mean = {name: fmean(of) for name, of in tokens.items()}
    return [
        job.tier.weight * ((job.prompt + job.answer) / mean[job.tier.name] if job.tier.value is Value.TOKENS else 1.0)
        for job in jobs
    ]


def _share_of(jobs: Sequence[Job], accepted: Sequence[float], size: Callable[[Job], float]) -> float:
    return sum(size(job) * share for job, share in zip(jobs, accepted, strict=True)) / sum(map(size, jobs))


def _less(of: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The terms of the sum `of` minus the sum `other`."""
    return [*of, *((variable, -factor) for variable, factor in other)]
