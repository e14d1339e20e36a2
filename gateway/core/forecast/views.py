"""Learned facts of engines and demand, copied out for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.forecast.reliability import Reliability
from gateway.core.forecast.trust import Trust


@dataclass(frozen=True, slots=True)
class PoolLearnedView:
    """A pool's learned facts, for the admin pages."""

    pool: str
    trust: Trust
    ttft_coefficients: tuple[float, ...]
    step_coefficients: tuple[float, ...]
    samples: int
    labels: int
    drift_alarms: int
    reliability: Reliability
    """Reliability of P(breach)."""
    in_vain: Reliability
    """Reliability of P(refused after waiting)."""


@dataclass(frozen=True, slots=True)
class ForecastView:
    """All learned facts, for the admin pages and metrics."""

    pools: tuple[PoolLearnedView, ...]
    speeds: tuple[tuple[str, float], ...]
    """(replica, its time per token divided by that of its pool's typical replica)."""


@dataclass(frozen=True, slots=True)
class ScaleView:
    """The number of replicas that a pool wants, and why."""

    wanted: int
    serving: float
    """Number of replicas that get requests. A replica in slow start counts as a fraction."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    """Output tokens requested per second over about the last minute, by the mean length of recent answers."""
    demand: float
    """Work that arrives now, in replicas."""
    predicted: float
    """Work forecast for the time when a replica started now would be ready, in replicas."""
    worth: float
    """Replicas needed for the predicted work, before rounding and before the hold."""
    knee: float
    """Demand per replica up to which the objectives are met. The unit is the work of one replica."""
    windows: int
    """Number of measuring windows that have changed `knee`."""
    held_s: float
    """Seconds until `wanted` may fall."""
    why: str
