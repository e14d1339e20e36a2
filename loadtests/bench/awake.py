"""Keeps the cores of a virtual machine from sleeping while latencies are measured.

An idle virtual core is given back to the host. The host often takes a millisecond to return the core, which is as long
as the measured latencies. A process of the idle class takes only unused CPU time, and gives way at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def cores_awake() -> Iterator[None]:
    """One spinning process per core, in the idle class. Only Linux has the idle class. On other systems no process is
    started.
    """
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
