"""Marks tests that compiled code cannot run: they replace methods of the gateway or inherit from its classes."""

import pytest

interpreted = pytest.mark.interpreted
