"""Fixtures of playbooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.proxy.playbook import Loop, Play


@pytest.fixture
def play() -> Iterator[Callable[..., Play]]:
    """Makes a `Play`. At its end nothing may be held, and nothing may have raised."""
    loop, plays = Loop(), list[Play]()

    def make(*args: object, **limits: object) -> Play:
        plays.append(Play(loop, *args, **limits))  # type: ignore[arg-type]
        return plays[-1]

    try:
        yield make
        for each in plays:
            each.over()
    finally:
        loop.close()
