"""Options of a simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.core.deadlines import PROGRESS_EVERY_S


@dataclass(frozen=True, slots=True)
class Options:
    """Times are seconds of virtual time."""

    duration_s: float = math.inf
    """Arrivals from this time on are left out. The run ends when the earlier requests are over."""
    warmup_s: float = 0.0
    """Requests that arrive before this time are served, but not counted."""
    watched: bool = True
    """Whether replicas are checked and scraped at the policy's intervals."""
    progress_s: float = PROGRESS_EVERY_S
    """Interval of the progress reports of streams. The default is the gateway's own."""
    patience_s: float = math.inf
    """A client leaves after this time without a first token or, if the answer is not streamed, without an answer."""
    retries: int = 0
    """Largest number of retries of a client that was refused, failed, or lost patience before it saw anything."""
    prompts_known: bool = True
    """Whether the gateway is told the exact prompt tokens. If not, it estimates them from bytes."""
    give_up_s: float = 3600.0
    """Requests that are not over this many seconds after the last arrival count as misses."""
    ways_s: tuple[float, ...] = ()
    """Measured times of requests on the way to their replica.

    Each request spends one of these times (seconds) at random, in addition to `path_s`. Requests do not overtake each
    other.
    """
    noise: float = 0.0
    """Standard deviation of the logarithm of two random factors for each request, which are log-normal with mean 1.

    One factor multiplies the time that the request adds to a step. The other multiplies the prompt tokens that the
    gateway assumes.
    """
