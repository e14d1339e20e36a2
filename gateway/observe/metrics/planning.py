"""Planning figures of each pool as Prometheus families: the gap of Little's law, and the number of replicas needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric

from gateway.core.snapshot import ScaleView, Snapshot
from gateway.observe.metrics.families import gauge
from gateway.observe.metrics.little import LittleView

SCALE_GAUGES: tuple[tuple[str, str, Callable[[ScaleView], float]], ...] = (
    (
        "tailgate_pool_replicas_wanted",
        "Replicas that the pool needs for the expected demand; absent until that is known.",
        lambda p: p.wanted,
    ),
    (
        "tailgate_pool_replicas_serving",
        "Replicas that get requests; one in slow start counts in part.",
        lambda p: p.serving,
    ),
    (
        "tailgate_pool_replicas_worth",
        "The number wanted before it is rounded and held: predicted demand / knee.",
        lambda p: p.worth,
    ),
    (
        "tailgate_pool_knee",
        "Demand, in replicas, that one replica carries within the objectives, as learned.",
        lambda p: p.knee,
    ),
    (
        "tailgate_pool_prompt_token_rate",
        "Prompt tokens per second that come to the pool, those of refused requests included.",
        lambda p: p.prompt_tokens_per_s,
    ),
    (
        "tailgate_pool_output_token_rate",
        "Tokens of output per second that these requests need, by the mean length of answers.",
        lambda p: p.output_tokens_per_s,
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
    wants = [(pool.name, pool.scale) for pool in snapshot.pools]
    for name, text, measure in SCALE_GAUGES:
        yield gauge(name, text, ("pool",), [((pool,), measure(scale)) for pool, scale in wants if scale is not None])
