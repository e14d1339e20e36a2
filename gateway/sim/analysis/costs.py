"""Computes the lowest possible cost (engine seconds) of requests in a fleet, and the deadlines of their prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.policy import Policy, Tier
from gateway.sim.engine.fleet import FleetSpec
from gateway.sim.engine.profiles import Profile
from gateway.sim.workload.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class FleetCosts:
    """Costs of a fleet in engine seconds per unit of work, each the lowest of any replica. Also the size of the fleet,
    in replicas with these costs.
    """

    base_s: float
    slot_s: float
    """Smallest part of a step's base cost that a sequence bears: base cost / max_num_seqs."""
    prefill_s: float
    decode_s: float
    kv_s: float
    prompt_s: float
    """Cost of starting a prompt of any length."""
    chunk_tokens: int
    replicas: float
    slots: int
    """Number of concurrent sequences on all replicas together."""

    def prefill(self, job: Job) -> float:
        """Lower bound on the engines' time for the prompt."""
        return self.prompt_s + self.prefill_s * job.prompt

    def decode(self, job: Job) -> float:
        """Lower bound on the engines' time for the answer, after its first token."""
        return self._without_base(job) + job.steps * self.slot_s

    def decode_in_time(self, job: Job) -> float:
        """Lower bound on the engines' time for the answer if it keeps its TPOT bound. Its steps are then short, so few
        sequences share their base cost.

        The base cost of a step is divided among its sequences in proportion to their own costs. So a sequence with cost
        s in a step of length t bears s t / (t - base). This is convex in t, and the mean of t is at most the TPOT
        bound.
        """
        bound_s = job.tpot_bound_s
        if bound_s <= self.base_s:
            return math.inf if job.steps else 0.0
        first_s = self.decode_s + self.kv_s * job.prompt
        return self._without_base(job) + self.base_s * job.steps * first_s / (bound_s - self.base_s)

    def _without_base(self, job: Job) -> float:
        """Cost of the answer's sequence in its steps, without any part of the steps' base cost."""
        read = job.steps * job.prompt + job.steps * (job.steps - 1) / 2
        return job.steps * self.decode_s + self.kv_s * read

    def ttft(self, job: Job) -> float:
        """Lowest possible TTFT (seconds) on an idle replica."""
        return self.prefill(job) + self.base_s * math.ceil(job.prompt / self.chunk_tokens)

    def tpot(self, job: Job) -> float:
        """Lowest possible TPOT (seconds) on an idle replica."""
        return self.base_s + self.decode_s + self.kv_s * job.prompt

    def e2e(self, job: Job) -> float:
        """Lowest possible e2e (seconds) on an idle replica."""
        return self.ttft(job) + job.steps * self.tpot(job)


@dataclass(frozen=True, slots=True)
class Job:
    """A request for the linear program."""

    at: float
    tier: Tier
    prompt: int
    answer: int
    stream: bool

    @property
    def steps(self) -> int:
        """Steps of its answer after the first token."""
        return max(0, self.answer - 1)

    @property
    def tpot_bound_s(self) -> float:
        """Bound on its TPOT in seconds; inf without a bound."""
        return self.tier.slo.tpot_bound_s if self.stream else math.inf

    def deadline(self, costs: FleetCosts) -> float | None:
        """Latest time at which its prompt must be computed; None if it cannot be good even alone."""
        slo, timeouts = self.tier.slo, self.tier.timeouts
        e2e_s = min(slo.e2e_bound_s if slo.covers(self.answer) else math.inf, timeouts.total_s)
        ttft_s = slo.ttft_bound_s if self.stream else math.inf
        if costs.ttft(self) > ttft_s or costs.e2e(self) > e2e_s:
            return None
        if self.answer > 1 and costs.tpot(self) > self.tpot_bound_s:
            return None
        return self.at + min(ttft_s, e2e_s - self.steps * costs.tpot(self))


def costs(policy: Policy, fleet: FleetSpec) -> FleetCosts:
    """The lowest costs of the replicas of a policy. A replica that is k times as slow in everything counts as 1/k
    replica.
    """
    profiles = [fleet.profile(pool.name, replica.name) for pool in policy.pools.values() for replica in pool.replicas]
    least = [min(costs) for costs in zip(*map(_costs_of, profiles), strict=True)]
    base_s, slot_s, prompt_s, prefill_s, decode_s, kv_s = least
    return FleetCosts(
        base_s=base_s,
        slot_s=slot_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        kv_s=kv_s,
        prompt_s=prompt_s,
        chunk_tokens=max(profile.max_batched_tokens for profile in profiles),
        replicas=sum(1 / _times_slower(profile, least) for profile in profiles),
        slots=sum(profile.max_num_seqs for profile in profiles),
    )


def _costs_of(profile: Profile) -> tuple[float, ...]:
    """The costs of a replica: the base cost of a step, a sequence's smallest part of it, and the costs per sequence and
    per token.
    """
    slot_s = profile.step_base_s / profile.max_num_seqs
    prompt_s, prefill_s = profile.prefill_s_per_sequence, profile.prefill_s_per_token
    return profile.step_base_s, slot_s, prompt_s, prefill_s, profile.decode_s_per_sequence, profile.kv_s_per_token


def _times_slower(profile: Profile, least: Sequence[float]) -> float:
    """Lower bound on how many times slower a replica is than these costs."""
    return min(own / cost for own, cost in zip(_costs_of(profile), least, strict=True) if cost)


def job_of(arrival: Arrival, policy: Policy) -> Job:
    """The job of a request. Its answer is limited by the caps of client and tier."""
    tier = policy.tiers[arrival.tier]
    answer = min(arrival.output_tokens, tier.caps.granted(arrival.max_tokens))
    return Job(arrival.at, tier, arrival.prompt_tokens, answer, arrival.stream)
