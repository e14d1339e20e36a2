"""Snapshot: a copy of the controller's state, for the admin pages and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gateway.core.policy import LimitKind
from gateway.core.sample import Sample


@dataclass(frozen=True, slots=True)
class PoolLearnedView:
    """A pool's learned facts, for the admin pages."""

    pool: str
    trust: Trust
    ttft_coefficients: tuple[float, ...]
    step_coefficients: tuple[float, ...]
    samples: int
    drift_alarms: int
    reliability: Reliability
    """Reliability of P(breach)."""


@dataclass(frozen=True, slots=True)
class ForecastView:
    """All learned facts, for the admin pages and metrics."""

    pools: tuple[PoolLearnedView, ...]
    speeds: tuple[tuple[str, float], ...]
    """(replica, its time per token divided by that of its pool's typical replica)."""


@dataclass(frozen=True, slots=True)
class DemandView:
    """Demand of a pool over about the last minute, refused requests included."""

    replicas: float
    """Work that arrives, in replicas: seconds of a full one, per second."""
    serving: float
    """Number of replicas that get requests. A replica in slow start counts as a fraction."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    """Output tokens requested per second, by the mean length of recent answers."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well probabilities agreed with the latest labels. A label is true if the outcome happened. `bins`: (number of
    labels, mean probability, share of true labels).
    """

    labels: int
    base_rate: float
    ece: float
    """Expected calibration error: mean |probability - share of true labels| over bins of equal size."""
    brier: float
    skill: float
    """1 - Brier score / Brier score of always forecasting the base rate; 0 if the second score is 0."""
    bins: tuple[tuple[int, float, float], ...]


class Trust(StrEnum):
    """Whether P(breach) decides on requests of a pool."""

    TRUSTED = "trusted"
    COLD = "cold"
    """Too few latencies were measured."""


NOTHING_LEARNED: Final = ForecastView((), ())


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a request waits. `position`: 1 for the next one. `wait_s`: expected rest of its wait; None if unknown."""

    position: int
    wait_s: float | None
    on_hold: bool


class ReplicaState(StrEnum):
    """Whether a replica gets requests."""

    UP = "up"
    DOWN = "down"
    """The breaker is open: nothing is sent."""
    PROBING = "probing"
    """The breaker is half-open: one request at a time is sent."""
    EJECTED = "ejected"
    """The replica is an outlier (slow, silent, failing or odd): only probes are sent."""
    ABSENT = "absent"
    """It has passed no check and answered nothing since it was added. It may not have been started yet, so this is no
    fault.
    """
    DRAINED = "drained"
    """An operator drained it: nothing new is sent."""


@dataclass(frozen=True, slots=True)
class HealthView:
    """How one replica compares with its pool. Excesses are natural logarithms of latency ratios."""

    out: str | None = None
    """Reason of the ejection: slow-ttft, slow-itl, stalled, odd-answers, failing. None if it is not ejected."""
    why: str = ""
    """Why it is down, probing or ejected, in words, with figures."""
    back_in_s: float | None = None
    """Seconds until its probes are judged; None if it is not ejected, or is silent or failing."""
    ttft_excess: float = 0.0
    """Mean log(TTFT / TTFT expected at the pool's typical replica), less the median of the pool."""
    itl_excess: float = 0.0
    share: float = 1.0
    """Share (0-1) of the slots that slow start allows."""
    ejections: tuple[tuple[str, int], ...] = ()
    """Number of ejections by reason."""
    elsewhere: tuple[str, ...] = ()
    """Reasons for which other gateways have ejected it."""
    error: str = ""
    """Its latest error in words, of a request or a check; empty if there was none."""
    error_count: int = 0
    """How often that error came in a row."""
    error_age_s: float | None = None
    """Seconds since the latest of them."""

    @property
    def last_error(self) -> str:
        """The latest error with its count and age, e.g. "3 x HTTP 500 on /v1/chat/completions, last 2 s ago"."""
        if self.error_age_s is None:
            return ""
        return f"{self.error_count} x {self.error}, last {self.error_age_s:.0f} s ago"


WELL = HealthView()


class CapacityBound(StrEnum):
    """The bound that keeps a replica from taking one more request of a tier with mode `enforce`."""

    SLOTS = "slots"
    PROMPTS = "unread prompts"
    KV = "KV cache"
    TPOT = "TPOT"


