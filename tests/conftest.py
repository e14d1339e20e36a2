"""Settings of all tests."""

from __future__ import annotations

import inspect
import os

import httpx
import pytest
from hypothesis import HealthCheck, settings

from gateway.observe.build_info import is_compiled
from tests.effort import LONG, examples

# Examples have no time limits, neither for running nor for making them: both times depend on the machine. They are the
# same in each run: no test depends on luck. With TAILGATE_EXAMPLES=NUMBER they are drawn anew.
settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
    derandomize="TAILGATE_EXAMPLES" not in os.environ,
)
settings.load_profile("tests")

# Clients of httpx give up after 5 s. A busy machine may take that long where a test means to wait.
for phase in ("connect", "read", "write", "pool"):
    setattr(inspect.signature(httpx.AsyncClient).parameters["timeout"].default, phase, 60.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that only `make test-interpreted` or `make test-long` runs."""
    skipped = {}
    if is_compiled():
        skipped["interpreted"] = "replaces parts of classes that are compiled"
    if not LONG:
        skipped["long"] = "takes long; make test-long runs it"
    for item in items:
        for name, reason in skipped.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
