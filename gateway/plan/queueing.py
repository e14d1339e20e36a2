"""Waits in an M/M/c queue: Poisson arrivals, exponential service times, c servers, and one queue for all servers.

    a = arrival rate x mean service time     offered load: mean number of busy servers (Little's law)
    B(0) = 1, B(n) = a B(n-1) / (n + a B(n-1))                                Erlang B
    C = B(c) / (1 - (a/c)(1 - B(c)))                                          Erlang C: P(a request has to wait)
    P(wait > t) = C exp(-(c - a) t / service time)

All values of the recursion are between 0 and 1. So the recursion works for thousands of servers, while factorials would
overflow at 171. The recursion may start far below `a` with B(n) = 1 - n/a: each step multiplies the error of the start
by about n/a. Sources: A. K. Erlang, 1917; I. Adan and J. Resing, Queueing Systems, 2015, chapter 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SATURATED = 1.0 - 1e-9
"""A utilisation of this or more counts as 1, to allow for rounding."""
FAR_BELOW = 12.0
"""The recursion starts at load - this x sqrt(load). When it reaches the load, the error has shrunk by a factor of
e^-72.
"""
NEGLIGIBLE = 1e-300
"""A smaller probability is 0. The smallest numbers are rounded back to themselves, so the recursion would go on without
end.
"""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times (seconds) of requests for a server."""

    p_wait: float
    """Share (0-1) of the requests that wait."""
    mean_s: float
    """Mean wait over all requests, including those that do not wait."""
    p95_s: float
    p99_s: float
    queue: float
    """Lq: mean number of waiting requests."""


def erlang_b(load: float, servers: int) -> float:
    """Erlang B: P(all servers are busy) if a request that finds no free server leaves. `load` (> 0): offered load, the
    mean number of busy servers. `servers` >= 1.
    """
    known = min(servers, max(0, int(load - FAR_BELOW * math.sqrt(load))))
    blocked = 1.0 - known / load
    for n in range(known + 1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
        if blocked < NEGLIGIBLE:
            return 0.0
    return blocked


def erlang_c(load: float, servers: int) -> float:
    """Erlang C: P(a request has to wait) if all requests wait. It is 1 if `load` >= `servers`."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(load, servers)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


def waits(load: float, servers: int, service_s: float) -> Waits | None:
    """Waits at this load. `service_s`: mean service time. None if all servers are always busy, so that the queue grows
    without end.
    """
    if load >= servers * SATURATED:
        return None
    p_wait = erlang_c(load, servers)
    drains_per_s = (servers - load) / service_s
    return Waits(
        p_wait=p_wait,
        mean_s=p_wait / drains_per_s,
        p95_s=_quantile(p_wait, 0.95, drains_per_s),
        p99_s=_quantile(p_wait, 0.99, drains_per_s),
        queue=p_wait * load / (servers - load),
    )


def _quantile(p_wait: float, q: float, drains_per_s: float) -> float:
    """The `q` quantile (0-1) of the wait of all requests. It is 0 if a share `q` finds a free server."""
    return max(0.0, math.log(p_wait / (1.0 - q))) / drains_per_s if p_wait > 0.0 else 0.0
