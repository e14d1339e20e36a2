"""Planning figures of each pool as Prometheus families: the gap of Little's law, and demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric

from gateway.core.snapshot import DemandView, Snapshot
from gateway.observe.metrics.families import gauge
from gateway.observe.metrics.little import LittleView

DEMAND_GAUGES: tuple[tuple[str, str, Callable[[DemandView], float]], ...] = (
    (
        "tailgate_pool_demand_replicas",
        "Work that comes to the pool, refused requests included, in fully busy replicas; absent until it is known.",
        lambda demand: demand.replicas,
    ),
    (
        "tailgate_pool_replicas_serving",
        "Replicas that get requests; one in slow start counts in part.",
        lambda demand: demand.serving,
    ),
    (
        "tailgate_pool_prompt_token_rate",
        "Prompt tokens per second that come to the pool, those of refused requests included.",
        lambda demand: demand.prompt_tokens_per_s,
    ),
    (
        "tailgate_pool_output_token_rate",
        "Tokens of output per second that these requests need, by the mean length of answers.",
        lambda demand: demand.output_tokens_per_s,
    ),
)


def planning_families(snapshot: Snapshot, little: Sequence[LittleView]) -> Iterator[Metric]:
    """All families, with their present values."""
    yield gauge(
        "tailgate_little_gap_ratio",
        "Gap of Little's law: (L - rate x time) / the larger of the two; absent if the window is too short.",
        ("pool",),
        [((view.pool,), view.gap) for view in little if view.gap is not None],
        "ratio",
    )
    demands = [(pool.name, pool.demand) for pool in snapshot.pools]
    for name, text, measure in DEMAND_GAUGES:
        yield gauge(name, text, ("pool",), [((pool,), measure(told)) for pool, told in demands if told is not None])
