"""Baselines: the policies of other gateways, for comparison. On the command line they are named NAME or
NAME:KEY=VALUE,KEY=VALUE.

Each baseline is a plain balancer. If it holds or sheds requests, an `AdmissionGate` is in front. The production
controller with a part switched off would be no baseline, because it always limits the load of engines. All baselines
keep the operator's pools, models, limits, objectives, weights and caps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.controller import Controller
from gateway.core.fleet.routing import ROUTERS
from gateway.core.policy import Policy, Tier
from gateway.core.request import Random
from gateway.sim.baselines.admission_gate import AdmissionGate, Cap, Saturation
from gateway.sim.baselines.balancer import Balancer
from gateway.sim.baselines.cache_aware import CacheAware
from gateway.sim.run.decider import Decider

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Setup:
    """A policy, and the decider that applies it."""

    policy: Policy
    decider: Callable[[Policy, Random], Decider] = Controller


@dataclass(frozen=True, slots=True)
class Baseline:
    """One baseline: its description, its parameters with defaults, and the function that builds it from a policy."""

    summary: str
    make: Callable[[Policy, Numbers], Setup]
    numbers: Numbers = field(default_factory=dict)


def setup(text: str, policy: Policy) -> Setup:
    """The baseline named in `text`, built from `policy`. Raises ValueError that lists the known names."""
    name, _, rest = text.partition(":")
    row = BASELINES.get(name)
    if row is None:
        raise ValueError(f"{name or '(nothing)'} is not a baseline; known: {', '.join(BASELINES)}")
    numbers = dict(row.numbers)
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in numbers:
            raise ValueError(f"{text}: {name} has no {key or '(nothing)'}; it has {', '.join(numbers) or 'no numbers'}")
        try:
            numbers[key] = float(value)
        except ValueError:
            raise ValueError(f"{text}: {key} must be a number, as in {key}={row.numbers[key]:g}") from None
        if not 0.0 < numbers[key] < math.inf:
            raise ValueError(f"{text}: {key} must be above 0")
    return row.make(policy, numbers)


def _no_control(router: str) -> Callable[[Policy, Numbers], Setup]:
    def decider(rules: Policy, random: Random) -> Decider:
        return Balancer(rules, ROUTERS[router], random)

    return lambda policy, _: Setup(policy, decider)


def _cache_aware(policy: Policy, numbers: Numbers) -> Setup:
    def decider(rules: Policy, random: Random) -> Decider:
        return Balancer(rules, lambda: CacheAware(numbers["threshold"], numbers["abs"], numbers["rel"]), random)

    return Setup(policy, decider)


def _static_cap(policy: Policy, numbers: Numbers) -> Setup:
    wait_s = numbers["wait"] * min(tier.slo.ttft_bound_s for tier in policy.tiers.values())
    return _capped(policy, int(numbers["slots"]), lambda tier: replace(_patient(tier, wait_s), priority=0))


def _static_cap_tiers(policy: Policy, numbers: Numbers) -> Setup:
    wait = numbers["wait"]
    return _capped(policy, int(numbers["slots"]), lambda tier: _patient(tier, wait * tier.slo.ttft_bound_s))


def _capped(policy: Policy, slots: int, change: Callable[[Tier], Tier]) -> Setup:
    def gate(rules: Policy, random: Random) -> Decider:
        balancer = Balancer(rules, ROUTERS["least-requests"], random)
        return AdmissionGate(balancer, rules, lambda pool: Cap(balancer, pool.name, slots))

    return Setup(replace(policy, tiers={name: change(tier) for name, tier in policy.tiers.items()}), gate)


def _llm_d(policy: Policy, numbers: Numbers) -> Setup:
    priorities = sorted({tier.priority for tier in policy.tiers.values()})
    shed = priorities[-1] if len(priorities) > 1 else None

    def gate(rules: Policy, random: Random) -> Decider:
        balancer = Balancer(rules, ROUTERS["least-requests"], random)
        return AdmissionGate(balancer, rules, lambda pool: Saturation(pool, numbers["queue"], numbers["kv"]), shed)

    pools = {
        name: replace(pool, health=replace(pool.health, scrape_interval_s=numbers["scrape"]))
        for name, pool in policy.pools.items()
    }
    return Setup(replace(policy, pools=pools), gate)


def _patient(tier: Tier, wait_s: float) -> Tier:
    """A copy of the tier whose requests wait for a slot for at most `wait_s`."""
    if wait_s == math.inf:
        return tier
    return replace(tier, timeouts=replace(tier.timeouts, queue_s=wait_s))


_CAP = {"slots": 64.0, "wait": 0.5}

BASELINES: dict[str, Baseline] = {
    "round-robin": Baseline("no control: everything is sent at once, each replica in turn", _no_control("round-robin")),
    "least-requests": Baseline(
        "no control: everything is sent at once, to the replica with the fewest requests",
        _no_control("least-requests"),
    ),
    "cache-aware": Baseline(
        "no control: everything is sent at once, by the default rule of vllm-router and SGLang's: to the replica that "
        "has seen most of the prompt if that is more than `threshold` of it, else to the one that has seen least; to "
        "the fewest requests once the most is `abs` above and `rel` times the least",
        _cache_aware,
        {"threshold": 0.3, "abs": 64.0, "rel": 1.5},
    ),
    "static-cap": Baseline(
        "`slots` requests per replica, tiers alike, first come first served, to the shortest queue; who has waited for "
        "`wait` of the tightest TTFT objective is refused",
        _static_cap,
        _CAP,
    ),
    "static-cap-tiers": Baseline(
        "the same with strict tiers; who has waited for `wait` of its own TTFT objective is refused",
        _static_cap_tiers,
        _CAP,
    ),
    "llm-d": Baseline(
        "llm-d's saturation rule: while max(waiting/`queue`, KV/`kv`), scraped every `scrape` s, is at least 1 in the "
        "mean of the replicas, the least urgent tier is shed and the others are held",
        _llm_d,
        {"queue": 5.0, "kv": 0.8, "scrape": 0.05},
    ),
}
