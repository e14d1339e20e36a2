"""`python -m loadtests.experiments.pacer RATE SECONDS SEED`: the generator's clock with nothing to send.

It waits for the times of a Poisson process as the generator does, and prints its lateness (s, 99th percentile). That is
the cost of the machine and the event loop before a byte is sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from random import Random

import uvloop

from loadtests.quantiles import rank
from loadtests.replay.pace import pace


@dataclass(frozen=True, slots=True)
class Due:
    """An item to send, `at` seconds from the beginning."""

    due_s: float


async def lateness_p99_s(rate: float, seconds: float, seed: int) -> float:
    """Lateness of all items that were due."""
    random, at, items, late = Random(seed), 0.0, [], []
    while (at := at + random.expovariate(rate)) < seconds:
        items.append(Due(at))
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    await pace(items, clock, asyncio.sleep, lambda item: late.append(clock() - item.due_s))
    return rank(sorted(late), 0.99)


if __name__ == "__main__":
    print(uvloop.run(lateness_p99_s(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
