"""Learned facts of engines and demand, copied out for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.forecast.reliability import Reliability
from gateway.core.forecast.trust import Trust


@dataclass(frozen=True, slots=True)
class PoolLearnedView:
    """A pool's learned facts, for people."""

    pool: str
    trust: Trust
    ttft_coefficients: tuple[float, ...]
    step_coefficients: tuple[float, ...]
    samples: int
    labels: int
    drift_alarms: int
    reliability: Reliability
    """Of P(breach)."""
    in_vain: Reliability
    """Of P(refused after waiting)."""


@dataclass(frozen=True, slots=True)
class ForecastView:
    """Everything learned, for people and gauges."""

    pools: tuple[PoolLearnedView, ...]
    speeds: tuple[tuple[str, float], ...]
    """By replica: time per token over that of its pool."""


@dataclass(frozen=True, slots=True)
class ScaleView:
    """Replicas that a pool wants, and why."""

    wanted: int
    serving: float
    """Replicas that get requests; one in slow start counts in part."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    """Over about the last minute, with the mean length of recent answers."""
    demand: float
    """Work that arrives, in replicas."""
    predicted: float
    """The same, forecast for the time when a replica started now would serve."""
    worth: float
    """Replicas for the predicted work, before rounding and holding."""
    knee: float
    """Work that one replica carries inside the objectives, in replicas."""
    windows: int
    """Windows that have moved the knee."""
    held_s: float
    """Seconds before `wanted` may fall."""
    why: str
