"""Objectives of a tier: bounds of latencies by percentile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final


class Metric(StrEnum):
    """Latencies for which an objective can be set."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


ASKED_QUANTILE: Final = 0.99
"""A request may set an objective for a metric without one in its tier. It gets this quantile."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The `quantile` (0-1, exclusive) of a latency must be at most `threshold_s` seconds."""

    quantile: float
    threshold_s: float

    @property
    def percentile(self) -> str:
        """Name of the quantile: `p99` for 0.99, `p99.9` for 0.999."""
        return f"p{round(self.quantile * 100, 6):g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """The objectives of a tier. The bound of a metric is the threshold of its highest percentile, or inf."""

    ttft: tuple[Objective, ...] = ()
    tpot: tuple[Objective, ...] = ()
    e2e: tuple[Objective, ...] = ()
    e2e_up_to_tokens: int | None = None
    ttft_bound_s: float = field(init=False)
    tpot_bound_s: float = field(init=False)
    e2e_bound_s: float = field(init=False)
    bounded: bool = field(init=False)
    """Whether any metric has a finite bound."""

    def __post_init__(self) -> None:
        for metric in Metric:
            objectives: tuple[Objective, ...] = getattr(self, metric.value)
            top = max(objectives, key=lambda o: o.quantile, default=Objective(1.0, math.inf))
            object.__setattr__(self, f"{metric.value}_bound_s", top.threshold_s)
        object.__setattr__(self, "bounded", bool(self.ttft or self.tpot or self.e2e))

    def objectives(self) -> tuple[tuple[Metric, Objective], ...]:
        """Every objective with its metric, in the order TTFT, TPOT, e2e."""
        return tuple(
            (metric, objective)
            for metric, group in ((Metric.TTFT, self.ttft), (Metric.TPOT, self.tpot), (Metric.E2E, self.e2e))
            for objective in group
        )

    def tightened(self, ttft_s: float | None, tpot_s: float | None) -> Slo:
        """A copy, tightened to the bounds (seconds) that a request sets. Bounds looser than the tier's are ignored."""
        return replace(self, ttft=_tightened(self.ttft, ttft_s), tpot=_tightened(self.tpot, tpot_s))

    def covers(self, output_tokens: int) -> bool:
        """Whether the e2e objective applies to an answer of this many tokens."""
        return self.e2e_up_to_tokens is None or output_tokens <= self.e2e_up_to_tokens

    def met(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float, output_tokens: int) -> bool:
        """Whether every latency is within its bound. A latency of None could not be observed, and is ignored."""
        if ttft_s is not None and ttft_s > self.ttft_bound_s:
            return False
        if tpot_s is not None and tpot_s > self.tpot_bound_s:
            return False
        return e2e_s <= self.e2e_bound_s or not self.covers(output_tokens)


def _tightened(objectives: tuple[Objective, ...], bound_s: float | None) -> tuple[Objective, ...]:
    if bound_s is None:
        return objectives
    held = tuple(replace(o, threshold_s=min(o.threshold_s, bound_s)) for o in objectives)
    return held or (Objective(ASKED_QUANTILE, bound_s),)


NO_OBJECTIVES: Final = Slo()
