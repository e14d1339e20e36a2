"""A load test over time: offered, answered and good requests, and latencies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.quantiles import PERCENTILES
from loadtests.replay.columns import percentiles
from loadtests.replay.request import Outcome
from loadtests.report.judged import ERRORS, Judged

STEPS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_BINS = 120
MIN_REQUESTS = 25
"""Mean requests in a bin: with fewer, the figures are noise."""
MIN_S = 1.0
"""Shortest time for a rate: a single request in the first millisecond is not 1,000 requests/s."""


def per_s(count: float, seconds: float) -> float | None:
    """A rate per second; None if the time is too short for one."""
    return count / seconds if seconds >= MIN_S else None


def timeline(judged: Judged, weights: npt.NDArray[np.float64], from_s: float, until_s: float) -> dict[str, Any]:
    """Figures in bins of equal length, which together are the counted time. `weights`: the worth of each row.

    Offered, shed, failed, weighted goodput and latencies are counted when requests were due. Answered and good are
    counted when the answer was complete. They include answers to the warm-up, and exclude answers after the last
    request. So a target that falls behind is visible. Rates are None if the whole time is less than `MIN_S`.
    """
    most = max(1.0, min(MAX_BINS, np.count_nonzero(judged.rows["due_s"] >= from_s) / MIN_REQUESTS))
    bins = round_bins(until_s - from_s, most)
    bin_s = (until_s - from_s) / bins
    rows = judged.rows
    due = np.floor((rows["due_s"] - from_s) / bin_s).astype(np.int64)
    ended = np.floor((rows["due_s"] + rows["e2e_s"] - from_s) / bin_s).astype(np.int64)
    outcome = rows["outcome"]
    failed = np.isin(outcome, [int(of) for of in ERRORS])

    def rates(where: npt.NDArray[np.int64]) -> list[float | None]:
        inside = where[(where >= 0) & (where < bins)]
        counts = np.bincount(inside, minlength=bins)
        return [float(count / bin_s) if until_s - from_s >= MIN_S else None for count in counts]

    def worth(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        inside = which & (due >= 0) & (due < bins)
        return np.bincount(due[inside], weights[inside], minlength=bins).astype(np.float64)

    edges = np.searchsorted(due, np.arange(bins + 1))  # rows are sorted by the time at which they were due
    parts = [slice(int(begin), int(end)) for begin, end in pairwise(edges)]
    shares = tuple(PERCENTILES.values())
    ttft = [percentiles(rows["ttft_s"][part], shares) for part in parts]
    e2e = [percentiles(np.where(judged.finished[part], rows["e2e_s"][part], np.nan), shares) for part in parts]
    return {
        "from_s": from_s,
        "bin_s": bin_s,
        "offered_per_s": rates(due),
        "answered_per_s": rates(ended[judged.finished]),
        "good_per_s": rates(ended[judged.good]),
        "shed_per_s": rates(due[outcome == Outcome.SHED]),
        "failed_per_s": rates(due[failed]),
        "weighted_goodput": [
            float(good / counted) if counted else None
            for good, counted in zip(worth(judged.good), worth(judged.counted), strict=True)
        ],
    } | {
        f"{metric}_{name}_s": [found[n] for found in values]
        for metric, values in (("ttft", ttft), ("e2e", e2e))
        for n, name in enumerate(PERCENTILES)
    }


def round_bins(seconds: float, most: float) -> int:
    """The number of bins, of a nearly round length; at most a few more than `most`."""
    step_s = next((step for step in STEPS_S if seconds / step <= most), STEPS_S[-1])
    return max(1, round(seconds / step_s))
