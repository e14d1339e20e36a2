"""A slow and steady reader gets all of a large answer; one that reads almost nothing is cut off."""

from __future__ import annotations

import pytest

from tests.foreign.client import Answer, request
from tests.foreign.gateways import Gateways
from tests.foreign.replica import Play
from tests.foreign.servers import FLEET

WRITE_STALL_S = 30.0
BEAT_S = 0.1
SLOW_BYTES = 3000
"""In a beat: a megabyte takes longer than `WRITE_STALL_S`."""
NEXT_TO_NOTHING_BYTES = 20


def asked(name: str, pace: int) -> tuple[Answer | None, float]:
    """The answer to a client of this pace, and its duration, in seconds of the loop."""
    gateways, script = Gateways(), FLEET[name]

    async def ask() -> tuple[Answer | None, float]:
        world = await gateways.world((False, False))
        world.set_parts(lambda _: Play([script.data]))
        began = gateways.loop.time()
        answer = await world.ask(
            world.door(pace=pace, beat_s=BEAT_S), request(script.path, script.stream, world.unlike())
        )
        return answer, gateways.loop.time() - began

    found = gateways.loop.run_until_complete(ask())
    gateways.close()
    return found


@pytest.mark.parametrize("name", ["any stream: an event of 2 MB", "any http: 3 MB of one answer"])
def test_a_slow_and_steady_reader_gets_all_of_a_large_answer(name: str) -> None:
    answer, took_s = asked(name, SLOW_BYTES)
    assert answer is not None
    assert (answer.status, answer.framed) == (200, True)
    assert took_s > WRITE_STALL_S


def test_a_reader_that_takes_next_to_nothing_is_cut_off() -> None:
    answer, took_s = asked("any stream: an event of 2 MB", NEXT_TO_NOTHING_BYTES)
    assert answer is None or not answer.framed
    assert took_s < 3 * WRITE_STALL_S
