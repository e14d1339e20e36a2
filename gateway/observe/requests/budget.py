"""Where slow requests spend their time: the share of each stage in the slowest half, twentieth and hundredth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from gateway.observe.metrics.stages import REST, STAGES, add_stages
from gateway.observe.requests.row import RequestRow

PERCENTILES: Final = {"p50": 0.5, "p95": 0.05, "p99": 0.01}
"""The share (0-1) of the requests that is beyond each."""
_LATENCIES: Final[dict[str, Callable[[RequestRow], float]]] = {
    "ttft": lambda row: row.ttft_s or 0.0,
    "e2e": lambda row: row.e2e_s,
}


def budgets(rows: Iterable[RequestRow]) -> list[dict[str, object]]:
    """A row for each tier, latency and percentile, of the streamed requests that had a first token.

    `from_s`: the percentile. `stages`: shares (0-1) of the time of the `requests` that were as slow or slower.
    """
    by_tier: dict[str, list[RequestRow]] = {}
    for row in rows:
        if row.stream and row.ttft_s is not None:
            by_tier.setdefault(row.tier, []).append(row)
    return [each for tier, of_tier in sorted(by_tier.items()) for each in _of_tier(tier, of_tier)]


def _of_tier(tier: str, rows: Sequence[RequestRow]) -> Iterator[dict[str, object]]:
    for latency, read in _LATENCIES.items():
        slowest_first = sorted(rows, key=read, reverse=True)
        for percentile, beyond in PERCENTILES.items():
            slow = slowest_first[: max(1, round(beyond * len(rows)))]
            yield {
                "tier": tier,
                "latency": latency,
                "percentile": percentile,
                "from_s": read(slow[-1]),
                "requests": len(slow),
                "stages": _shares(slow, has_rest=latency == "e2e"),
            }


def _shares(rows: Sequence[RequestRow], *, has_rest: bool) -> dict[str, float]:
    seconds = [0.0] * len(STAGES)
    for row in rows:
        add_stages(seconds, row.receive_s, row.queue_s, row.ttft_s, row.e2e_s, row.engine)
    counted = dict(zip(STAGES, seconds, strict=True))
    if not has_rest:
        del counted[STAGES[REST]]
    total = sum(counted.values())
    return {stage: part / total if total else 0.0 for stage, part in counted.items()}
