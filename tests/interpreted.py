"""Tests that replace methods of the gateway, or inherit from its classes, cannot do so where it is compiled."""

import pytest

interpreted = pytest.mark.interpreted
