"""guidellm measures what `tailgate load run` measures, on the same schedule."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from loadtests.experiments.outside_tools import compared
from loadtests.peers import install

OFF_AT_MOST = 0.02
"""Relative difference of medians."""
SECONDS = 8.0

pytestmark = [
    pytest.mark.skipif("TAILGATE_TEST_CLIENTS" not in os.environ, reason="make test-clients runs it"),
    pytest.mark.skipif(shutil.which("guidellm") is None, reason=f"not on PATH: pip install {install.GUIDELLM}"),
]


def test_guidellm_has_the_same_median_latencies(tmp_path: Path) -> None:
    ((ours, theirs),) = compared("guidellm", 1, SECONDS, tmp_path, lambda text: None)
    assert {f"{what}_p50" for what in ("ttft", "tpot", "e2e")} < theirs.keys()
    for what in ("ttft_p50", "tpot_p50", "e2e_p50"):
        assert ours[what] == pytest.approx(theirs[what], rel=OFF_AT_MOST), what
