"""Tools that exercise a live gateway: emulated replicas, load tests, experiments, benchmarks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder of the checkout, or of the installed packages."""
CHECKOUT = (ROOT / "pyproject.toml").exists()
"""Whether this is a checkout, which has experiments and benchmarks too."""