def usual(bounds: Sequence[CapacityBound]) -> CapacityBound | None:
    """The most frequent bound; of equally frequent ones the first. None if `bounds` is empty."""
    return max(dict.fromkeys(bounds), key=bounds.count, default=None)


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache of one replica. Token counts are totals since the start."""

    hit_rate: float | None = None
    """Share (0-1) of recent prompt tokens that the engine found in its cache; None if the engine does not report it."""
    kept: float = 1.0
    """Share (0-1) of the indexed tokens that the engine finds in its cache."""
    predicted_tokens: int = 0
    """Prompt tokens that were expected to be cached when sent."""
    reported_tokens: int = 0
    """Prompt tokens that answers reported as cached."""


UNKNOWN_CACHE: Final = CacheView()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """State of one replica. `sample_age_s`: age of the last scrape that was answered; None if none was."""

    name: str
    url: str
    pool: str
    state: ReplicaState
    in_flight: int
    unprefilled_tokens: int
    """Prompt tokens that the engine has probably not read yet."""
    failures: int
    """Number of consecutive failures, as counted by the breaker."""
    sample: Sample | None
    sample_age_s: float | None
    slots: int = 0
    """Number of requests that the replica may have at a time: configured, learned, or 1 while the breaker is
    half-open.
    """
    held_tokens: int = 0
    """Tokens of context that its requests use."""
    kv_capacity_tokens: float | None = None
    """Size of its KV cache in tokens of context, estimated from scrapes; None until known."""
    preemption_ratio: float = 0.0
    """Preemptions per request sent, over about the last minute."""
    health: HealthView = WELL
    refusals: int = 0
    """Number of 429 and 503 answers in a row."""
    rests_s: float = 0.0
    """Seconds of backoff left; 0 if there is none."""
    step_s: float | None = None
    """Predicted mean step (seconds) with its present requests; None until costs are known."""
    step_limit_s: float | None = None
    """Longest mean step (seconds) that keeps the TPOT and e2e objectives in use; None without any."""
    bound: CapacityBound | None = None
    """The bound that keeps the replica from taking more requests now; None if it has room."""
    cache: CacheView = UNKNOWN_CACHE
    adapters: tuple[str, ...] = ()
    """LoRA adapters that have requests there, from this gateway or others; sorted."""
    others_in_flight: int = 0
    """Requests of other gateways there, as they told it. `in_flight` does not count them."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """State of one pool. `slots`: the sum over replicas that get requests."""

    name: str
    in_flight: int
    queued: int
    queued_bytes: int
    queue_limit: int
    slots: int
    drain_rate: float | None
    """Rate (1/s) at which the pool gets room for requests while new requests have to wait; None until a request had to
    wait.
    """
    replicas: tuple[ReplicaView, ...]
    panic: bool = False
    """Whether so few replicas are healthy that ejected replicas are used as well."""
    held: int = 0
    """Number of requests that were dispatched and are not over."""
    held_s: float = 0.0
    """Sum of the ages of these requests since their dispatch, in seconds."""
    demand: DemandView | None = None
    """The autoscaling signal; None until it is known."""
    prefill_limit_tokens: float | None = None
    """Limit on a replica's unread prompt tokens; None until it is known."""
    on_hold: int = 0
    """Number of requests that wait until the pool has a replica."""


@dataclass(frozen=True, slots=True)
class QuotaView:
    """Amount of a quota, and what is left of it (>= 0)."""

    limit: LimitKind
    amount: float
    left: float


@dataclass(frozen=True, slots=True)
class LimitView:
    """Remaining limits of one tenant; None if the tier sets no limit. `reset`: seconds until the limit is full
    again.
    """

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
    quotas: tuple[QuotaView, ...] = ()


@dataclass(frozen=True, slots=True)
class HedgeThresholdView:
    """TTFTs of one pool for one bucket of prompts: those with `unread_tokens` / 2 (exclusive) to `unread_tokens` tokens
    to read.
    """

    unread_tokens: int
    samples: int
    censored: int
    """Number of samples that were cancelled before a first token."""
    quantile: float
    late_s: float | None
    """This quantile (0-1) of TTFT, in seconds from sent; None before enough samples."""


@dataclass(frozen=True, slots=True)
class HedgePoolView:
    """State of hedging in one pool."""

    pool: str
    thresholds: tuple[HedgeThresholdView, ...]
    won: float | None
    """Share (0-1) of the last 200 duplicates that won; None before any duplicate."""
    resting: bool
    """Whether hedging is suspended for a minute, because too few duplicates won."""


@dataclass(frozen=True, slots=True)
class HedgeTierView:
    """Cost and gain of one tier's duplicates. Counts are totals since the start."""

    tier: str
    requests_left: float
    """Number of duplicates that the tier may send now."""
    tokens_left: float
    """Prompt tokens that its duplicates may cost now; below zero after a duplicate of a long prompt."""
    held: int
    """Number of requests in the holdout, which are never hedged."""
    outcomes: tuple[tuple[str, int], ...]
    """Number of duplicates, by result."""
    denied: tuple[tuple[str, int], ...]
    """Number of late requests that got no duplicate, by reason."""
    wasted_prompt_tokens: int
    wasted_output_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state at one moment."""

    generation: int
    pools: tuple[PoolView, ...]
    tenants: tuple[LimitView, ...]
    forecast: ForecastView = NOTHING_LEARNED
    hedged_pools: tuple[HedgePoolView, ...] = ()
    hedged_tiers: tuple[HedgeTierView, ...] = ()
    at: float = 0.0
    """Time of the snapshot, by the monotonic clock."""

    @property
    def held(self) -> dict[str, tuple[int, float]]:
        """By pool: the number of dispatched requests, and the sum of their ages in seconds."""
        return {pool.name: (pool.held, pool.held_s) for pool in self.pools}
