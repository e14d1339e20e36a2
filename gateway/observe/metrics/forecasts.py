"""How good the forecast is and what admission makes of it, as Prometheus families."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric

from gateway.core.forecast.trust import Trust
from gateway.core.forecast.views import PoolLearnedView
from gateway.core.snapshot import Snapshot, TierView
from gateway.observe.metrics.families import counter, gauge

POOL_GAUGES: tuple[tuple[str, str, str, Callable[[PoolLearnedView], float]], ...] = (
    (
        "tailgate_forecast_trusted",
        "1 while forecasts decide, 0 while only the bounds of slots and queue do.",
        "",
        lambda p: p.trust is Trust.TRUSTED,
    ),
    (
        "tailgate_forecast_calibration_error",
        "Mean distance between P(breach) and what came true, over bins of equal mass (ECE).",
        "",
        lambda p: p.reliability.ece,
    ),
    (
        "tailgate_forecast_brier_skill",
        "1 - Brier score of P(breach) / Brier score of always saying the base rate.",
        "",
        lambda p: p.reliability.skill,
    ),
)

TIER_GAUGES: tuple[tuple[str, str, str, Callable[[TierView], float]], ...] = (
    ("tailgate_admission_threshold", "The largest P(breach) that is put up with.", "", lambda t: t.threshold),
    (
        "tailgate_error_budget_left_ratio",
        "What is left of the errors that the tier's percentiles allow, -1 to 1.",
        "ratio",
        lambda t: t.budget_left,
    ),
)


def admission_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every family, at this moment."""
    pools = snapshot.forecast.pools
    for name, text, unit, read in POOL_GAUGES:
        yield gauge(name, text, ("pool",), [((pool.pool,), read(pool)) for pool in pools], unit)
    yield gauge(
        "tailgate_forecast_state",
        "1 for the state that the forecast of the pool is in.",
        ("pool", "state"),
        [((pool.pool, state.value), pool.trust is state) for pool in pools for state in Trust],
    )
    yield counter(
        "tailgate_forecast_drift_alarms",
        "Times that engines were found to behave otherwise than learned.",
        ("pool",),
        [((pool.pool,), pool.drift_alarms) for pool in pools],
    )
    for name, text, unit, of_tier in TIER_GAUGES:
        yield gauge(name, text, ("tier",), [((tier.name,), of_tier(tier)) for tier in snapshot.tiers], unit)
