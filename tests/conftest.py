"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import settings

from gateway.observe.build_info import is_compiled
from tests.effort import LONG, examples

# How long an example takes says something of the machine, not of the code.
settings.register_profile("tests", deadline=None, max_examples=examples(100))
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-interpreted` and `make test-long` run what is skipped here."""
    skipped = {}
    if is_compiled():
        skipped["interpreted"] = "replaces parts of classes that are compiled"
    if not LONG:
        skipped["long"] = "takes long; make test-long runs it"
    for item in items:
        for name, reason in skipped.items():
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
