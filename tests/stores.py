"""A real redis-server for tests; without one they skip."""

from __future__ import annotations

import pytest

from loadtests.experiments.real_store import PROGRAM
from loadtests.experiments.real_store import RealStore as RealStore
from loadtests.experiments.real_store import real_store as real_store

needs_store = pytest.mark.skipif(PROGRAM is None, reason="needs redis-server: apt-get install redis-server")
