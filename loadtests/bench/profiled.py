"""`python -m loadtests.bench.profiled FILE serve ...`: the tailgate command, its profile written to FILE at the end."""

from __future__ import annotations

import cProfile
import sys

import gateway.app  # noqa: F401  imported here, so that the profile holds no imports
from gateway.__main__ import main

if __name__ == "__main__":
    file = sys.argv.pop(1)
    profiler = cProfile.Profile()
    try:
        profiler.runcall(main)
    finally:
        profiler.dump_stats(file)
