"""Throughput and goodput by offered load, if the load varied."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadtests.replay.columns import Column, percentiles
from loadtests.report.judged import Judged
from loadtests.report.timeline import MAX_BINS, round_bins

MIN_REQUESTS = 100
"""Mean requests in a bin: with this many, chance makes differences of about 10% between bins."""
LEVELS = 8
APART = 4.0
"""Standard deviations of a Poisson process between two levels: smaller differences are chance."""
MIN_LEVELS = 3


def over_load(judged: Judged, from_s: float, until_s: float) -> dict[str, list[float] | list[float | None]]:
    """Requests/s and the p99 of TTFT by level of offered load; empty if the load was nearly constant.

    The counted time is cut into bins, each at least as long as an answer; bins with about the same offered load form
    one level. Offered requests are counted when they were due. Answered and good ones are counted at the completion of
    the answer, minus the time that an answer takes without a queue. Otherwise, while the load rises, answers to a lower
    load would be counted at a higher one.
    """
    bins = round_bins(until_s - from_s, _most_bins(judged, from_s, until_s))
    bin_s = (until_s - from_s) / bins
    due_s, e2e_s = judged.rows["due_s"], judged.rows["e2e_s"]

    def rates(at: Column) -> npt.NDArray[np.float64]:
        return np.histogram(at, bins, (from_s, until_s))[0] / bin_s

    edges = np.searchsorted(due_s, np.linspace(from_s, until_s, bins + 1))
    medians = [percentiles(e2e_s[start:end][judged.finished[start:end]], (0.5,))[0] for start, end in pairwise(edges)]
    unqueued_s = min((median for median in medians if median is not None), default=0.0)
    offered, done_s = rates(due_s), due_s + e2e_s - unqueued_s
    answered, good = rates(done_s[judged.finished]), rates(done_s[judged.good])
    width = max(np.ptp(offered) / LEVELS, APART * math.sqrt(offered.mean() / bin_s))
    level = np.floor((offered - offered.min()) / width) if width else np.zeros(bins)
    levels = [level == which for which in np.unique(level)]
    if len(levels) < MIN_LEVELS:
        levels = []
    ttft_s = np.split(judged.rows["ttft_s"], edges)[1:-1]  # without those before the first bin and after the last
    rows = [np.concatenate([ttft_s[n] for n in np.flatnonzero(chosen)]) for chosen in levels]
    return {
        "ttft_p99_s": [percentiles(of, (0.99,))[0] for of in rows],
        **{
            f"{name}_per_s": [float(rate[chosen].mean()) for chosen in levels]
            for name, rate in (("offered", offered), ("answered", answered), ("good", good))
        },
    }


def _most_bins(judged: Judged, from_s: float, until_s: float) -> float:
    requests = np.count_nonzero(judged.rows["due_s"] >= from_s)
    e2e_s = percentiles(judged.rows["e2e_s"][judged.finished], (0.5,))[0] or 0.0
    return max(1.0, min(MAX_BINS, requests / MIN_REQUESTS, (until_s - from_s) / max(1.0, e2e_s)))
