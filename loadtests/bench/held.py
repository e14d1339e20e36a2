"""Holdings of a process in quiet moments, and whether they grow."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass

MAX_OBJECTS_PER_REQUEST = 0.5
MAX_BYTES_PER_REQUEST = 2048
SPARE_OBJECTS = 4000
SPARE_BYTES = 64 * 2**20
"""Memory that stays in pieces after lines of 10 MB, which a fault sends."""
SPARE_DESCRIPTORS = 2
SPARE_TASKS = 2


@dataclass(frozen=True, slots=True)
class Quiet:
    """Holdings of the process in a quiet moment. `requests`: asked so far."""

    requests: int
    rss_bytes: int
    descriptors: int
    """Open ones, without those of connections that are kept alive."""
    tasks: int
    objects: int


def held(requests: int, kept_alive: int) -> Quiet:
    """The present holdings of this process, which has both ends of `kept_alive` connections. Their number depends on
    chance: 5 to 12 with 4 replicas.
    """
    gc.collect()
    with open("/proc/self/statm") as statm:
        rss_bytes = int(statm.read().split()[1]) * resource.getpagesize()
    descriptors = len(os.listdir("/proc/self/fd")) - 2 * kept_alive
    return Quiet(requests, rss_bytes, descriptors, len(asyncio.all_tasks()), len(gc.get_objects()))


def grown(quiet: list[Quiet]) -> Iterator[str]:
    """Everything that grew with the number of requests. The first half of the moments is left out: learned facts are
    bounded, and fill up then.
    """
    late = quiet[len(quiet) // 2 :]
    first, last = late[0], late[-1]
    requests = last.requests - first.requests
    for what, before, after, allowed in (
        ("objects", first.objects, last.objects, SPARE_OBJECTS + MAX_OBJECTS_PER_REQUEST * requests),
        ("bytes of memory", first.rss_bytes, last.rss_bytes, SPARE_BYTES + MAX_BYTES_PER_REQUEST * requests),
        ("descriptors", first.descriptors, last.descriptors, SPARE_DESCRIPTORS),
        ("tasks", first.tasks, last.tasks, SPARE_TASKS),
    ):
        if after - before > allowed:
            yield f"{what} grew from {before} to {after} within {requests} requests"
