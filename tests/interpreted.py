"""Tests that replace methods of the gateway, or inherit from its classes, cannot do so where it is compiled."""

import pytest

from loadtests.compiled import is_compiled

interpreted = pytest.mark.skipif(is_compiled(), reason="replaces parts of classes that are compiled")
