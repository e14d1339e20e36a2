"""The part of a test that one of several generators sends."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
INDEX = "JOB_COMPLETION_INDEX"
"""Variable with the number of a pod, from 0, in an Indexed Job of Kubernetes."""
SOON_S = 5.0
"""Least seconds from now to an aligned beginning: all generators have to be ready by then."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The requests whose number has the remainder `index` (from 0) when divided by `count`."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.count}"

    def part(self, items: Iterable[T]) -> Iterator[tuple[int, T]]:
        """The own items with their numbers among all."""
        return islice(enumerate(items), self.index, None, self.count)


def shard_of(text: str | None, environment: Mapping[str, str]) -> Shard:
    """Read `I/N`, I from 1; or `N` alone where the environment has the index. Raises ValueError."""
    if text is None:
        return Shard()
    found = re.fullmatch(r"(?:(\d+)/)?(\d+)", text, re.ASCII)
    if not found:
        raise ValueError(f"--shard {text}: write I/N, such as 1/4")
    count = int(found[2])
    if found[1] is None:
        index = environment.get(INDEX, "")
        if not re.fullmatch(r"\d+", index, re.ASCII):
            raise ValueError(f"--shard {text}: {INDEX} is not set: write I/N, such as 1/{text}")
        number = int(index) + 1
    else:
        number = int(found[1])
    if not 1 <= number <= count:
        raise ValueError(f"--shard {number}/{count}: I is from 1 to N")
    return Shard(number - 1, count)


def beginning(at: str | None, align_s: float | None, now_s: float) -> float | None:
    """The time at which the test begins, in seconds since 1970; None: as soon as possible. Raises ValueError."""
    if at is not None and align_s is not None:
        raise ValueError("--begin-at and --align both say when to begin: keep one")
    if align_s is not None:
        return math.ceil((now_s + SOON_S) / align_s) * align_s
    if at is None:
        return None
    try:
        return float(at) if re.fullmatch(r"\d+(\.\d+)?", at, re.ASCII) else datetime.fromisoformat(at).timestamp()
    except ValueError:
        raise ValueError(f"--begin-at {at}: write seconds since 1970, or a time such as 2026-01-31T12:00:00Z") from None
