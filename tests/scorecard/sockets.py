"""Room for many sockets in one process."""

from __future__ import annotations

import contextlib
import resource

import pytest


@contextlib.contextmanager
def room_for(sockets: int):
    """Raise the soft limit of open files; skip the test if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + 256
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        pytest.skip(f"needs {wanted} open files, the limit here is {hard}")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
