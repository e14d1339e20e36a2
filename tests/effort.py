"""The number of examples in tests. `TAILGATE_TEST_LONG=1`, set by `make test-long`, also runs long tests."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("TAILGATE_TEST_LONG", "") not in ("", "0")


def examples(many: int) -> int:
    """Number of random examples: a quarter of `many`, or all in long tests."""
    return many if LONG else many // 4
