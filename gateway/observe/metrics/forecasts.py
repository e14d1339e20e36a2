"""State and calibration of the pools' forecasts, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric

from gateway.core.snapshot import Snapshot, Trust
from gateway.observe.metrics.families import gauge

MIN_LABELS: Final = 500
"""The calibration error has no series below this many labels: its bins are then too small. Of probabilities that are
exactly right, 15 labels show an error of .25, 100 labels .09, and 500 labels .04 (.06 at most, in 19 of 20 cases).
"""


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
        [((pool.pool,), pool.reliability.ece) for pool in pools if pool.reliability.labels >= MIN_LABELS],
    )
