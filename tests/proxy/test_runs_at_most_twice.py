"""A POST is sent at most twice, however its connections break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.foreign.client import request
from tests.foreign.loop import VirtualLoop
from tests.foreign.replica import Play
from tests.foreign.script import CHAT, Then
from tests.foreign.world import World
from tests.interpreted import interpreted

pytestmark = interpreted


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("after_s", [0.0, 0.5], ids=["at once", "later"])
@pytest.mark.parametrize("then", [Then.CLOSE, Then.RESET])
def test_request_whose_connections_all_break_is_sent_at_most_twice(
    loop: VirtualLoop, then: Then, after_s: float
) -> None:
    async def asked() -> int:
        world = World(loop, hedged=True)
        doors = [world.door() for _ in range(4)]
        for door in doors:  # used connections to both replicas
            door.protocol.data_received(request(CHAT, True, world.unlike()))
        for door in doors:
            await world.answer(door)
        before = sum(line.played for line in world.replicas.lines)
        world.set_parts(lambda _: Play([], then, after_s))
        answer = await world.ask(world.door(), request(CHAT, True, world.unlike()))
        assert answer is not None
        assert answer.status == 502
        assert world.held() == []
        world.close()
        return sum(line.played for line in world.replicas.lines) - before

    assert loop.run_until_complete(asked()) == 2
