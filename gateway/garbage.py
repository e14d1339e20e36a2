"""Garbage collection in the processes of the gateway."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 20, 50)
"""Arguments of `gc.set_threshold`: a collection of the youngest objects after so many allocations."""


def tune_collector() -> None:
    """Exclude the objects made so far from garbage collection, and collect seldom.

    Requests leave no reference cycles (docs/internals/adr/0006), so the collector would mostly inspect long-lived
    objects again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
