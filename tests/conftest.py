"""What holds for every test."""

from __future__ import annotations

import pytest
from hypothesis import settings

from gateway.observe.built import is_compiled

# How long an example takes says something of the machine, not of the code.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-interpreted` runs what is skipped here."""
    if is_compiled():
        skip = pytest.mark.skip(reason="replaces parts of classes that are compiled")
        for item in items:
            if item.get_closest_marker("interpreted") is not None:
                item.add_marker(skip)
