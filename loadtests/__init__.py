"""Everything that exercises a live gateway: emulated replicas, load, benchmarks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
