"""GET /metrics: the metrics of vLLM 0.32, under its names, in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

# vLLM 0.32's own edges, seconds.
# fmt: off
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
E2E_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on


class Histogram:
    """Counts per bucket, and the sum."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value


def labels(pairs: Mapping[str, object]) -> str:
    """`{a="x",b="y"}`, escaped by the rules of the text format."""
    escaped = (
        (key, str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, value in sorted(pairs.items())
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"


def family(name: str, kind: str, help: str, samples: Iterable[tuple[Mapping[str, object], float]]) -> list[str]:
    """One metric with its help and type lines."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{labels(pairs)} {float(value)}" for pairs, value in samples]


def histogram(name: str, help: str, samples: Iterable[tuple[Mapping[str, object], Histogram]]) -> list[str]:
    """Histograms of one metric with cumulative buckets."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} histogram"]
    for pairs, values in samples:
        total = 0
        for edge, count in zip((*values.edges, "+Inf"), values.counts, strict=True):
            total += count
            lines.append(f"{name}_bucket{labels({**pairs, 'le': edge})} {float(total)}")
        lines += [f"{name}_count{labels(pairs)} {float(total)}", f"{name}_sum{labels(pairs)} {values.sum}"]
    return lines
