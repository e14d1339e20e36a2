"""What was learned of engines and of demand, copied out for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.forecast.calibration import Reliability
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
    uncalibrated: Reliability


@dataclass(frozen=True, slots=True)
class ForecastView:
    """Everything learned, for people and gauges."""

    pools: tuple[PoolLearnedView, ...]
    speeds: tuple[tuple[str, float], ...]
    """Of replicas: time per token over that of its pool."""


@dataclass(frozen=True, slots=True)
class ScaleView:
    """What a pool wants, and why."""

    wanted: int
    serving: float
    """Replicas that get requests; one that is starting slowly counts in part."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    """Of the last minute or so; output as long as answers lately were."""
    demand: float
    """Replicas' worth of work that arrives."""
    predicted: float
    """The same, by the time a replica that is started now serves."""
    worth: float
    """Replicas for that: what `wanted` is rounded from and held against."""
    knee: float
    """Replicas' worth of work that one replica carries inside the objectives."""
    windows: int
    """In which that was learned."""
    held_s: float
    """For so long it will not fall."""
    why: str
