"""How much the tests try. `TAILGATE_TEST_LONG=1`, as `make test-long` has it, runs what takes long as well."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("TAILGATE_TEST_LONG", "") not in ("", "0")


def examples(many: int) -> int:
    """How many random examples to try where `many` are wanted: a quarter of them, unless there is time."""
    return many if LONG else many // 4
