"""What the forecast has learned, copied out for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.calibrate import Reliability
from gateway.core.trust import Trust


@dataclass(frozen=True, slots=True)
class PoolFacts:
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

    pools: tuple[PoolFacts, ...]
    speeds: tuple[tuple[str, float], ...]
    """Of replicas: time per token over that of its pool."""
