"""State and calibration of the pools' forecasts, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from gateway.core.snapshot import Snapshot, Trust
from gateway.observe.metrics.families import gauge


def admission_families(snapshot: Snapshot) -> Iterator[Metric]:
    """All families, with their present values."""
    pools = snapshot.forecast.pools
    yield gauge(
        "tailgate_forecast_state",
        "1 for the present state of the pool's forecast.",
        ("pool", "state"),
        [((pool.pool, state.value), pool.trust is state) for pool in pools for state in Trust],
    )
    yield gauge(
        "tailgate_forecast_calibration_error",
        "Mean distance between P(breach) and the share that came true, over bins of equal mass (ECE).",
        ("pool",),
        [((pool.pool,), pool.reliability.ece) for pool in pools],
    )
