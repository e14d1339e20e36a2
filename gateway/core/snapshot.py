"""State of the controller, copied out for people and metrics. Reading it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.forecast.views import ForecastView, ScaleView
from gateway.core.request import Sample

NOTHING_LEARNED: Final = ForecastView((), ())


class ReplicaState(StrEnum):
    """Whether a replica gets requests."""

    UP = "up"
    DOWN = "down"
    """Its breaker is open: nothing is sent."""
    PROBING = "probing"
    """Its breaker is half open: one request at a time."""
    EJECTED = "ejected"
    """Slower than its pool, or silent: only canaries are sent."""
    DRAINED = "drained"
    """By hand: nothing new is sent."""


@dataclass(frozen=True, slots=True)
class HealthView:
    """How one replica compares with its pool. Scores and excesses are natural logarithms of ratios."""

    out: str | None = None
    """Why it is ejected: slow-ttft, slow-itl, stalled, odd-answers."""
    why: str = ""
    """The same for people, with figures."""
    back_in_s: float | None = None
    """When it will be judged by its canaries; None if it is not out, or until something is heard of it."""
    ttft_score: float = 0.0
    """Mean of TTFT over what its pool takes."""
    ttft_excess: float = 0.0
    """The same over the pool's median."""
    ttft_z: float = 0.0
    itl_score: float = 0.0
    itl_excess: float = 0.0
    itl_z: float = 0.0
    share: float = 1.0
    """Of its slots that slow start gives it, 0-1."""
    ejections: tuple[tuple[str, int], ...] = ()
    """How often, by reason."""


WELL = HealthView()


class CapacityBound(StrEnum):
    """What keeps a replica from being sent one more request of an enforced tier."""

    SLOTS = "slots"
    PROMPTS = "unread prompts"
    KV = "KV cache"
    TPOT = "TPOT"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica now. `sample_age_s` is the age of the last scrape that was answered, None if none ever was."""

    name: str
    url: str
    pool: str
    state: ReplicaState
    in_flight: int
    unprefilled_tokens: int
    """Prompt tokens sent whose request has no first token yet."""
    failures: int
    """Consecutive failures counted by the breaker."""
    sample: Sample | None
    sample_age_s: float | None
    slots: int = 0
    """Requests it may be sent at once: written, learned, or one while it is probed."""
    held_tokens: int = 0
    """Tokens of context that its open requests use."""
    kv_capacity_tokens: float | None = None
    """Tokens of context that its KV cache holds, as far as scrapes tell."""
    preemption_ratio: float = 0.0
    """Preemptions per request sent, of the last minute or so."""
    health: HealthView = WELL
    refusals: int = 0
    """429 and 503 in a row."""
    rests_s: float = 0.0
    """For so long it is passed over, since it refused or asked to be spared."""
    step_s: float | None = None
    """Mean time of a step with the requests that it has; None before its costs are known."""
    step_limit_s: float | None = None
    """The longest that keeps the TPOT objectives in use; None where there is none."""
    bound: CapacityBound | None = None
    """Why it is sent nothing more now; None if it has room."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool now. `slots` is the sum over replicas that get requests."""

    name: str
    in_flight: int
    queued: int
    queued_bytes: int
    queue_limit: int
    slots: int
    drain_rate: float | None
    """Requests per second that there is room for, while newcomers have to wait; None before any had to."""
    replicas: tuple[ReplicaView, ...]
    panic: bool = False
    """Whether so few replicas are well that ejected ones are used all the same."""
    held: int = 0
    """Requests that were dispatched here and are not over,"""
    held_s: float = 0.0
    """and how long since, all of them together."""
    scale: ScaleView | None = None
    """How many replicas it wants; None before that is known."""
    prefill_limit_tokens: float | None = None
    """Unread prompt tokens beyond which a replica is sent no more; None before that is known."""


@dataclass(frozen=True, slots=True)
class LimitView:
    """Remaining limits of one tenant now; None where the tier sets no limit. `reset` is seconds until full again."""

    tenant: str
    tier: str
    requests_limit: float | None
    requests_left: float | None
    requests_reset_s: float | None
    tokens_limit: float | None
    tokens_left: float | None
    tokens_reset_s: float | None
    concurrency_limit: int | None
    in_flight: int


@dataclass(frozen=True, slots=True)
class TierView:
    """Risk that admission takes for one tier now."""

    name: str
    threshold: float
    """The largest P(breach) that is put up with."""
    budget_left: float
    """Remaining error budget, -1 to 1; 0 where too few answers say anything."""


@dataclass(frozen=True, slots=True)
class HedgeThresholdView:
    """Prompts of up to `prompt_tokens`, and more than half of that, in one pool: how long first tokens take."""

    prompt_tokens: int
    samples: int
    censored: int
    """Of these, how many were cut short before they had a first token."""
    p95_s: float | None
    """Seconds since sent; None as long as too little is known."""


@dataclass(frozen=True, slots=True)
class HedgePoolView:
    """Basis of hedging decisions in one pool."""

    pool: str
    thresholds: tuple[HedgeThresholdView, ...]
    won: float | None
    """Share (0-1) of the last 200 duplicates that had the first token; None before there was one."""
    resting: bool
    """Whether there are none for a while, since too few of them won."""


@dataclass(frozen=True, slots=True)
class HedgeTierView:
    """Spending of one tier on duplicates, and their gain. Counts since the start."""

    tier: str
    requests_left: float
    """Duplicates that it may make now."""
    tokens_left: float
    """Prompt tokens that it may have read twice now; below zero after a long prompt."""
    held: int
    """Requests that were drawn never to be hedged."""
    outcomes: tuple[tuple[str, int], ...]
    """Duplicates by what became of them."""
    denied: tuple[tuple[str, int], ...]
    """Requests that were late and got none, by what spoke against it."""
    wasted_prompt_tokens: int
    wasted_output_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    generation: int
    pools: tuple[PoolView, ...]
    tenants: tuple[LimitView, ...]
    tiers: tuple[TierView, ...] = ()
    forecast: ForecastView = NOTHING_LEARNED
    hedged_pools: tuple[HedgePoolView, ...] = ()
    hedged_tiers: tuple[HedgeTierView, ...] = ()
    at: float = 0.0
    """When, by the monotonic clock."""

    @property
    def held(self) -> dict[str, tuple[int, float]]:
        """`Controller.held` at that moment."""
        return {pool.name: (pool.held, pool.held_s) for pool in self.pools}
