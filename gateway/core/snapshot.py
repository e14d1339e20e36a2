"""State of the controller, copied out for people and metrics. Reading it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Slower than its pool, or silent: only probes are sent."""
    DRAINED = "drained"
    """An operator drained it: nothing new is sent."""


@dataclass(frozen=True, slots=True)
class HealthView:
    """How one replica compares with its pool. Scores and excesses are natural logarithms of ratios."""

    out: str | None = None
    """Why it is ejected: slow-ttft, slow-itl, stalled, odd-answers."""
    why: str = ""
    """The same for people, with figures."""
    back_in_s: float | None = None
    """When its probes are judged; None if it is not ejected, or still silent."""
    ttft_score: float = 0.0
    """Mean log-ratio of its TTFT to what its pool takes."""
    ttft_excess: float = 0.0
    """That score less the pool's median."""
    ttft_z: float = 0.0
    itl_score: float = 0.0
    itl_excess: float = 0.0
    itl_z: float = 0.0
    share: float = 1.0
    """Share (0-1) of its slots that slow start gives it."""
    ejections: tuple[tuple[str, int], ...] = ()
    """Count of ejections by reason."""


WELL = HealthView()


class CapacityBound(StrEnum):
    """The bound that keeps a replica from one more request of an enforced tier."""

    SLOTS = "slots"
    PROMPTS = "unread prompts"
    KV = "KV cache"
    TPOT = "TPOT"


def usual(bounds: Sequence[CapacityBound]) -> CapacityBound | None:
    """The most frequent of them, the first of equals; None of none."""
    return max(dict.fromkeys(bounds), key=bounds.count, default=None)


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache of one replica. Counts of tokens are since the start."""

    hit_rate: float | None = None
    """Share (0-1) of recent prompt tokens that its engine found there; None if it does not report it."""
    kept: float = 1.0
    """Share (0-1) of the tokens expected there that the engine finds."""
    predicted_tokens: int = 0
    """Prompt tokens that were assumed to be cached when sent."""
    reported_tokens: int = 0
    """Prompt tokens that answers report as cached."""


UNKNOWN_CACHE: Final = CacheView()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica now. `sample_age_s` is the age of the last scrape that was answered, None if none ever was."""

    name: str
    url: str
    pool: str
    state: ReplicaState
    in_flight: int
    unprefilled_tokens: int
    """Prompt tokens sent to it, of requests without a first token yet."""
    failures: int
    """Consecutive failures counted by the breaker."""
    sample: Sample | None
    sample_age_s: float | None
    slots: int = 0
    """Requests it may be sent at once: written, learned, or one while it is probed."""
    held_tokens: int = 0
    """Tokens of context that its open requests use."""
    kv_capacity_tokens: float | None = None
    """Tokens of context that its KV cache holds, estimated from scrapes."""
    preemption_ratio: float = 0.0
    """Preemptions per request sent, of the last minute or so."""
    health: HealthView = WELL
    refusals: int = 0
    """429 and 503 in a row."""
    rests_s: float = 0.0
    """Seconds of backoff left, after it refused or asked for time."""
    step_s: float | None = None
    """Mean time of a step with the requests that it has; None before its costs are known."""
    step_limit_s: float | None = None
    """Longest mean step that keeps the TPOT objectives in use; None without one."""
    bound: CapacityBound | None = None
    """Why it is sent nothing more now; None if it has room."""
    cache: CacheView = UNKNOWN_CACHE
    adapters: tuple[str, ...] = ()
    """LoRA adapters loaded there: with requests, from here or elsewhere. Sorted."""


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
    """Requests per second that the pool makes room for while newcomers have to wait; None before any had to."""
    replicas: tuple[ReplicaView, ...]
    panic: bool = False
    """Whether so few replicas are healthy that ejected ones are used as well."""
    held: int = 0
    """Requests that were dispatched here and are not over."""
    held_s: float = 0.0
    """Sum of their ages since dispatch, in seconds."""
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
    """Largest P(breach) that is admitted."""
    budget_left: float | None
    """Remaining error budget, -1 to 1; None after too few answers."""


@dataclass(frozen=True, slots=True)
class HedgeThresholdView:
    """TTFT of one pool's prompts with at most `unread_tokens` to read, and more than half of that."""

    unread_tokens: int
    samples: int
    censored: int
    """Samples that were cut short before a first token."""
    p95_s: float | None
    """Seconds since sent; None before enough samples."""


@dataclass(frozen=True, slots=True)
class HedgePoolView:
    """Basis of hedging decisions in one pool."""

    pool: str
    thresholds: tuple[HedgeThresholdView, ...]
    won: float | None
    """Share (0-1) of the last 200 duplicates that had the first token; None before a duplicate."""
    resting: bool
    """Whether hedging is off for a while, since too few duplicates won."""


@dataclass(frozen=True, slots=True)
class HedgeTierView:
    """Spending of one tier on duplicates, and their gain. Counts since the start."""

    tier: str
    requests_left: float
    """Duplicates that it may send now."""
    tokens_left: float
    """Prompt tokens that duplicates may cost now; below zero after a long prompt."""
    held: int
    """Requests of the control group, which are never hedged."""
    outcomes: tuple[tuple[str, int], ...]
    """Duplicates by result."""
    denied: tuple[tuple[str, int], ...]
    """Late requests without a duplicate, by reason."""
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
    """Time of the snapshot, by the monotonic clock."""

    @property
    def held(self) -> dict[str, tuple[int, float]]:
        """`Controller.held` at that moment."""
        return {pool.name: (pool.held, pool.held_s) for pool in self.pools}
