"""The soak finds what is left over, and what grows; a short one finds neither."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from loadtests.bench.held import Quiet, grown, held
from loadtests.bench.soak import MIN_CYCLES, soak
from loadtests.emulator.faults import FaultKind

QUIET = Quiet(1000, 100 * 2**20, 50, 30, 100_000)


@pytest.mark.long
async def test_short_soak_finds_nothing_wrong() -> None:
    result = await soak(45.0, seed=1)
    assert result.wrong == []
    assert result.comparisons > 10
    assert len(result.quiet) >= MIN_CYCLES
    assert result.outcomes["streamed"] > 100
    assert len(result.faults) > len(FaultKind) / 2


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"objects": 130_000}, "objects grew from 100000 to 130000 within 1000 requests"),
        ({"rss_bytes": 400 * 2**20}, "bytes of memory grew"),
        ({"descriptors": 53}, "descriptors grew from 50 to 53"),
        ({"tasks": 40}, "tasks grew"),
    ],
)
def test_growth_between_quiet_moments_is_found(more: dict[str, int], what: str) -> None:
    (found,) = grown([QUIET, QUIET, replace(QUIET, requests=2000, **more)])
    assert what in found


async def test_descriptors_are_held_apart_from_connections_that_are_kept_alive() -> None:
    before = held(0, 0).descriptors
    ends = socket.socketpair()
    try:
        assert held(0, 1).descriptors == before
        assert held(0, 0).descriptors == before + 2
    finally:
        for end in ends:
            end.close()


def test_growth_of_the_first_half_is_no_fault() -> None:
    assert [*grown([replace(QUIET, objects=10, tasks=1), QUIET, replace(QUIET, requests=9000)])] == []
