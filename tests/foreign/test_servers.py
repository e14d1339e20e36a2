"""Each script through each kind of tier, in pieces of each size; and what the fleet of them has to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.foreign.loop import VirtualLoop, clock_of
from tests.foreign.not_yet import NOT_YET
from tests.foreign.play import SIZES, SIZES_OF_TWO, problems
from tests.foreign.script import Ends, Script
from tests.foreign.servers import SERVERS
from tests.foreign.world import World, watched
from tests.interpreted import interpreted

FLEET = {f"{server}: {script.name}": script for server, scripts in SERVERS.items() for script in scripts}
Kind = tuple[bool, bool]


class Stage:
    """One loop, and one gateway for each kind of tier; a gateway at which anything went wrong is not used again."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self._worlds: dict[Kind, World] = {}

    async def _world(self, kind: Kind) -> World:
        world = self._worlds.get(kind)
        if world is None:
            aggregate, hedged = kind
            world = self._worlds[kind] = World(self.loop, aggregate, hedged)
            if hedged:
                await world.warm()
        self.loop.connect = world.replicas.connect
        return world

    async def play(self, script: Script, cut: str, kind: Kind) -> list[str]:
        """What is wrong."""
        world = await self._world(kind)
        with watched(self.loop) as seen:
            found = await problems(world, script, cut, *kind)
        found += [f"logged: {line}" for line in seen]
        if found:
            del self._worlds[kind]
            world.close()
        return found

    def close(self) -> None:
        """Leave nothing behind."""
        for world in self._worlds.values():
            world.close()
        self.loop.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    with clock_of(stage.loop):
        yield stage
    stage.close()


@interpreted
@pytest.mark.parametrize("name", [name for name in FLEET if name not in NOT_YET])
def test_a_foreign_answer_comes_to_its_right_end_and_harms_nobody(stage: Stage, name: str) -> None:
    script = FLEET[name]

    async def all_of_it() -> dict[str, list[str]]:
        found = {}
        for aggregate in (False, True):
            for hedged in (False, True):
                for cut in SIZES_OF_TWO if hedged else SIZES:
                    wrong = await stage.play(script, cut, (aggregate, hedged))
                    if wrong:
                        found[f"{'aggregated' if aggregate else 'streamed'}{', hedged' * hedged}, {cut}"] = wrong
        return found

    assert stage.loop.run_until_complete(all_of_it()) == {}


def test_there_are_enough_scripts_of_each_sort() -> None:
    sorts = Counter(
        "whole" if not script.stream else "stream" for script in FLEET.values() if script.ends is not Ends.REFUSED
    )
    assert len(FLEET) >= 120
    assert sorts["stream"] >= 70
    assert sorts["whole"] >= 25
    assert all(script.source for script in FLEET.values())
